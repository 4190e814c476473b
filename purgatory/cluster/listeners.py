"""Listeners: addresses of brokers, their protocols, and the authentication of clients.

Each broker has all listeners of its cluster, one port for each; a client gets the addresses of its
own listener. The ports of a killed broker stay bound: otherwise the system could give such a port
to a client on this machine, which might even connect to itself.

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
from purgatory.settings.problems import hint_at_arguments

_log = Logger("purgatory.cluster")
_NO_TLS = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")
"""OpenSSL's reasons for bytes that are no TLS."""

MAX_PORT = 65_535
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
"""The mechanisms of authentication (SASL)."""

MECHANISMS: Sequence[Mechanism] = get_args(Mechanism)
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""The security protocols, in the words of clients."""


@contextlib.contextmanager
def refusing_file(name: str, path: Path | None) -> Iterator[None]:
    """Raise `ClusterError` with the name of an unusable file of certificates."""
    try:
        yield
    except (OSError, ssl.SSLError) as error:
        raise ClusterError(f"{name} {path}: can't be used: {error}") from error


@hint_at_arguments()
@dataclass(frozen=True)
class Tls:
    """The TLS files of a listener.

    Args:
        certificate: a file with the certificate chain (PEM).
        key: its key, if not in the same file.
        client_ca: a file with certificates that sign those of clients, whose subjects are the
            principals. None: clients need no certificate.
        client_auth: "requested": a client without a certificate is accepted, too, as anonymous.
    """

    certificate: Path
    key: Path | None = None
    client_ca: Path | None = None
    client_auth: Literal["required", "requested"] = "required"

    def context(self) -> ssl.SSLContext:
        """Read the files.

        Raises:
            ClusterError: a file can't be used.
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


@hint_at_arguments()
@dataclass(frozen=True)
class Listener:
    """A listener of each broker.

    Args:
        name: its name, such as "PLAINTEXT".
        first_port: the port of the first broker; the others have the ports after it. 0: the system
            chooses.
        host: the host; None: that of the cluster.
        tls: the TLS files; None: plain connections.
        sasl: the mechanisms of authentication; empty: there is none.
        advertised_host: the host that clients are given; None: that of the cluster, or ``host``.
    """

    name: str
    first_port: int = 0
    host: str | None = None
    tls: Tls | None = None
    sasl: Sequence[Mechanism] = ()
    advertised_host: str | None = None

    @property
    def security_protocol(self) -> str:
        """The security protocol in the words of clients, such as "SASL_SSL"."""
        return ("SASL_" if self.sasl else "") + ("SSL" if self.tls else "PLAINTEXT")


PLAINTEXT = Listener("PLAINTEXT")
"""A listener without authentication."""


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
        """Parse an address such as "kafka-1:9092".

        Raises:
            ClusterError: the text is no address.
        """
        host, port = split_host_and_port(text.strip())
        if not host or not port.isdecimal() or int(port) > MAX_PORT:
            raise ClusterError(f"{text!r} is not an address, such as kafka-1:9092")
        return cls(host, int(port))


class _Handshake(asyncio.Protocol):
    """A client during its TLS handshake; then its connection takes over.

    asyncio's own handshakes tell neither the clients nor their errors.
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
        """The bytes before TLS reads, and then those with the end of the handshake."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast(asyncio.Transport, transport)  # uvloop's class is not derived from it
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
            listeners: the listeners.
            new_connection: makes the protocol of a listener's connection.
            tls: the TLS contexts by the names of listeners.

        Raises:
            ClusterError: an address can't be listened on.
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
            # Two steps, so that `stop` can close the server while this waits for the second one.
            server = await create(port)
            while len(ports := {sock.getsockname()[1] for sock in server.sockets}) > 1:
                # A name with an address of each family: the system chose a port for each.
                server.close()
                try:
                    server = await create(min(ports))
                except OSError:  # the port is taken at the other address
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

        Sockets that asyncio has accepted get a connection in the next turn, which is refused: a
        closed server could not make one, and would leave the socket open.
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
            if family == socket.AF_INET6:  # as asyncio does: each family has its own
                kept.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            with contextlib.suppress(OSError):  # the port was taken meanwhile: `start` will fail
                kept.bind(address)

    def release(self) -> None:
        """Release the kept ports."""
        while self._kept:
            self._kept.pop().close()
