"""One end of a connection in a world, as an asyncio transport, and the wire to the other end.

As with TCP, bytes arrive in order and whole, or the connection breaks. What is sent while the two
ends are partitioned is sent again afterwards; after `GIVES_UP_S` the sender gives the connection
up.

Ground rules
------------
* Only the world's own thread touches it.
* ``_unsent`` holds what the wire has no room for; ``_untaken`` what came while reading is paused.
"""

from __future__ import annotations

import asyncio
import errno
import os
from asyncio import sslproto
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from purgatory.virtual.clocks import US_PER_S, WorldClock
from purgatory.virtual.history import History

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


_HIGH_WATER_BYTES = 64 * 1024


class VirtualTransport(asyncio.Transport):
    """Sends by one wire and receives by another.

    Args:
        loop: the world's.
        node: who has this end.
        protocol: whom it calls; None: nobody, until `begin`.
        extra: what `get_extra_info` tells.
        on_lost: called once the connection is gone.
    """

    _start_tls_compatible = True

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node: str,
        protocol: asyncio.BaseProtocol | None,
        extra: Mapping[str, Any],
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__(dict(extra))
        self.node = node
        self.out: Wire
        self.back: Wire
        self._loop = loop
        self._protocol: Any = protocol
        self._on_lost = on_lost
        self._unsent = bytearray()
        self._untaken: deque[bytes] = deque()
        self._reading = True
        self._closing = False
        self._lost = False
        self._error: Any = None
        self._ended = False
        self._end_wanted = False
        self._protocol_paused = False
        self._high_bytes = _HIGH_WATER_BYTES
        self._low_bytes = _HIGH_WATER_BYTES // 4

    def __repr__(self) -> str:
        state = "closed" if self._lost else "closing" if self._closing else "open"
        return f"<VirtualTransport of {self.node} {state}>"

    @property
    def has_begun(self) -> bool:
        """Whether it has a protocol."""
        return self._protocol is not None

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Call a protocol from now on, also of what has come or happened already."""
        self._protocol = protocol
        self._note_encryption(protocol)
        protocol.connection_made(self)
        if self._lost:
            self._loop.call_soon(protocol.connection_lost, self._error)
        elif self._untaken:
            self._loop.call_soon(self._feed_untaken)

    # Writing.

    def write(self, data: Any) -> None:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data: a bytes-like object is needed, not {type(data).__name__!r}")
        if self._end_wanted:
            raise RuntimeError("write() after write_eof()")
        if self._closing or not data:
            return
        data = bytes(data)
        if not self._unsent and len(data) <= self.out.room_bytes:
            self.out.send(data)
            return
        self._unsent += data
        self.send_more()
        if len(self._unsent) > self._high_bytes and not self._protocol_paused:
            self._protocol_paused = True
            self._call(self._protocol.pause_writing)

    def write_eof(self) -> None:
        if not self._end_wanted:
            self._end_wanted = True
            self.send_more()

    def can_write_eof(self) -> bool:
        return True

    @property
    def has_more(self) -> bool:
        """Whether something waits for room on the wire."""
        return bool(self._unsent)

    def send_more(self) -> None:
        """Put on the wire what it has room for."""
        if self._lost:
            return
        if self._unsent and (room := self.out.room_bytes):
            self.out.send(bytes(self._unsent[:room]))
            del self._unsent[:room]
        if self._protocol_paused and len(self._unsent) <= self._low_bytes:
            self._protocol_paused = False
            self._call(self._protocol.resume_writing)
        if not self._unsent and (self._end_wanted or self._closing) and not self._ended:
            self._ended = True
            self.out.send(END)
            if self._closing:
                self._loop.call_soon(self._finish, None)

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not 0 <= low <= high:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high_bytes, self._low_bytes = high, low

    # Reading.

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if self._reading or self._closing:
            return
        self._reading = True
        self._loop.call_soon(self._feed_untaken)

    def receive(self, data: bytes) -> None:
        """Take what arrived."""
        if self._closing:
            if data:  # as a machine does that gets data for a socket that was closed
                self._break_other()
            return
        self._untaken.append(data)
        if self._reading and self._protocol is not None:
            self._feed_untaken()

    def _feed_untaken(self) -> None:
        while self._untaken and self._reading and not self._closing:
            data = self._untaken.popleft()
            if data == END:
                self._take_end()
            else:
                self.back.taken(len(data))
                self._call(self._feed, data)

    def _feed(self, data: bytes) -> None:
        if not isinstance(self._protocol, asyncio.BufferedProtocol):
            self._protocol.data_received(data)
            return
        while data and not self._closing:
            room: Any = self._protocol.get_buffer(len(data))
            count = min(len(room), len(data))
            if not count:
                raise RuntimeError("get_buffer() returned an empty buffer")
            room[:count] = data[:count]
            self._protocol.buffer_updated(count)
            data = data[count:]

    def _take_end(self) -> None:
        if not self._call(self._protocol.eof_received):
            self.close()

    # Its end.

    @property
    def is_lost(self) -> bool:
        """Whether its protocol was told that the connection is gone, or is about to be."""
        return self._lost

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._untaken.clear()
            if self._ended:
                self._loop.call_soon(self._finish, None)
            else:
                self.send_more()

    def abort(self) -> None:
        self._abort(None)

    def _force_close(self, error: BaseException | None) -> None:
        """What asyncio's TLS calls where a handshake fails."""
        self._abort(error)

    def lose(self, error: Exception) -> None:
        """Know that the connection is gone, without telling the other end."""
        if not self._lost:
            self._closing = True
            self._unsent.clear()
            self._loop.call_soon(self._finish, error)

    def _abort(self, error: BaseException | None) -> None:
        if not self._lost:
            self._closing = True
            self._unsent.clear()
            self._untaken.clear()
            if not self._ended:
                self._break_other()
            self._loop.call_soon(self._finish, error)

    def _break_other(self) -> None:
        self._ended = True
        self.out.send(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def _finish(self, error: BaseException | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._untaken.clear()
        self._error = error
        self._on_lost()
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._note_encryption(protocol)

    def _note_encryption(self, protocol: asyncio.BaseProtocol) -> None:
        """What TLS sends is encrypted by chance of its own, also where it begins later."""
        if isinstance(protocol, sslproto.SSLProtocol):
            self.out.is_secret = self.back.is_secret = True

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the protocol; if it raises, the connection breaks, as a selector's does."""
        try:
            return function(*arguments)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._loop.call_exception_handler(
                {
                    "message": f"{function.__qualname__} of a protocol failed",
                    "exception": error,
                    "transport": self,
                    "protocol": self._protocol,
                }
            )
            self._abort(error)
            return None
