"""A proxy in front of a Kafka cluster: a listener for each of its brokers.

    config = ProxyConfig(to=["kafka-1:9092", "kafka-2:9092"], first_port=19092)
    async with Proxy(config) as proxy:
        print(proxy.bootstrap_servers)

The first listeners are those of the configured brokers. The proxy asks one of these for the others;
if that is refused, as without a login, it learns of them from the responses to its clients.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kio.index import load_request_schema

from purgatory.cluster.api.registry import APIS
from purgatory.cluster.errors import BadRequestError
from purgatory.cluster.listeners import (
    MAX_PORT,
    Endpoint,
    Listener,
    Listening,
    Tls,
    refusing_file,
)
from purgatory.cluster.protocol.wire import Request, encode_request
from purgatory.cluster.steering.request_methods import RequestMethods
from purgatory.cluster.trace import ClusterTrace
from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ClusterError
from purgatory.proxy.addresses import UNKNOWN_BROKER, Addresses, ProxiedBroker, TopicIds
from purgatory.proxy.connection import ClientConnection
from purgatory.proxy.faults import ProxyFaults
from purgatory.proxy.trace import ProxyTrace
from purgatory.settings.addresses import is_anywhere, is_host, without_brackets
from purgatory.settings.problems import hint_at_arguments

_log = Logger("purgatory.proxy")
_METADATA, _METADATA_VERSION = 3, 1
"""The oldest version of Metadata in which a request may be for no topic."""
_RESPONSE_TIMEOUT_S = 10.0


@hint_at_arguments()
@dataclass(frozen=True)
class UpstreamTls:
    """The TLS files of connections to brokers.

    Args:
        ca: a file with the certificates that sign those of brokers (PEM); None: those of the
            system.
        certificate: a file with the proxy's own, if brokers require one.
        key: its key, if not in the same file.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Read the files.

        Raises:
            ClusterError: a file can't be used.
        """
        with refusing_file("ca", self.ca):
            context = ssl.create_default_context(cafile=self.ca)
        if self.certificate is not None:
            with refusing_file("certificate", self.certificate):
                context.load_cert_chain(self.certificate, self.key)
        return context


@hint_at_arguments()
@dataclass(frozen=True)
class ProxyConfig:
    """The configuration of a proxy.

    Args:
        to: the addresses of brokers, as bootstrap servers: "kafka-1:9092".
        host: the host of its listeners.
        first_port: the port of the first broker; the others have the ports after it. 0: the system
            chooses.
        advertised_host: the host that clients get; None: ``host``.
        tls: the TLS files for clients; None: plain connections.
        to_tls: the TLS files for brokers; None: plain connections.

    Raises:
        ClusterError: an address is invalid.
    """

    to: Sequence[str]
    host: str = "127.0.0.1"
    first_port: int = 0
    advertised_host: str | None = None
    tls: Tls | None = None
    to_tls: UpstreamTls | None = None

    def __post_init__(self) -> None:
        if not self.to:
            raise ClusterError("to: give a broker, such as kafka-1:9092")
        for address in self.to:
            if not Endpoint.parse(address).port:
                raise ClusterError(f"{address!r}: brokers don't listen on port 0")
        if self.advertised_host is not None and not is_host(self.advertised_host):
            raise ClusterError(
                f"advertised_host={self.advertised_host[:50]!r}: the name or address of a host, "
                "without a port"
            )
        if is_anywhere(told := self.advertised_host or self.host):
            raise ClusterError(
                f"host={told!r}: clients can't connect to that; advertised_host is the name "
                "that they are given"
            )


class Proxy(RequestMethods):
    """A proxy, as a context manager on an event loop; ``fault`` injects faults.

    Args:
        config: the configuration.
        trace: records requests and responses.
        broker_ids: the ids of the configured brokers, if they are all brokers: none is asked then.
        faults: those of several proxies together, in place of its own; they have the trace.
    """

    def __init__(
        self,
        config: ProxyConfig,
        trace: ClusterTrace | None = None,
        broker_ids: Sequence[int] = (),
        faults: ProxyFaults | None = None,
    ) -> None:
        self.config = config
        self.apis = APIS
        self._listener = Listener("the proxy", host=config.host, tls=config.tls)
        self._tls: dict[str, ssl.SSLContext] = {}
        self._to_tls: ssl.SSLContext | None = None
        ids = broker_ids or [UNKNOWN_BROKER] * len(config.to)
        self._bootstrap = [
            ProxiedBroker(Endpoint.parse(address), broker_id)
            for address, broker_id in zip(config.to, ids, strict=True)
        ]
        self._knows_all = bool(broker_ids)
        self._listeners = 0
        if faults is None:
            topics = TopicIds()
            recorder = None if trace is None else ProxyTrace(trace, topics)
            faults = ProxyFaults(self, topics, recorder)
        self.fault = faults
        self.request_log = faults.passed.request_log
        self.hooks, self.wait_for = faults.passed.hooks, faults.passed.wait_for
        self._addresses = Addresses(self._bootstrap, self._listen, faults.topics)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {', '.join(self.config.to)}: {self.fault!r}>"

    @property
    def brokers(self) -> Mapping[int, ProxiedBroker]:
        """The brokers whose ids are known."""
        return {key: broker for key, broker in sorted(self.all_brokers.items()) if key >= 0}

    @property
    def all_brokers(self) -> Mapping[int, ProxiedBroker]:
        """All brokers; those whose ids aren't known are -1, -2 and so on, as in Kafka's clients."""
        unknown = itertools.count(UNKNOWN_BROKER, -1)
        return {
            next(unknown) if broker.broker_id == UNKNOWN_BROKER else broker.broker_id: broker
            for broker in self._addresses.brokers
        }

    @property
    def bootstrap_servers(self) -> str:
        """The ``bootstrap.servers`` of clients."""
        return ",".join(str(broker.endpoint) for broker in self._bootstrap)

    def state(self) -> dict[str, Any]:
        """Return the brokers, and the latest faults, as plain data."""
        return {
            "brokers": [
                {
                    "id": broker_id,
                    "address": str(broker.address),
                    "listener": str(broker.endpoint),
                    "connections": len(broker.connections),
                    "requests": dict(broker.requests),
                }
                for broker_id, broker in self.all_brokers.items()
            ],
            "faults": [active_fault.as_dict() for active_fault in self.fault.recent],
        }

    async def start(self) -> None:
        """Listen, and ask for all brokers.

        Raises:
            ClusterError: an address can't be used, or no broker can be connected to.
        """
        self.wait_for.start()
        if self.config.tls is not None:
            self._tls = {self._listener.name: self.config.tls.context()}
        if self.config.to_tls is not None:
            self._to_tls = self.config.to_tls.context()
        try:
            for broker in self._bootstrap:
                await self._listen(broker)
            if not self._knows_all:
                await self._discover()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        await self.wait_for.stop()
        self.fault.forget_all()
        for broker in self._addresses.brokers:
            await broker.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _listen(self, broker: ProxiedBroker) -> None:
        """Listen for a broker.

        Raises:
            ClusterError: the address can't be used.
        """
        first, host = self.config.first_port, without_brackets(self.config.host)
        port = first + self._listeners if first else 0
        if port > MAX_PORT:
            raise ClusterError(f"no port is left for broker {broker.address} above {first}")
        self._listeners += 1
        broker.tls = self._to_tls
        name = self._listener.name
        listening = Listening(broker.broker_id, {name: Endpoint(host, port)})
        try:
            await self._accept(broker, listening)
        except asyncio.CancelledError:  # the client whose response had the broker is gone
            await listening.stop()
            listening.release()
            raise
        except ClusterError as error:
            reason = getattr(error.__cause__, "strerror", None) or error
            raise ClusterError(
                f"can't listen on {Endpoint(host, port)} for broker {broker.address}: {reason}"
            ) from error
        bound = listening.endpoint(self._listener)
        advertised = self.config.advertised_host
        broker.listening = listening
        broker.endpoint = bound if advertised is None else Endpoint(advertised, bound.port)

    async def _accept(self, broker: ProxiedBroker, listening: Listening) -> None:
        await listening.start(
            [self._listener],
            lambda listener: ClientConnection(broker, listener, self.fault).protocol,
            self._tls,
        )

    async def refuse_clients(self, broker_id: int) -> None:
        """Stop listening for a broker that is dead, and cut its connections; its port is kept."""
        broker = self.brokers[broker_id]
        if broker.listening is not None:
            await broker.listening.stop()
        broker.cut_connections()

    async def accept_clients(self, broker_id: int) -> None:
        """Listen again for a broker that `refuse_clients` was called for.

        Raises:
            ClusterError: its port is taken.
        """
        broker = self.brokers[broker_id]
        if broker.listening is not None:
            await self._accept(broker, broker.listening)

    async def _discover(self) -> None:
        """Ask the first reachable broker for all brokers.

        Raises:
            ClusterError: none can be connected to.
        """
        body = load_request_schema(_METADATA, _METADATA_VERSION)(topics=())  # type: ignore[call-arg]
        request = Request(_METADATA, _METADATA_VERSION, 1, "purgatory-proxy", body)
        reasons = []
        for broker in self._bootstrap:
            try:
                reader, writer = await broker.connect()
            except OSError as error:
                reasons.append(f"{broker.address} ({error.strerror or error})")
                continue
            try:
                writer.write(encode_request(request))
                async with asyncio.timeout(_RESPONSE_TIMEOUT_S):
                    prefix = await reader.readexactly(4)
                    frame = prefix + await reader.readexactly(int.from_bytes(prefix, "big"))
                await self._addresses.rewrite(request, frame)
            except (OSError, EOFError, BadRequestError) as error:
                address, reason = str(broker.address), _reason(error)
                _log.info("brokers_are_learned_from_responses", address=address, reason=reason)
            finally:
                writer.transport.abort()
            return
        raise ClusterError(f"no broker can be connected to: {', '.join(reasons)}")


def _reason(error: Exception) -> str:
    """Return the reason why a broker doesn't list the others."""
    if isinstance(error, TimeoutError):
        return f"no response within {_RESPONSE_TIMEOUT_S:g} s"
    if isinstance(error, EOFError):
        return "it closed the connection: it may ask for a login, or for TLS"
    return str(getattr(error, "strerror", None) or error)
