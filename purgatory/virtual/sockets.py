"""Servers and sockets of a world: addresses in use, and their owners.

The event loop makes connections, whose bytes never pass through a socket. But programs bind sockets
to find a free port, and read a server's addresses and a transport's options.

Ground rules: only the world's own thread touches it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import sys
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, NoReturn, Self

from purgatory.virtual.errors import SandboxError
from purgatory.virtual.transport import VirtualTransport

Address = tuple[str, int]
_FIRST_PORT = 20_000
_LAST_PORT = 65_535


class Ports:
    """The addresses in use."""

    def __init__(self) -> None:
        self._bound: dict[Address, object] = {}
        self._next = _FIRST_PORT

    def bind(self, address: Address, by: object) -> Address:
        """Take an address; port 0 is any free port.

        Raises:
            OSError: the address is taken.
        """
        host, port = address
        if port == 0:
            port = self.any_port()
        if (host, port) in self._bound:
            raise OSError(errno.EADDRINUSE, f"{os.strerror(errno.EADDRINUSE)}: {host}:{port}")
        self._bound[host, port] = by
        return host, port

    def release(self, address: Address, by: object) -> None:
        """Release an address. No effect if it has another owner."""
        if self._bound.get(address) is by:
            del self._bound[address]

    def owner(self, address: Address) -> object:
        """Return the owner of an address, or None."""
        return self._bound.get(address)

    def any_port(self) -> int:
        """Return a port that has not been used recently."""
        self._next = self._next + 1 if self._next < _LAST_PORT else _FIRST_PORT
        return self._next


class VirtualSocket:
    """A socket of the world, which only holds an address.

    Args:
        ports: the world's ports.
        family, kind, protocol: those of a socket.
        address: its address, if it is bound.
        peer: the address to which it is connected, if any.
        on_removed: called when a loop must no longer check whether the socket is readable.
    """

    def __init__(
        self,
        ports: Ports,
        family: int = socket.AF_INET,
        kind: int = socket.SOCK_STREAM,
        protocol: int = 0,
        address: Address = ("0.0.0.0", 0),
        peer: Address | None = None,
        on_removed: Callable[[], None] | None = None,
    ) -> None:
        self.family = family
        self.type = kind
        self.proto = protocol
        self.on_removed = on_removed
        self._ports = ports
        self._address = address
        self._peer = peer
        self._options: dict[tuple[int, int], Any] = {}
        self._connection: Any = None

    def set_connection(self, connection: Any, address: Address, peer: Address) -> None:
        """Store a connection until `claim_connection`."""
        self._connection, self._address, self._peer = connection, address, peer

    def claim_connection(self) -> Any:
        """Return the socket's connection at the first call, then None."""
        connection, self._connection = self._connection, None
        return connection

    def bind(self, address: Any) -> None:
        """Take an address; port 0 is any free port.

        Raises:
            OSError: the address is taken.
        """
        self._address = self._ports.bind((address[0] or "0.0.0.0", address[1]), self)

    def getsockname(self) -> Address:
        """Return its address."""
        return self._address

    def getpeername(self) -> Address:
        """Return the address to which it is connected.

        Raises:
            OSError: the socket is not connected.
        """
        if self._peer is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self._peer

    def setsockopt(self, level: int, option: int, value: Any, *more: Any) -> None:
        """Store an option, which has no effect."""
        self._options[level, option] = value

    def getsockopt(self, level: int, option: int, *more: Any) -> Any:
        """Return a stored option."""
        return self._options.get((level, option), 0)

    def setblocking(self, flag: bool) -> None:
        """Have no effect."""

    def settimeout(self, value: float | None) -> None:
        """Have no effect."""

    def gettimeout(self) -> float | None:
        """Return 0: the socket never blocks."""
        return 0.0

    def set_inheritable(self, flag: bool) -> None:
        """Have no effect."""

    def listen(self, backlog: int = 0) -> None:
        """Have no effect: an event loop's server listens."""

    def fileno(self) -> int:
        """Return -1, as the system does not know the socket."""
        return -1

    def close(self) -> None:
        """Release its address, and a held connection."""
        if self._connection is not None:
            self.claim_connection().close()
        self._ports.release(self._address, self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") or not hasattr(socket.SocketType, name):
            raise AttributeError(f"a socket of a virtual world has no {name!r}")
        raise SandboxError(
            f"socket.{name}() in a virtual world: a socket there only holds an address. Use "
            "asyncio's open_connection and start_server, or create_connection and create_server"
        )


_WAITS_FOR_CONNECTIONS = sys.version_info >= (3, 12, 1)


class VirtualServer(asyncio.AbstractServer):
    """Listens at some addresses.

    Args:
        addresses: its addresses, which are bound in ``ports``.
        protocol_factory: makes the protocol of a connection.
        timeouts_s: the timeouts of TLS for the handshake and the shutdown; None: asyncio's.
        process: the `HostProcess` that listens, if any.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ports: Ports,
        addresses: list[Address],
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        timeouts_s: tuple[float | None, float | None],
        process: object = None,
    ) -> None:
        self.protocol_factory = protocol_factory
        self.tls = tls
        self.timeouts_s = timeouts_s
        self.accepts = False
        self.context = copy_context()
        """The context in which the protocols of its connections are called."""
        self.process = process
        self._loop = loop
        self._ports = ports
        self._addresses = addresses
        self._closed = False
        self._connections: dict[int, VirtualTransport] = {}
        self._close_waiters: list[asyncio.Future[None]] = []
        self._serving_forever: asyncio.Future[None] | None = None

    @property
    def sockets(self) -> tuple[Any, ...]:
        """Its virtual sockets; none once the server is closed."""
        if self._closed:
            return ()
        return tuple(
            VirtualSocket(self._ports, address=address, on_removed=self._stop_accepting)
            for address in self._addresses
        )

    def add(self, transport: VirtualTransport) -> None:
        """Add a connection."""
        self._connections[id(transport)] = transport

    def remove(self, transport: VirtualTransport) -> None:
        """Remove a connection."""
        self._connections.pop(id(transport), None)
        self._notify_if_closed()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return self.accepts

    async def start_serving(self) -> None:
        if not self._closed:
            self.accepts = True
        await asyncio.sleep(0)

    async def serve_forever(self) -> None:
        if self._serving_forever is not None:
            raise RuntimeError(f"server {self!r} is already being awaited on serve_forever()")
        if self._closed:
            raise RuntimeError(f"server {self!r} is closed")
        self.accepts = True
        self._serving_forever = self._loop.create_future()
        try:
            await self._serving_forever
        except asyncio.CancelledError:
            self.close()
            await self.wait_closed()
            raise
        finally:
            self._serving_forever = None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.accepts = False
        for address in self._addresses:
            self._ports.release(address, self)
        if self._serving_forever is not None and not self._serving_forever.done():
            self._serving_forever.cancel()
        self._notify_if_closed()

    def close_clients(self) -> None:
        """Close all connections."""
        for transport in list(self._connections.values()):
            transport.close()

    def abort_clients(self) -> None:
        """Abort all connections."""
        for transport in list(self._connections.values()):
            transport.abort()

    async def wait_closed(self) -> None:
        if self._closed and not (self._connections and _WAITS_FOR_CONNECTIONS):
            return
        waiter = self._loop.create_future()
        self._close_waiters.append(waiter)
        await waiter

    def _stop_accepting(self) -> None:
        self.accepts = False

    def _notify_if_closed(self) -> None:
        if self._closed and not self._connections:
            waiting, self._close_waiters = self._close_waiters, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)
