"""The connections of a world's event loop, and the patched module ``socket``.

Ground rules
------------
* Only the thread that entered the world uses the loop, and gets the patched module. Other threads,
  and references kept after the world's end, get the system's.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from asyncio import base_events, events, runners, sslproto
from collections.abc import Callable
from functools import lru_cache, wraps
from threading import get_ident
from typing import Any, Final, NoReturn

from purgatory.virtual.errors import SandboxError
from purgatory.virtual.hosts import PROCESS, HostLoop, is_dead
from purgatory.virtual.network import (
    ANY_HOST,
    LOCALHOST,
    NODE,
    host_address,
)
from purgatory.virtual.sockets import Address, Ports, VirtualServer, VirtualSocket
from purgatory.virtual.transport import VirtualTransport

_CONNECT: Final = "connect and listen by create_connection and create_server"

_UNSUPPORTED: Final = {
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


class _NoSendfileError(SandboxError, NotImplementedError):
    """Programs fall back as for any loop without ``sendfile``."""


class ConnectingLoop(base_events.BaseEventLoop, HostLoop):
    """asyncio's event loop with the connections of a world."""

    async def getaddrinfo(self, host: Any, port: Any, **hints: Any) -> Any:
        return resolve(host, port, hints.get("type", 0))

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
        **unsupported: Any,
    ) -> tuple[Any, Any]:
        """Connect within the world.

        Raises:
            OSError: no server listens there, or it can't be reached.
            SandboxError: ``sock`` was not connected by `sock_connect`.
        """
        if sock is not None and (host is not None or port is not None):
            raise ValueError("host/port and sock can not be specified at the same time")
        if sock is None and (host is None or port is None):
            raise ValueError("host and port were not specified and no sock specified")
        if server_hostname is not None and not ssl:
            raise ValueError("server_hostname is only meaningful with ssl")
        if ssl and host is None and server_hostname is None:
            raise ValueError("You must set server_hostname when using ssl without a host")
        raw = await self._connect(host, port) if sock is None else _virtual_transport(sock)
        protocol = protocol_factory()
        if not ssl:
            raw.begin(protocol)
            return raw, protocol
        waiter = self.create_future()
        timeouts_s = (ssl_handshake_timeout, ssl_shutdown_timeout)
        name = _text(host) if server_hostname is None else server_hostname
        encrypted = self._tls_protocol(protocol, ssl, waiter, timeouts_s, name, is_server=False)
        raw.begin(encrypted)
        try:
            await waiter
        except BaseException:
            raw.close()
            raise
        return encrypted._app_transport, protocol

    async def _stop_if_dead(self) -> None:
        if is_dead():
            await self.create_future()

    async def _connect(self, host: Any, port: Any) -> VirtualTransport:
        await self._stop_if_dead()
        address = host_address(_text(host)), int(port)
        if address[0] == LOCALHOST:
            own = host_address(NODE.get()), address[1]
            if self.network.ports.owner(own) is not None:
                address = own
        return await self.network.connect(address, self._new_server_protocol)

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """Connect a virtual socket, for ``create_connection(sock=...)``.

        Raises:
            OSError: no server listens there, or it can't be reached.
            SandboxError: a real socket was given.
        """
        if not isinstance(sock, VirtualSocket):
            raise SandboxError(f"loop.sock_connect() of a socket of the system: {_CONNECT}")
        transport = await self._connect(address[0], address[1])
        sock.set_connection(transport, transport.get_extra_info("sockname"), address[:2])

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
        **unsupported: Any,
    ) -> VirtualServer:
        """Listen within the world.

        Raises:
            OSError: an address is taken.
        """
        await self._stop_if_dead()
        if sock is not None:
            sock.close()
            (host, port) = sock.getsockname()
        hosts = [host] if host is None or isinstance(host, (str, bytes)) else list(host)
        timeouts_s = (ssl_handshake_timeout, ssl_shutdown_timeout)
        addresses: list[Address] = []
        server = VirtualServer(
            self, self.network.ports, addresses, protocol_factory, ssl, timeouts_s, PROCESS.get()
        )
        for name in hosts:
            address_host = ANY_HOST if name in (None, "", b"") else host_address(_text(name))
            if server.process is not None and address_host in (ANY_HOST, LOCALHOST):
                address_host = host_address(NODE.get())  # each host has its own ports
            address = self.network.ports.bind((address_host, int(port or 0)), server)
            addresses.append(address)
            self.network.record_listener(address, server)
        if start_serving:
            await server.start_serving()
        return server

    def _new_server_protocol(self, server: VirtualServer) -> asyncio.BaseProtocol:
        """Make the protocol that serves a connection."""
        protocol: asyncio.BaseProtocol = server.protocol_factory()
        if server.tls is None:
            return protocol
        encrypted: asyncio.BaseProtocol = self._tls_protocol(
            protocol, server.tls, None, server.timeouts_s, None, is_server=True
        )
        return encrypted

    def _tls_protocol(
        self,
        protocol: asyncio.BaseProtocol,
        context: Any,
        waiter: asyncio.Future[Any] | None,
        timeouts_s: tuple[float | None, float | None],
        hostname: str | None,
        is_server: bool,
    ) -> Any:
        protocol_factory: Any = sslproto.SSLProtocol
        handshake_s, shutdown_s = timeouts_s
        if context is True:
            context = ssl.create_default_context()
        return protocol_factory(
            self,
            protocol,
            context,
            waiter,
            is_server,
            hostname,
            ssl_handshake_timeout=handshake_s,
            ssl_shutdown_timeout=shutdown_s,
        )

    # Unsupported methods.

    async def sendfile(self, transport: Any, file: Any, *args: Any, **more: Any) -> int:
        """Raise NotImplementedError, so that programs read and write instead."""
        raise _NoSendfileError(
            "loop.sendfile() is the system's: in a virtual world read the file and write its bytes"
        )

    def remove_reader(self, fd: Any) -> bool:
        """Stop the server of this socket from accepting connections."""
        if isinstance(fd, VirtualSocket) and fd.on_removed is not None:
            fd.on_removed()
            return True
        return False

    def remove_writer(self, fd: Any) -> bool:
        return False


def _unsupported_method(name: str, advice: str) -> Callable[..., Any]:
    def refuse(self: ConnectingLoop, *args: Any, **more: Any) -> Any:
        raise SandboxError(f"loop.{name}() would leave the virtual world: {advice}")

    refuse.__name__ = name
    return refuse


for _name, _advice in _UNSUPPORTED.items():
    setattr(ConnectingLoop, _name, _unsupported_method(_name, _advice))


def resolve(host: Any, port: Any, kind: int = 0) -> list[Any]:
    """Return the result of ``getaddrinfo`` in the world: every name has an address."""
    address = LOCALHOST if host is None else host_address(_text(host))
    return [(socket.AF_INET, kind or socket.SOCK_STREAM, 6, "", (address, int(port or 0)))]


def _virtual_transport(sock: Any) -> VirtualTransport:
    """Return the connection that ``sock_connect`` made."""
    transport = sock.claim_connection() if isinstance(sock, VirtualSocket) else None
    if transport is None:
        raise SandboxError(
            "create_connection(sock=...) takes a socket of the world that loop.sock_connect() has "
            "connected; or give a host and a port instead"
        )
    connection: VirtualTransport = transport
    return connection


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, (bytes, bytearray)) else str(name)


_OWN_LOOP_ADVICE = (
    "asyncio.run() and new_event_loop() would make another event loop: a virtual world has its "
    "own, on which world.run(coroutine) runs"
)


class _Entered:
    """The thread of the world that is entered, and the ports of its network."""

    thread_id = 0
    ports: Ports


class PatchedSockets:
    """Patches the functions that make sockets and loops, and resolve addresses, between `begin` and
    `end`."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._originals: list[tuple[Any, str, Any]] = []

    def begin(self) -> None:
        """Patch the functions."""
        _Entered.thread_id, _Entered.ports = get_ident(), self._ports
        self._patch(socket, "socket", _socket_class(socket.socket))
        for name, replacement in _REPLACEMENTS.items():
            if hasattr(socket, name):
                self._patch(socket, name, _patched(getattr(socket, name), replacement))
        for owner, name in (
            (asyncio, "new_event_loop"),
            (events, "new_event_loop"),
            (runners.Runner, "__enter__"),
            (runners.Runner, "run"),
            (runners.Runner, "get_loop"),
        ):
            self._patch(owner, name, _patched(getattr(owner, name), _raise_new_loop))

    def end(self) -> None:
        """Restore the functions. Idempotent."""
        for owner, name, original in self._originals:
            setattr(owner, name, original)
        if self._originals:
            _Entered.thread_id, _Entered.ports = 0, Ports()
        self._originals.clear()

    def _patch(self, owner: Any, name: str, replacement: Any) -> None:
        self._originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, replacement)


# Cached for all worlds: making a replacement takes longer than many a test.
@lru_cache(maxsize=64)
def _patched(original: Callable[..., Any], replacement: Callable[..., Any]) -> Any:
    @wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        function = replacement if get_ident() == _Entered.thread_id else original
        return function(*arguments, **keywords)

    return call


@lru_cache(maxsize=64)
def _socket_class(original: Any) -> Any:
    class WorldSocket(VirtualSocket):
        def __new__(cls, *kind: Any, **keywords: Any) -> Any:
            if get_ident() != _Entered.thread_id:
                return original(*kind, **keywords)
            return super().__new__(cls)

        def __init__(self, *kind: Any, **keywords: Any) -> None:
            super().__init__(_Entered.ports, *kind)
            process = PROCESS.get()
            if process is not None:
                process.sockets.add(self)

        def bind(self, address: Any) -> None:
            if is_dead():
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().bind(address)

    return WorldSocket


def _getaddrinfo(host: Any, port: Any, *hints: Any, **keywords: Any) -> list[Any]:
    return resolve(host, port)


def _raise_socketpair(*unsupported: Any, **keywords: Any) -> NoReturn:
    raise SandboxError(
        "socket.socketpair() would leave the virtual world, as another event loop does; a world "
        "has its own loop, on which world.run(coroutine) runs, and asyncio's streams"
    )


def _raise_new_loop(*unsupported: Any, **keywords: Any) -> NoReturn:
    raise SandboxError(_OWN_LOOP_ADVICE)


def _host_name() -> str:
    return NODE.get()


def _full_name(name: str = "") -> str:
    return name or NODE.get()


def _address(name: str) -> str:
    return host_address(name)


def _address_and_names(name: str) -> tuple[str, list[str], list[str]]:
    return name, [], [host_address(name)]


def _numeric(address: Any, flags: int) -> tuple[str, str]:
    return str(address[0]), str(address[1])


_REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "getaddrinfo": _getaddrinfo,
    "socketpair": _raise_socketpair,
    "gethostname": _host_name,
    "getfqdn": _full_name,
    "gethostbyname": _address,
    "gethostbyname_ex": _address_and_names,
    "gethostbyaddr": _address_and_names,
    "getnameinfo": _numeric,
}
"""Replacements of functions of the module `socket`, independent of the machine."""
