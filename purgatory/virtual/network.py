"""The network of a virtual world: who reaches whom, how late, and what breaks.

Each end of a connection belongs to a node: a broker, whom ``World.node`` named, or "client". Faults
are between nodes.

    world.network.latency("0.2ms..2ms")
    world.network.bandwidth_bytes_per_s(10_000_000)
    world.network.loss(0.001)                      # one segment in a thousand breaks its connection
    with world.network.partition("client", "broker 1"):
        ...

Ground rules: only the world's own thread touches it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Self

from purgatory.settings.typed_duration import Duration
from purgatory.virtual.clocks import US_PER_S, WorldClock
from purgatory.virtual.errors import WorldError
from purgatory.virtual.history import History
from purgatory.virtual.sockets import Address, Ports, VirtualServer, VirtualSocket
from purgatory.virtual.transport import TimedLoop, VirtualTransport, Wire

ANY_HOST = "0.0.0.0"
HERE = "127.0.0.1"
_CONNECT_TIMEOUT_S = 127.0
"""How long Linux tries to reach a machine that does not answer."""

_LEAST_SEGMENT_BYTES = 1_460
_LONGEST_SEGMENT_S = 0.05
"""How long a segment keeps the sender busy at most, where the bandwidth is limited."""

NODE: ContextVar[str] = ContextVar("NODE", default="client")
"""To which node what runs belongs."""


class NetworkLoop(asyncio.AbstractEventLoop, TimedLoop):
    """The world's event loop, as its network knows it."""


class Partition:
    """Two groups of nodes that don't reach each other, until it ends; also a context manager."""

    def __init__(self, network: VirtualNetwork, cut: list[tuple[str, str]]) -> None:
        self._network = network
        self.cut = cut

    def end(self) -> None:
        """Let them reach each other. Again: no effect."""
        self._network.heal(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.end()


class Loss:
    """A time in which segments are lost, until it ends; also a context manager."""

    def __init__(self, losses: list[Loss], probability: float) -> None:
        self._losses = losses
        self.probability = probability

    def end(self) -> None:
        """Let them arrive. Again: no effect."""
        if self in self._losses:
            self._losses.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.end()


class VirtualNetwork:
    """Delays, breaks and carries connections.

    Args:
        clock: the world's.
        chance: decides delays and losses.
        history: takes down what arrives.
        plain: whether it stays simple, whatever it is told: each segment takes the middle of the
            times that it may take, none is lost, and any amount is carried.
    """

    def __init__(
        self, clock: WorldClock, chance: random.Random, history: History, plain: bool = False
    ) -> None:
        self.clock = clock
        self.history = history
        self.ports = Ports()
        self.loop: NetworkLoop
        self._chance = chance
        self._plain = plain
        self._delay_us = self._kept_delay_us(200, 2_000)
        self.us_per_byte = 0.0
        self.most_at_once_bytes: int | None = None
        self._loss = 0.0
        self._losses: list[Loss] = []
        self._names: dict[Address, str] = {}
        self._partitions: list[Partition] = []
        self._cut: dict[tuple[str, str], int] = {}
        self._wires: dict[int, tuple[Wire, Wire]] = {}
        self._made = 0
        self._waiting: list[Callable[[], None]] = []

    # How it is.

    def latency(self, text: str) -> None:
        """Say how long anything is on its way: "1ms", or any time within "0.2ms..2ms".

        Raises:
            ValueError: that is no duration.
        """
        low, dots, high = text.partition("..")
        low_us, high_us = Duration(low).us, Duration(high if dots else low).us
        if high_us < low_us:
            raise ValueError(f"latency {text!r}: the second duration is shorter than the first")
        self._delay_us = self._kept_delay_us(low_us, high_us)

    def _kept_delay_us(self, low_us: int, high_us: int) -> tuple[int, int]:
        middle_us = (low_us + high_us) // 2
        return (middle_us, middle_us) if self._plain else (low_us, high_us)

    def bandwidth_bytes_per_s(self, bytes_per_s: float | None) -> None:
        """Say how much each direction of a connection carries; None: any amount.

        Raises:
            ValueError: it is not above 0.
        """
        if bytes_per_s is not None and not bytes_per_s > 0:
            raise ValueError(f"bandwidth_bytes_per_s must be above 0, not {bytes_per_s!r}")
        is_limited = bytes_per_s is not None and not self._plain
        self.us_per_byte = US_PER_S / bytes_per_s if bytes_per_s and is_limited else 0.0
        # So that what is sent at once arrives bit by bit, as it does where a line is slow.
        self.most_at_once_bytes = (
            max(_LEAST_SEGMENT_BYTES, round(bytes_per_s * _LONGEST_SEGMENT_S))
            if bytes_per_s and is_limited
            else None
        )

    def loss(self, probability: float) -> None:
        """Say how probable it is that a segment breaks its connection.

        Raises:
            ValueError: it is not from 0 to 1.
        """
        _check_loss(probability)
        self._loss = 0.0 if self._plain else probability

    def __str__(self) -> str:
        low_us, high_us = self._delay_us
        dots = "" if low_us == high_us else f"..{high_us / 1_000:g}ms"
        limit = f", {US_PER_S / self.us_per_byte:,.0f} bytes/s" if self.us_per_byte else ""
        loss = f"{self._loss:.3%} of segments lost" if self._loss else "nothing lost"
        return f"latency {low_us / 1_000:g}ms{dots}{limit}, {loss}"

    # What goes wrong in it.

    @property
    def faults(self) -> Sequence[str]:
        """What goes wrong just now, beside what it loses always, in words."""
        cuts = [" ".join(f"{a}|{b}" for a, b in one.cut) for one in self._partitions]
        return [
            *(f"partition {cut}" for cut in cuts),
            *(f"{one.probability:.3%} of segments lost" for one in self._losses),
        ]

    def lose(self, probability: float) -> Loss:
        """Have segments break their connections, each as probably, until that ends.

        Where several are going on, and `loss` besides, the worst counts.

        Raises:
            ValueError: it is not from 0 to 1.
        """
        _check_loss(probability)
        loss = Loss(self._losses, probability)
        self._losses.append(loss)
        return loss

    def partition(self, one: str | Iterable[str], other: str | Iterable[str]) -> Partition:
        """Cut nodes off from others; what they send arrives when that ends."""
        cut = [(a, b) for a in _nodes(one) for b in _nodes(other)]
        partition = Partition(self, cut)
        self._partitions.append(partition)
        self.history.note("partition", " ".join(f"{a}|{b}" for a, b in cut))
        for pair in cut:
            self._cut[_pair(*pair)] = self._cut.get(_pair(*pair), 0) + 1
        return partition

    def heal(self, partition: Partition | None = None) -> None:
        """End a partition; by default all."""
        for one in [partition] if partition is not None else list(self._partitions):
            if one not in self._partitions:
                continue
            self._partitions.remove(one)
            self.history.note("heal", " ".join(f"{a}|{b}" for a, b in one.cut))
            for pair in one.cut:
                self._cut[_pair(*pair)] -= 1
        for wires in list(self._wires.values()):
            for wire in wires:
                if not self.is_cut(wire.source.node, wire.target.node):
                    wire.send_held()
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    def reset(self, one: str | None = None, other: str | None = None) -> int:
        """Break the connections between two nodes, of one, or all; return how many there were."""
        found = self._between(one, other)
        self.history.note("resets", f"{one} {other}: {len(found)}")
        for wires in found:
            for wire in wires:
                wire.source.lose(_reset_error())
                wire.die()
        return len(found)

    def forget(self, node: str, other: str | None = None) -> int:
        """Have a node lose its connections without telling the other ends: they stay half open.

        So it is after a machine lost its power, or a firewall its table. Returns how many there
        were.
        """
        found = self._between(node, other)
        self.history.note("forgets", f"{node} {other}: {len(found)}")
        for wires in found:
            for wire in wires:
                wire.die()
                if wire.source.node == node:
                    wire.source.lose(_reset_error())
        return len(found)

    def end(self) -> None:
        """Break every connection: the world ends."""
        for wires in list(self._wires.values()):
            for wire in wires:
                wire.die()
                wire.source.lose(_reset_error())

    def name(self, address: Address, node: str) -> None:
        """Say which node listens at an address."""
        self._names[address] = node

    # What wires ask.

    def delay_us(self) -> int:
        """Return how long the next segment is on its way."""
        low_us, high_us = self._delay_us
        if low_us == high_us:
            return low_us
        # As `randint` draws it, without its four calls: a request takes two of these.
        width = high_us - low_us + 1
        bits = width.bit_length()
        drawn = self._chance.getrandbits(bits)
        while drawn >= width:
            drawn = self._chance.getrandbits(bits)
        return low_us + drawn

    def is_lost(self) -> bool:
        """Whether the next segment breaks its connection."""
        loss = self._loss
        if self._losses:
            loss = max(loss, *(one.probability for one in self._losses))
        return loss > 0 and self._chance.random() < loss

    def is_cut(self, one: str, other: str) -> bool:
        """Whether two nodes don't reach each other."""
        return bool(self._partitions) and self._cut.get(_pair(one, other), 0) > 0

    # What the loop asks.

    def listens(self, address: Address) -> None:
        """Record that who just runs listens at an address."""
        self._names.setdefault(address, NODE.get())

    async def connect(self, address: Address, of: Callable[..., Any]) -> VirtualTransport:
        """Connect; the end that is returned has yet to `begin`.

        Args:
            address: to which.
            of: makes the protocol of the other end, given the server.

        Raises:
            OSError: nobody listens there, or it was not reached in time.
        """
        client, server_name = NODE.get(), self._name_at(address)
        label = f"{client} > {server_name}"
        self.history.note("connect", label)
        until_us = self.clock.now_us + round(_CONNECT_TIMEOUT_S * US_PER_S)
        while self.is_cut(client, server_name):
            await self._healed(until_us)
            if self.clock.now_us >= until_us:
                raise TimeoutError(errno.ETIMEDOUT, f"{os.strerror(errno.ETIMEDOUT)}: {address}")
        await asyncio.sleep(self.delay_us() / US_PER_S)
        server = self._server_at(address)
        if server is None or not server.accepts:
            await asyncio.sleep(self.delay_us() / US_PER_S)
            self.history.note("refused", label)
            raise ConnectionRefusedError(
                errno.ECONNREFUSED, f"{os.strerror(errno.ECONNREFUSED)}: {address}"
            )
        ours = self._join(address, server, of(server), client, server_name)
        try:
            await asyncio.sleep(self.delay_us() / US_PER_S)
        except BaseException:
            ours.abort()
            raise
        self.history.note("connected", label)
        return ours

    def _join(
        self,
        address: Address,
        server: VirtualServer,
        served: asyncio.BaseProtocol,
        client: str,
        server_name: str,
    ) -> VirtualTransport:
        """Make both ends of a connection, and tell the server."""
        number = self._made = self._made + 1

        def drop() -> None:
            if theirs.is_lost:
                server.remove(theirs)
                if ours.is_lost:
                    self._wires.pop(number, None)

        from_address = (address_of(client), self.ports.any_port())
        ours = VirtualTransport(
            self.loop,
            client,
            None,
            self._extra(from_address, address),
            drop,
        )
        theirs = VirtualTransport(
            self.loop,
            server_name,
            served,
            self._extra(address, from_address),
            drop,
        )
        server.add(theirs)
        there = Wire(self, f"{client}:{from_address[1]} > {server_name}", ours, theirs)
        back = Wire(self, f"{server_name} > {client}:{from_address[1]}", theirs, ours)
        there.is_secret = back.is_secret = server.tls is not None
        ours.out = theirs.back = there
        ours.back = theirs.out = back
        self._wires[number] = (there, back)
        self.loop.call_soon(served.connection_made, theirs)
        return ours

    def _extra(self, own: Address, peer: Address) -> dict[str, Any]:
        stands_for = VirtualSocket(self.ports, address=own, peer=peer)
        return {"peername": peer, "sockname": own, "socket": stands_for}

    async def _healed(self, until_us: int) -> None:
        healed = self.loop.create_future()

        def go_on() -> None:
            if not healed.done():
                healed.set_result(None)

        self._waiting.append(go_on)
        self.loop.call_at_us(until_us, go_on)
        await healed

    def _server_at(self, address: Address) -> VirtualServer | None:
        found = self.ports.owner(address) or self.ports.owner((ANY_HOST, address[1]))
        return found if isinstance(found, VirtualServer) else None

    def _name_at(self, address: Address) -> str:
        return self._names.get(address) or self._names.get((ANY_HOST, address[1])) or address[0]

    def _between(self, one: str | None, other: str | None) -> list[tuple[Wire, Wire]]:
        return [
            wires
            for wires in self._wires.values()
            if {one, other} - {None} <= {wires[0].source.node, wires[0].target.node}
        ]


def _check_loss(probability: float) -> None:
    if not 0 <= probability <= 1:
        raise ValueError(f"loss must be from 0 to 1, not {probability!r}")


def address_of(name: str) -> str:
    """Return the address of a machine by its name, the same in all worlds."""
    if name in ("client", "localhost", ""):
        return HERE
    if all(part.isdecimal() for part in name.split(".")) or ":" in name:
        return name
    number = int.from_bytes(name.encode(), "big") % 0xFFFFFF
    return f"10.{number >> 16}.{number >> 8 & 0xFF}.{number & 0xFF}"


def _nodes(names: str | Iterable[str]) -> list[str]:
    found = [names] if isinstance(names, str) else list(names)
    if not found:
        raise WorldError("a partition is between nodes, and none were named")
    return found


def _pair(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one <= other else (other, one)


def _reset_error() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
