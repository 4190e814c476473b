"""The network of a virtual world: latency, bandwidth, losses and partitions.

Each end of a connection belongs to a node: a broker, a name set by ``World.node``, or "client".
Faults are between nodes.

    world.network.latency("0.2ms..2ms")
    world.network.bandwidth_bytes_per_s(10_000_000)
    world.network.loss(0.001)                      # one segment in a thousand breaks its connection
    world.network.link("billing", "broker 1").latency("80ms")
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
from contextvars import ContextVar, copy_context
from datetime import timedelta
from functools import lru_cache
from typing import Any, Self

from purgatory.settings.typed_duration import Duration
from purgatory.virtual.clocks import US_PER_S, WorldClock
from purgatory.virtual.errors import WorldError
from purgatory.virtual.history import History
from purgatory.virtual.sockets import Address, Ports, VirtualServer, VirtualSocket
from purgatory.virtual.transport import TimedLoop, VirtualTransport, Wire

ANY_HOST = "0.0.0.0"
LOCALHOST = "127.0.0.1"
_CONNECT_TIMEOUT_S = 127.0
"""The time for which Linux tries to connect to a machine that does not respond."""

_MIN_SEGMENT_BYTES = 1_460
_MAX_SEGMENT_S = 0.05
"""The maximal time to send a segment, if the bandwidth is limited."""

NODE: ContextVar[str] = ContextVar("NODE", default="client")
"""The node of the current task."""


class NetworkLoop(asyncio.AbstractEventLoop, TimedLoop):
    """The world's event loop, as its network uses it."""


class Partition:
    """Two groups of nodes that can't reach each other, until its `end`; also a context manager."""

    def __init__(self, network: VirtualNetwork, cut: list[tuple[str, str]]) -> None:
        self._network = network
        self.cut = cut

    def __repr__(self) -> str:
        state = "" if self in self._network._partitions else " ended"
        return f"<{type(self).__name__} {' '.join(f'{a}|{b}' for a, b in self.cut)}{state}>"

    def end(self) -> None:
        """End the partition. Idempotent."""
        self._network.heal(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()


class Loss:
    """A period in which segments are lost, until its `end`; also a context manager."""

    def __init__(self, losses: list[Loss], probability: float) -> None:
        self._losses = losses
        self.probability = probability

    def end(self) -> None:
        """End the loss. Idempotent."""
        if self in self._losses:
            self._losses.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()


class Link:
    """Latency, bandwidth and losses between two nodes, or of the whole network.

    Args:
        rng: decides delays and losses.
        plain: the ``plain_network`` of the `World`.
        network: has the settings that the link lacks; None: the link is the network's own.
    """

    def __init__(self, rng: random.Random, plain: bool, network: Link | None = None) -> None:
        self._rng = rng
        self._plain = plain
        self._network = network
        self._delay_us: tuple[int, int] | None = None
        self._us_per_byte: float | None = None
        self._loss: float | None = None
        self._losses: list[Loss] = [] if network is None else network._losses

    # Settings.

    def latency(self, text: str | timedelta) -> None:
        """Set the delay of segments: "1ms", a timedelta, or a range such as "0.2ms..2ms".

        Raises:
            ValueError: the text is malformed.
        """
        low_us, high_us = _range_us(str(Duration(text)) if isinstance(text, timedelta) else text)
        middle_us = (low_us + high_us) // 2
        self._delay_us = (middle_us, middle_us) if self._plain else (low_us, high_us)

    def bandwidth_bytes_per_s(self, bytes_per_s: float | None) -> None:
        """Set the bandwidth of each direction of a connection; None: unlimited.

        Raises:
            ValueError: the bandwidth is not above 0.
        """
        if bytes_per_s is not None and not bytes_per_s > 0:
            raise ValueError(f"bandwidth_bytes_per_s must be above 0, not {bytes_per_s!r}")
        is_limited = bytes_per_s is not None and not self._plain
        self._us_per_byte = US_PER_S / bytes_per_s if bytes_per_s and is_limited else 0.0

    def loss(self, probability: float) -> None:
        """Set the probability that a segment is lost, which breaks its connection.

        Raises:
            ValueError: it is not from 0 to 1.
        """
        _check_loss(probability)
        self._loss = 0.0 if self._plain else probability

    def __str__(self) -> str:
        texts = []
        if self._delay_us is not None:
            low_us, high_us = self._delay_us
            dots = "" if low_us == high_us else f"..{high_us / 1_000:g}ms"
            texts.append(f"latency {low_us / 1_000:g}ms{dots}")
        if self._us_per_byte:
            texts.append(f"{US_PER_S / self._us_per_byte:,.0f} bytes/s")
        if self._loss is not None:
            lost = f"{self._loss:.3%} of segments" if self._loss else "nothing"
            texts.append(f"{lost} lost")
        return ", ".join(texts)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    # Methods for wires.

    @property
    def us_per_byte(self) -> float:
        """The microseconds that a byte takes; 0.0: unlimited bandwidth."""
        if self._us_per_byte is None:
            return 0.0 if self._network is None else self._network.us_per_byte
        return self._us_per_byte

    @property
    def max_segment_bytes(self) -> int | None:
        """The maximal segment, so that a large write arrives in parts; None: the whole window."""
        us_per_byte = self.us_per_byte
        if not us_per_byte:
            return None
        return max(_MIN_SEGMENT_BYTES, round(US_PER_S / us_per_byte * _MAX_SEGMENT_S))

    def delay_us(self) -> int:
        """Draw the delay of the next segment."""
        if self._delay_us is None:
            assert self._network is not None
            return self._network.delay_us()
        low_us, high_us = self._delay_us
        if low_us == high_us:
            return low_us
        # The same draw as `randint`, without its four calls: a request draws two delays.
        width = high_us - low_us + 1
        bits = width.bit_length()
        drawn = self._rng.getrandbits(bits)
        while drawn >= width:
            drawn = self._rng.getrandbits(bits)
        return low_us + drawn

    def is_lost(self) -> bool:
        """Draw whether the next segment is lost."""
        loss = self._loss
        if loss is None:
            loss = 0.0 if self._network is None else self._network._loss or 0.0
        if self._losses:
            loss = max(loss, *(active.probability for active in self._losses))
        return loss > 0 and self._rng.random() < loss


class VirtualNetwork(Link):
    """Delays, breaks and carries connections.

    Args:
        rng: decides delays and losses.
        history: records arrivals.
        plain: the ``plain_network`` of the `World`.
    """

    def __init__(
        self, clock: WorldClock, rng: random.Random, history: History, plain: bool = False
    ) -> None:
        super().__init__(rng, plain)
        self.latency("0.2ms..2ms")
        self.bandwidth_bytes_per_s(None)
        self.loss(0.0)
        self.clock = clock
        self.history = history
        self.ports = Ports()
        self.loop: NetworkLoop
        self.wire_kind: Callable[..., Wire] = Wire
        self._links: dict[tuple[str, str], Link] = {}
        self._names: dict[Address, str] = {}
        self._partitions: list[Partition] = []
        self._cut: dict[tuple[str, str], int] = {}
        self._wires: dict[int, tuple[Wire, Wire]] = {}
        self._connection_count = 0
        self._waiting: list[Callable[[], None]] = []
        self._servers: list[VirtualServer] = []

    def link(self, first: str, second: str) -> Link:
        """Return the link between two nodes, in both directions.

        Its settings take precedence over those of the network, which apply to the rest.
        """
        link = self._links.get(_link_key(first, second))
        if link is None:
            link = self._links[_link_key(first, second)] = Link(self._rng, self._plain, self)
        return link

    def __str__(self) -> str:
        links = [f"{a}|{b}: {link}" for (a, b), link in self._links.items() if str(link)]
        return "; ".join([super().__str__(), *links])

    # Faults.

    @property
    def faults(self) -> Sequence[str]:
        """The active faults as texts, without the base `loss`."""
        cuts = [_cut_text(fault.cut) for fault in self._partitions]
        return [
            *(f"partition {cut}" for cut in cuts),
            *(f"{fault.probability:.3%} of segments lost" for fault in self._losses),
        ]

    def lose(self, probability: float) -> Loss:
        """Lose segments with this probability until the returned loss ends.

        The highest probability of all active losses and `loss` applies.

        Raises:
            ValueError: it is not from 0 to 1.
        """
        _check_loss(probability)
        loss = Loss(self._losses, probability)
        self._losses.append(loss)
        return loss

    def partition(self, first: str | Iterable[str], second: str | Iterable[str]) -> Partition:
        """Separate nodes from others; their segments arrive when the partition ends."""
        cut = [(a, b) for a in _nodes(first) for b in _nodes(second)]
        partition = Partition(self, cut)
        self._partitions.append(partition)
        self.history.record("partition", _cut_text(cut))
        for pair in cut:
            self._cut[_link_key(*pair)] = self._cut.get(_link_key(*pair), 0) + 1
        return partition

    def heal(self, partition: Partition | None = None) -> None:
        """End a partition; by default, all."""
        for healed in [partition] if partition is not None else list(self._partitions):
            if healed not in self._partitions:
                continue
            self._partitions.remove(healed)
            self.history.record("heal", _cut_text(healed.cut))
            for pair in healed.cut:
                self._cut[_link_key(*pair)] -= 1
        for wires in list(self._wires.values()):
            for wire in wires:
                if not self.is_cut(wire.source.node, wire.target.node):
                    wire.send_held()
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume()

    def reset(self, first: str | None = None, second: str | None = None) -> int:
        """Reset the connections between two nodes, of one, or all; return their number."""
        found = self._connections_between(first, second)
        self.history.record("resets", f"{first} {second}: {len(found)}")
        for wires in found.values():
            for wire in wires:
                wire.source.mark_lost(_reset_error())
                wire.cut()
        return len(found)

    def forget(self, node: str, other: str | None = None) -> int:
        """Drop a node's connections without notice to the other ends, which stay half open.

        A machine does this by losing power, or a firewall by losing its table. Returns their
        number.
        """
        found = self._connections_between(node, other)
        self.history.record("forgets", f"{node} {other}: {len(found)}")
        for wires in found.values():
            for wire in wires:
                wire.cut()
                if wire.source.node == node:
                    wire.source.mark_lost(_reset_error())
        return len(found)

    def end_process(self, node: str, process: object) -> None:
        """Close a dead process's servers, and reset its connections.

        The other end of a connection behind a partition sees the reset when the partition ends.
        """
        for server in [server for server in self._servers if server.process is process]:
            self._servers.remove(server)
            server.close()
        found = self._connections_between(node, None)
        self.history.record("resets", f"{node} None: {len(found)}")
        for number, wires in found.items():
            is_cut = self.is_cut(wires[0].source.node, wires[0].target.node)
            for wire in wires:
                is_own = wire.source.node == node
                if is_own or not is_cut:
                    wire.source.mark_lost(_reset_error())
                if is_own and is_cut:
                    wire.drop()
                    wire.send(_reset_error())
                else:
                    wire.cut()
                if is_own:
                    wire.source.end()
            if not is_cut:
                del self._wires[number]  # the dead end calls no `drop`

    def end(self) -> None:
        """Break all connections, at the end of the world."""
        for wires in list(self._wires.values()):
            for wire in wires:
                wire.cut()
                wire.source.mark_lost(_reset_error())

    def clear(self) -> None:
        """Forget the connections of dead processes, which stay unclosed."""
        self._wires.clear()
        self._servers.clear()

    def name(self, address: Address, node: str) -> None:
        """Set the node of an address."""
        self._names[address] = node

    # Methods for wires.

    def link_between(self, first: str, second: str) -> Link:
        """Return the settings that apply between two nodes."""
        return self._links.get(_link_key(first, second), self) if self._links else self

    def is_cut(self, first: str, second: str) -> bool:
        """Whether two nodes can't reach each other."""
        return bool(self._partitions) and self._cut.get(_link_key(first, second), 0) > 0

    # Methods for the loop.

    def record_listener(self, address: Address, server: VirtualServer) -> None:
        """Record that the current node listens at an address."""
        if server.process is None:
            self._names.setdefault(address, NODE.get())
        else:
            self._names[address] = NODE.get()
            self._servers.append(server)

    async def connect(
        self, address: Address, protocol_factory: Callable[..., Any]
    ) -> VirtualTransport:
        """Connect; the caller has to `begin` the returned end.

        Args:
            protocol_factory: makes the protocol of the server's end.

        Raises:
            OSError: no server listens there, or it can't be reached in time.
        """
        client, server_name = NODE.get(), self._name_at(address)
        label = f"{client} > {server_name}"
        self.history.record("connect", label)
        until_us = self.clock.now_us + round(_CONNECT_TIMEOUT_S * US_PER_S)
        await self._cross(client, server_name, address, until_us)
        server = self._server_at(address)
        if server is None or not server.accepts:
            await self._cross(client, server_name, address, until_us)
            self.history.record("refused", label)
            raise ConnectionRefusedError(
                errno.ECONNREFUSED, f"{os.strerror(errno.ECONNREFUSED)}: {address}"
            )
        try:
            served = server.context.run(protocol_factory, server)
        except Exception as error:
            message = "Error on transport creation for incoming connection"
            context = {"message": message, "exception": error, "server": server}
            server.context.run(self.loop.call_exception_handler, context)
            raise _reset_error() from None
        client_end = self._join(address, server, served, client, server_name)
        try:
            await self._cross(client, server_name, address, until_us)
        except BaseException:
            client_end.abort()
            raise
        self.history.record("connected", label)
        return client_end

    def _join(
        self,
        address: Address,
        server: VirtualServer,
        served: asyncio.BaseProtocol,
        client: str,
        server_name: str,
    ) -> VirtualTransport:
        """Make both ends of a connection, and add it to the server."""
        number = self._connection_count = self._connection_count + 1

        def drop() -> None:
            if server_end.is_lost:
                server.remove(server_end)
                if client_end.is_lost:
                    self._wires.pop(number, None)

        from_address = (host_address(client), self.ports.any_port())
        client_end = VirtualTransport(
            self.loop,
            client,
            None,
            self._extra(from_address, address),
            drop,
            copy_context(),
        )
        server_end = VirtualTransport(
            self.loop,
            server_name,
            served,
            self._extra(address, from_address),
            drop,
            server.context,
        )
        server.add(server_end)
        outgoing = self.wire_kind(
            self, f"{client}:{from_address[1]} > {server_name}", client_end, server_end
        )
        incoming = self.wire_kind(
            self, f"{server_name} > {client}:{from_address[1]}", server_end, client_end
        )
        outgoing.is_encrypted = incoming.is_encrypted = server.tls is not None
        client_end.number, server_end.number = 2 * number, 2 * number + 1
        client_end.outgoing = server_end.incoming = outgoing
        client_end.incoming = server_end.outgoing = incoming
        self._wires[number] = (outgoing, incoming)
        self.loop.call_soon(served.connection_made, server_end, context=server.context)
        return client_end

    def _extra(self, own: Address, peer: Address) -> dict[str, Any]:
        socket = VirtualSocket(self.ports, address=own, peer=peer)
        return {"peername": peer, "sockname": own, "socket": socket}

    async def _cross(self, client: str, server: str, address: Address, until_us: int) -> None:
        """Take a segment's time between two nodes; a segment that a partition stops is sent again.

        Raises:
            TimeoutError: the partition lasts too long.
        """
        while True:
            while self.is_cut(client, server):
                await self._wait_until_healed(until_us)
                if self.clock.now_us >= until_us:
                    text = f"{os.strerror(errno.ETIMEDOUT)}: {address}"
                    raise TimeoutError(errno.ETIMEDOUT, text)
            await asyncio.sleep(self.link_between(client, server).delay_us() / US_PER_S)
            if not self.is_cut(client, server):
                return

    async def _wait_until_healed(self, until_us: int) -> None:
        healed = self.loop.create_future()

        def resume() -> None:
            if not healed.done():
                healed.set_result(None)

        self._waiting.append(resume)
        self.loop.call_at_us(until_us, resume)
        await healed

    def _server_at(self, address: Address) -> VirtualServer | None:
        found = self.ports.owner(address) or self.ports.owner((ANY_HOST, address[1]))
        return found if isinstance(found, VirtualServer) else None

    def _name_at(self, address: Address) -> str:
        return self._names.get(address) or self._names.get((ANY_HOST, address[1])) or address[0]

    def _connections_between(
        self, first: str | None, second: str | None
    ) -> dict[int, tuple[Wire, Wire]]:
        return {
            number: wires
            for number, wires in self._wires.items()
            if {first, second} - {None} <= {wires[0].source.node, wires[0].target.node}
        }


@lru_cache(maxsize=1_000)
def _range_us(text: str) -> tuple[int, int]:
    low, dots, high = text.partition("..")
    low_us, high_us = Duration(low).us, Duration(high if dots else low).us
    if high_us < low_us:
        raise ValueError(f"latency {text!r}: the second duration is shorter than the first")
    return low_us, high_us


def _check_loss(probability: float) -> None:
    if not 0 <= probability <= 1:
        raise ValueError(f"loss must be from 0 to 1, not {probability!r}")


def host_address(name: str) -> str:
    """Return the address of a machine by its name, the same in all worlds."""
    if name in ("client", "localhost", ""):
        return LOCALHOST
    if all(part.isdecimal() for part in name.split(".")) or ":" in name:
        return name
    number = int.from_bytes(name.encode(), "big") % 0xFFFFFF
    return f"10.{number >> 16}.{number >> 8 & 0xFF}.{number & 0xFF}"


def _cut_text(cut: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{a}|{b}" for a, b in cut)


def partition_nodes(text: str) -> Sequence[str]:
    """Return the nodes of a partition by the text of its event."""
    return list(dict.fromkeys(node for pair in text.split(", ") for node in pair.split("|")))


def _nodes(names: str | Iterable[str]) -> list[str]:
    found = [names] if isinstance(names, str) else list(names)
    if not found:
        raise WorldError("a partition is between nodes, and none were named")
    return found


def _link_key(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first <= second else (second, first)


def _reset_error() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
