"""One direction of a connection: what is on its way from one end to the other.

As with TCP, what arrives is in order and whole, or the connection breaks. What is sent while the
two ends are cut off from each other is sent again when they are not; after `GIVES_UP_S` the sender
gives the connection up.

Ground rules: only the world's own thread touches it.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from purgatory.virtual.history import History
from purgatory.virtual.world_clock import US_PER_S, WorldClock

END: Final = b""
"""Sent last by an end that sends nothing more."""

GIVES_UP_S = 924.6
"""How long Linux sends a segment again before it gives up, at its default of 15 times."""

_WINDOW_BYTES = 256 * 1024


class TimedLoop(Protocol):
    """What the parts of a network ask of the loop."""

    def call_at_us(self, due_us: int, callback: Callable[..., object], *args: object) -> object:
        """Call something at a time of the world's clock."""

    def call_soon(self, callback: Callable[..., object], *args: object) -> object:
        """Call something in the next turn."""


class WireNetwork(Protocol):
    """What a wire asks of its network."""

    clock: WorldClock
    history: History
    us_per_byte: float
    """0.0: any amount takes no time."""

    @property
    def loop(self) -> TimedLoop:
        """Calls what is due."""

    def is_cut(self, one: str, other: str) -> bool:
        """Whether two nodes don't reach each other."""

    @property
    def most_at_once_bytes(self) -> int | None:
        """How much is one segment at most; None: all that there is room for."""

    def delay_us(self) -> int:
        """Return how long the next segment is on its way."""

    def is_lost(self) -> bool:
        """Whether the next segment breaks its connection."""


class WireEnd(Protocol):
    """One of the two ends of a connection."""

    node: str

    def receive(self, data: bytes) -> None:
        """Take what arrived; `END` is the end of it."""

    def lose(self, error: Exception) -> None:
        """Know that the connection is gone."""

    @property
    def has_more(self) -> bool:
        """Whether it waits for room on the wire."""

    def send_more(self) -> None:
        """There may be room on the wire again."""


class Wire:
    """From one end of a connection to the other.

    Args:
        network: whose delays it has.
        label: names it in the history.
        source, target: its ends.
    """

    def __init__(self, network: WireNetwork, label: str, source: WireEnd, target: WireEnd) -> None:
        self.source = source
        self.target = target
        self.is_secret = False
        """Whether its bytes are encrypted, by chance that is not the world's."""
        self._network = network
        self._label = label
        self._on_the_way: deque[bytes | Exception] = deque()
        self._held: deque[bytes | Exception] = deque()
        self._arrives_us = 0
        self._free_us = 0
        self._not_taken_bytes = 0
        self._dead = False
        self._gives_up_at_us = 0

    @property
    def room_bytes(self) -> int:
        """How much may be sent before the other end takes some."""
        return max(0, _WINDOW_BYTES - self._not_taken_bytes)

    def send(self, item: bytes | Exception) -> None:
        """Have something arrive: data, the end of it, or the loss of the connection."""
        most = self._network.most_at_once_bytes
        if most is not None and isinstance(item, bytes) and len(item) > most:
            for begin in range(0, len(item), most):
                self.send(item[begin : begin + most])
            return
        if isinstance(item, bytes):
            self._not_taken_bytes += len(item)
        if self._dead or self._network.is_cut(self.source.node, self.target.node):
            self._hold(item)
        else:
            self._send(item)

    def taken(self, size: int) -> None:
        """The other end has taken so many bytes."""
        self._not_taken_bytes -= size
        if self.source.has_more:
            self._network.loop.call_soon(self.source.send_more)

    def send_held(self) -> None:
        """The ends see each other again."""
        if self._dead:
            return
        held, self._held = self._held, deque()
        for item in held:
            self._send(item)

    def die(self) -> None:
        """Carry nothing more, and say so to nobody: the other end is not there any more."""
        self._dead = True

    @property
    def is_dead(self) -> bool:
        """Whether nothing that is sent arrives."""
        return self._dead

    def _send(self, item: bytes | Exception) -> None:
        network = self._network
        size = len(item) if isinstance(item, bytes) else 0
        now_us = network.clock.now_us
        # How long the sender is busy with it.
        self._free_us = max(self._free_us, now_us) + round(size * network.us_per_byte)
        # What was sent before arrives before, whatever the delays are.
        arrives_us = max(self._arrives_us, self._free_us + network.delay_us())
        if size and network.is_lost():
            network.history.note("lost", self._label)
            item = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            network.loop.call_at_us(arrives_us, self.source.lose, item)
        self._arrives_us = arrives_us
        self._on_the_way.append(item)
        network.loop.call_at_us(arrives_us, self._arrive)

    def _arrive(self) -> None:
        item = self._on_the_way.popleft()
        if self._dead:
            return
        if isinstance(item, Exception):
            self._network.history.note("reset", self._label)
            self.target.lose(item)
            return
        kind = "data" if item else "end"
        self._network.history.note(kind, self._label, item, hashed=not self.is_secret)
        self.target.receive(item)

    def _hold(self, item: bytes | Exception) -> None:
        if not self._held:
            loop = self._network.loop
            self._gives_up_at_us = self._network.clock.now_us + round(GIVES_UP_S * US_PER_S)
            loop.call_at_us(self._gives_up_at_us, self._give_up)
        self._held.append(item)

    def _give_up(self) -> None:
        if self._held and self._network.clock.now_us >= self._gives_up_at_us:
            self._network.history.note("gave up", self._label)
            self._dead = True
            self.source.lose(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
