"""Listeners: where a broker listens, by which protocol, and how clients authenticate.

Each broker has all listeners of its cluster, one port for each; a client is told the addresses of
the listener that it came by. The ports of a killed broker stay bound: else a client on this machine
could be given one as its own port, and even be connected to itself.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, cast, get_args

from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ClusterError
from purgatory.settings.addresses import host_and_port, split_host_and_port

_log = Logger("purgatory.cluster")
_NO_TLS = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")
"""How OpenSSL calls bytes that are no TLS."""

MAX_PORT = 65_535
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
"""How a client can say who it is (SASL)."""

MECHANISMS: Sequence[Mechanism] = get_args(Mechanism)
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""How clients can come, as they call it."""


@contextlib.contextmanager
def refusing_file(name: str, path: Path | None) -> Iterator[None]:
    """Have a `ClusterError` say which file of certificates can't be used."""
    try:
        yield
    except (OSError, ssl.SSLError) as error:
        raise ClusterError(f"{name} {path}: can't be used: {error}") from error


@dataclass(frozen=True)
class Tls:
    """What a listener speaks TLS by.

    Args:
        certificate: a file with the certificate chain (PEM).
        key: its key, if not in the same file.
        client_ca: a file with certificates; a client has to have one that they signed, and is who
            its subject says. None: clients are not asked for one.
        client_auth: "requested": a client without a certificate is let in, too, as nobody in
            particular.
    """

    certificate: Path
    key: Path | None = None
    client_ca: Path | None = None
    client_auth: Literal["required", "requested"] = "required"

    def context(self) -> ssl.SSLContext:
        """Read the files.

        Raises:
            ClusterError: one of them can't be used.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        with refusing_file("certificate", self.certificate):
            context.load_cert_chain(self.certificate, self.key)
        if self.client_ca is None:
            return context
        with refusing_file("client_ca", self.client_ca):
            context.load_verify_locations(self.client_ca)
        required = self.client_auth == "required"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return context


@dataclass(frozen=True)
class Listener:
    """Where each broker listens, and how.

    Args:
        name: which one, in what the cluster prints: "PLAINTEXT".
        first_port: of the first broker; the others have the ports after it. 0: the system chooses.
        host: where; None: where the cluster says.
        tls: speak TLS; None: plain connections.
        sasl: by which mechanisms clients say who they are; none: nobody is asked.
    """

    name: str
    first_port: int = 0
    host: str | None = None
    tls: Tls | None = None
    sasl: Sequence[Mechanism] = ()

    @property
    def security_protocol(self) -> str:
        """What clients call it: "SASL_SSL"."""
        return ("SASL_" if self.sasl else "") + ("SSL" if self.tls else "PLAINTEXT")


PLAINTEXT = Listener("PLAINTEXT")
"""A listener by which anybody may come."""


def _reason(error: ssl.SSLError) -> str:
    if error.reason == "HTTP_REQUEST":
        return "this looks like HTTP on a TLS listener"
    if error.reason in _NO_TLS:
        return "this looks like a plaintext client on a TLS listener"
    return str(error)


class Endpoint(NamedTuple):
    """A broker's address on one listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_and_port(self.host, self.port)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` gives: "kafka-1:9092".

        Raises:
            ClusterError: it is no address.
        """
        host, port = split_host_and_port(text.strip())
        if not host or not port.isdecimal() or int(port) > MAX_PORT:
            raise ClusterError(f"{text!r} is not an address, such as kafka-1:9092")
        return cls(host, int(port))


class _Handshake(asyncio.Protocol):
    """A client until it has agreed on TLS; then its connection has it.

    asyncio could do that by itself, but tells nobody who such clients are, nor of their errors.
    """

    def __init__(
        self,
        listener: Listener,
        new_connection: Callable[[Listener], asyncio.BaseProtocol],
        tls: ssl.SSLContext,
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self._listener = listener
        self._new_connection = new_connection
        self._tls = tls
        self._tasks = tasks
        self._early = b""
        """What came before TLS reads, and then what came with the end of the handshake."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        task = asyncio.get_running_loop().create_task(self._agree(plain))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def data_received(self, data: bytes) -> None:
        self._early += data

    async def _agree(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        if transport.is_closing():
            return
        loop.call_soon(self._pass_early, transport)  # uvloop reads from the start
        try:
            tls = await loop.start_tls(transport, self, self._tls, server_side=True)
        except OSError as error:
            transport.abort()
            if isinstance(error, ssl.SSLError) and error.reason:
                name = self._listener.name
                _log.warning("tls_handshake_failed", listener=name, reason=_reason(error))
            return
        except BaseException:
            transport.abort()
            raise
        assert tls is not None, "only a transport that is none gives none"
        connection = cast(asyncio.Protocol, self._new_connection(self._listener))
        tls.set_protocol(connection)
        connection.connection_made(tls)
        if self._early:
            connection.data_received(self._early)

    def _pass_early(self, transport: asyncio.Transport) -> None:
        early, self._early = self._early, b""
        if early:
            protocol = cast(asyncio.BufferedProtocol, transport.get_protocol())
            memoryview(protocol.get_buffer(len(early)))[: len(early)] = early
            protocol.buffer_updated(len(early))


class Listening:
    """The servers of one broker.

    Args:
        endpoints: the addresses by listener name; port 0 is any free one.
    """

    def __init__(self, broker_id: int, endpoints: Mapping[str, Endpoint]) -> None:
        self._broker_id = broker_id
        self._endpoints = dict(endpoints)
        self._servers: list[asyncio.Server] = []
        self._kept: list[socket.socket] = []
        self._handshakes: set[asyncio.Task[None]] = set()

    def endpoint(self, listener: Listener) -> Endpoint:
        """Return the current or last address of a listener."""
        return self._endpoints[listener.name]

    async def start(
        self,
        listeners: Iterable[Listener],
        new_connection: Callable[[Listener], asyncio.BaseProtocol],
        tls: Mapping[str, ssl.SSLContext],
    ) -> None:
        """Listen.

        Args:
            listeners: which ones.
            new_connection: makes the protocol of one that came by a listener.
            tls: by the names of the listeners that speak it.

        Raises:
            ClusterError: it can't listen there.
        """
        self.release()
        for listener in listeners:
            await self._listen(listener, new_connection, tls.get(listener.name))

    async def _listen(
        self,
        listener: Listener,
        new_connection: Callable[[Listener], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        def accept() -> asyncio.BaseProtocol:
            if tls is None:
                return new_connection(listener)
            return _Handshake(listener, new_connection, tls, self._handshakes)

        host, port = self._endpoints[listener.name]
        create = partial(
            asyncio.get_running_loop().create_server,
            accept,
            host,
            backlog=1024,
            start_serving=False,
        )
        try:
            # Two steps: `stop` closes what it knows, also while this waits for the second one.
            server = await create(port)
            while len(ports := {sock.getsockname()[1] for sock in server.sockets}) > 1:
                # A name with an address of each family: the system gave each a port of its own.
                server.close()
                try:
                    server = await create(min(ports))
                except OSError:  # somebody has that one at the other address
                    server = await create(port)
            self._servers.append(server)
            self._endpoints[listener.name] = Endpoint(host, *ports)
            await server.start_serving()
        except OSError as error:
            raise ClusterError(
                f"broker {self._broker_id} can't listen on {Endpoint(host, port)}: {error.strerror}"
            ) from error

    async def stop(self) -> None:
        """Stop accepting connections, cut those in their handshakes, and keep the ports.

        Whom asyncio has accepted already gets a connection in the next turn, to be turned away:
        once the server is closed it could not make one, and would leave the socket open.
        """
        servers, self._servers = self._servers, []
        bound = [(sock.family, sock.getsockname()) for server in servers for sock in server.sockets]
        for server in servers:
            for listening in server.sockets:
                asyncio.get_running_loop().remove_reader(listening)
        await asyncio.sleep(0)
        for server in servers:
            server.close()
        self._keep(bound)
        if self._handshakes:
            for handshake in self._handshakes:
                handshake.cancel()
            await asyncio.wait(self._handshakes)

    def _keep(self, bound: Iterable[tuple[int, Any]]) -> None:
        for family, address in bound:
            kept = socket.socket(family, socket.SOCK_STREAM)
            self._kept.append(kept)
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:  # as asyncio does: the other family has its own
                kept.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            with contextlib.suppress(OSError):  # somebody was quicker: `start` will say so
                kept.bind(address)

    def release(self) -> None:
        """Give up the ports that are kept."""
        while self._kept:
            self._kept.pop().close()
