"""The part of a world's event loop that connects, and the patched module ``socket``.

Ground rules
------------
* Only the thread that entered the world touches it, and sees the patched module. Others, and
  whoever kept a reference when the world ended, get the system's.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio import base_events, events, runners, sslproto
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Any, Final, NoReturn

from purgatory.virtual.errors import LeavingWorldError
from purgatory.virtual.network import ANY_HOST, HERE, NODE, NetworkLoop, VirtualNetwork, address_of
from purgatory.virtual.sockets import Address, Ports, VirtualServer, VirtualSocket
from purgatory.virtual.transport import VirtualTransport

_CONNECT: Final = "connect and listen by create_connection and create_server"

_REFUSED: Final = {
    "add_reader": _CONNECT,
    "add_writer": _CONNECT,
    "connect_accepted_socket": _CONNECT,
    "connect_read_pipe": "a pipe is the system's; two StreamReaders are fed by any coroutine",
    "connect_write_pipe": "a pipe is the system's; two StreamReaders are fed by any coroutine",
    "create_datagram_endpoint": f"a world has no datagrams; {_CONNECT}",
    "create_unix_connection": f"a world has no Unix sockets; {_CONNECT}",
    "create_unix_server": f"a world has no Unix sockets; {_CONNECT}",
    "sock_accept": _CONNECT,
    "sock_sendfile": _CONNECT,
    "sock_recv": _CONNECT,
    "sock_recv_into": _CONNECT,
    "sock_recvfrom": _CONNECT,
    "sock_recvfrom_into": _CONNECT,
    "sock_sendall": _CONNECT,
    "sock_sendto": _CONNECT,
    "subprocess_exec": "run the process's work as a coroutine in the world",
    "subprocess_shell": "run the process's work as a coroutine in the world",
}


class _NoSendfileError(LeavingWorldError, NotImplementedError):
    """What is done where a loop has no ``sendfile`` is to be done."""


class ConnectingLoop(base_events.BaseEventLoop, NetworkLoop):
    """asyncio's event loop, of which connections are within a world."""

    network: VirtualNetwork

    async def getaddrinfo(self, host: Any, port: Any, **hints: Any) -> Any:
        return resolved(host, port, hints.get("type", 0))

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> tuple[str, str]:
        return str(sockaddr[0]), str(sockaddr[1])

    async def create_connection(
        self,
        protocol_factory: Callable[[], Any],
        host: Any = None,
        port: Any = None,
        *,
        ssl: Any = None,
        sock: Any = None,
        server_hostname: str | None = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
        **ignored: Any,
    ) -> tuple[Any, Any]:
        """Connect within the world.

        Raises:
            OSError: nobody listens there, or it was not reached.
            LeavingWorldError: a socket was given that `sock_connect` did not connect.
        """
        if sock is not None and (host is not None or port is not None):
            raise ValueError("host/port and sock can not be specified at the same time")
        if sock is None and (host is None or port is None):
            raise ValueError("host and port were not specified and no sock specified")
        if server_hostname is not None and not ssl:
            raise ValueError("server_hostname is only meaningful with ssl")
        if ssl and host is None and server_hostname is None:
            raise ValueError("You must set server_hostname when using ssl without a host")
        raw = await self._connected(host, port) if sock is None else _connected_by(sock)
        protocol = protocol_factory()
        if not ssl:
            raw.begin(protocol)
            return raw, protocol
        waiter = self.create_future()
        timeouts_s = (ssl_handshake_timeout, ssl_shutdown_timeout)
        name = _text(host) if server_hostname is None else server_hostname
        encrypted = self._encrypted(protocol, ssl, waiter, timeouts_s, name, is_server=False)
        raw.begin(encrypted)
        try:
            await waiter
        except BaseException:
            raw.close()
            raise
        return encrypted._app_transport, protocol

    async def _connected(self, host: Any, port: Any) -> VirtualTransport:
        return await self.network.connect((address_of(_text(host)), int(port)), self._served)

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """Connect what stands for a socket, for ``create_connection(sock=...)``.

        Raises:
            OSError: nobody listens there, or it was not reached.
            LeavingWorldError: a real socket was given.
        """
        if not isinstance(sock, VirtualSocket):
            raise LeavingWorldError(f"loop.sock_connect() of a socket of the system: {_CONNECT}")
        transport = await self._connected(address[0], address[1])
        sock.connected(transport, transport.get_extra_info("sockname"), address[:2])

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], Any],
        host: Any = None,
        port: Any = None,
        *,
        sock: Any = None,
        ssl: Any = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
        start_serving: bool = True,
        **ignored: Any,
    ) -> VirtualServer:
        """Listen within the world.

        Raises:
            OSError: an address is taken.
        """
        if sock is not None:
            sock.close()
            (host, port) = sock.getsockname()
        hosts = [host] if host is None or isinstance(host, (str, bytes)) else list(host)
        timeouts_s = (ssl_handshake_timeout, ssl_shutdown_timeout)
        addresses: list[Address] = []
        server = VirtualServer(
            self, self.network.ports, addresses, protocol_factory, ssl, timeouts_s
        )
        for one in hosts:
            wanted = ANY_HOST if one in (None, "", b"") else address_of(_text(one))
            address = self.network.ports.take((wanted, int(port or 0)), server)
            addresses.append(address)
            self.network.listens(address)
        if start_serving:
            await server.start_serving()
        return server

    def _served(self, server: VirtualServer) -> asyncio.BaseProtocol:
        """Make the protocol that serves a connection."""
        protocol: asyncio.BaseProtocol = server.new_protocol()
        if server.tls is None:
            return protocol
        encrypted: asyncio.BaseProtocol = self._encrypted(
            protocol, server.tls, None, server.timeouts_s, None, is_server=True
        )
        return encrypted

    def _encrypted(
        self,
        protocol: asyncio.BaseProtocol,
        context: Any,
        waiter: asyncio.Future[Any] | None,
        timeouts_s: tuple[float | None, float | None],
        hostname: str | None,
        is_server: bool,
    ) -> Any:
        new_protocol: Any = sslproto.SSLProtocol
        handshake_s, shutdown_s = timeouts_s
        if context is True:
            context = ssl.create_default_context()
        return new_protocol(
            self,
            protocol,
            context,
            waiter,
            is_server,
            hostname,
            ssl_handshake_timeout=handshake_s,
            ssl_shutdown_timeout=shutdown_s,
        )

    # What a world has not.

    async def sendfile(self, transport: Any, file: Any, *args: Any, **more: Any) -> int:
        """Refuse, as loops do that can't, so that programs read and write instead.

        Raises:
            NotImplementedError: ever.
        """
        raise _NoSendfileError(
            "loop.sendfile() is the system's: in a virtual world read the file and write its bytes"
        )

    def remove_reader(self, fd: Any) -> bool:
        """Have a server accept nobody, of whose sockets this is one."""
        if isinstance(fd, VirtualSocket) and fd.on_removed is not None:
            fd.on_removed()
            return True
        return False

    def remove_writer(self, fd: Any) -> bool:
        return False


def _refusal(name: str, advice: str) -> Callable[..., Any]:
    def refuse(self: ConnectingLoop, *args: Any, **more: Any) -> Any:
        raise LeavingWorldError(f"loop.{name}() would leave the virtual world: {advice}")

    refuse.__name__ = name
    return refuse


for _name, _advice in _REFUSED.items():
    setattr(ConnectingLoop, _name, _refusal(_name, _advice))


def resolved(host: Any, port: Any, kind: int = 0) -> list[Any]:
    """Return what ``getaddrinfo`` would, in the world: every name has an address."""
    address = HERE if host is None else address_of(_text(host))
    return [(socket.AF_INET, kind or socket.SOCK_STREAM, 6, "", (address, int(port or 0)))]


def _connected_by(sock: Any) -> VirtualTransport:
    """Return the connection that ``sock_connect`` made."""
    transport = sock.take_connection() if isinstance(sock, VirtualSocket) else None
    if transport is None:
        raise LeavingWorldError(
            "create_connection(sock=...) takes a socket of the world that loop.sock_connect() has "
            "connected; or give a host and a port instead"
        )
    connection: VirtualTransport = transport
    return connection


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, (bytes, bytearray)) else str(name)


_OWN_LOOP = (
    "asyncio.run() and new_event_loop() would make an event loop of their own: a virtual world has "
    "one, on which world.run(coroutine) runs"
)


class PatchedSockets:
    """Exchanges what makes sockets and loops, and finds addresses, between `begin` and `end`.

    Args:
        ports: of the world.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._thread_id = 0
        self._before: list[tuple[Any, str, Any]] = []

    def begin(self) -> None:
        """Have sockets hold the world's addresses."""
        self._thread_id = get_ident()
        self._exchange(socket, "socket", self._socket_class(socket.socket))
        for name, stand_in in _STAND_INS.items():
            if hasattr(socket, name):
                self._exchange(socket, name, self._seen(getattr(socket, name), stand_in))
        for owner, name in (
            (asyncio, "new_event_loop"),
            (events, "new_event_loop"),
            (runners.Runner, "__enter__"),
            (runners.Runner, "run"),
            (runners.Runner, "get_loop"),
        ):
            self._exchange(owner, name, self._seen(getattr(owner, name), _refuse_loop))

    def end(self) -> None:
        """Have them be what they were. Again: no effect."""
        for owner, name, what in self._before:
            setattr(owner, name, what)
        self._thread_id = 0
        self._before.clear()

    def _exchange(self, owner: Any, name: str, stand_in: Any) -> None:
        self._before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, stand_in)

    def _seen(self, original: Callable[..., Any], stand_in: Callable[..., Any]) -> Any:
        @wraps(original)
        def call(*arguments: Any, **named: Any) -> Any:
            chosen = stand_in if get_ident() == self._thread_id else original
            return chosen(*arguments, **named)

        return call

    def _socket_class(self, original: Any) -> Any:
        seen = self

        class WorldSocket(VirtualSocket):
            def __new__(cls, *kind: Any, **named: Any) -> Any:
                if get_ident() != seen._thread_id:
                    return original(*kind, **named)
                return super().__new__(cls)

            def __init__(self, *kind: Any, **named: Any) -> None:
                super().__init__(seen._ports, *kind)

        return WorldSocket


def _found(host: Any, port: Any, *hints: Any, **named: Any) -> list[Any]:
    return resolved(host, port)


def _refuse_pair(*ignored: Any, **named: Any) -> NoReturn:
    raise LeavingWorldError(
        "a pair of sockets was asked for in a virtual world, as an event loop of its own does; a "
        "world has a loop, on which world.run(coroutine) runs, and asyncio's streams"
    )


def _refuse_loop(*ignored: Any, **named: Any) -> NoReturn:
    raise LeavingWorldError(_OWN_LOOP)


def _host_name() -> str:
    return NODE.get()


def _full_name(name: str = "") -> str:
    return name or NODE.get()


def _address(name: str) -> str:
    return address_of(name)


def _address_and_names(name: str) -> tuple[str, list[str], list[str]]:
    return name, [], [address_of(name)]


def _numeric(address: Any, flags: int) -> tuple[str, str]:
    return str(address[0]), str(address[1])


_STAND_INS: dict[str, Callable[..., Any]] = {
    "getaddrinfo": _found,
    "socketpair": _refuse_pair,
    "gethostname": _host_name,
    "getfqdn": _full_name,
    "gethostbyname": _address,
    "gethostbyname_ex": _address_and_names,
    "gethostbyaddr": _address_and_names,
    "getnameinfo": _numeric,
}
"""What is asked of the module `socket`, and what a world answers: nothing of the machine's."""
