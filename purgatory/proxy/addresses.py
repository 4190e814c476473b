"""The brokers behind a proxy, and the addresses in their responses.

A response that has the address of a broker (Metadata, FindCoordinator, DescribeCluster, the
endpoints in Produce and Fetch) is rewritten: the client is sent to the proxy's listener for that
broker. These responses are recognised by their schemas: an id of a node beside a host and a port. A
new broker gets a listener first.

ApiVersions offers clients no newer versions of these APIs than the codec knows: otherwise responses
would pass without being rewritten.

Ground rules
------------
* Everything happens on the event loop's thread.
* The lengths of a response are checked before it is decoded (`frame_check`).
* A frame without a broker's address is passed unchanged.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any
from uuid import UUID

from kio.index import load_response_schema
from kio.schema.index import api_key_map, schema_name_map

from purgatory.cluster.errors import BadRequestError
from purgatory.cluster.listeners import Endpoint, Listening
from purgatory.cluster.protocol.connection import ResponseConnection
from purgatory.cluster.protocol.frame_check import check_frame
from purgatory.cluster.protocol.wire import (
    API_VERSIONS,
    Request,
    Versions,
    element_class,
    encode_response,
    readers,
)
from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ErrorCode

_log = Logger("purgatory.proxy")
_PREFIX_BYTES = 4
_BODY_AT = 8
_MAX_ELEMENTS = 20_000_000
"""The limit of elements of a response: those of the largest clusters have some millions."""
_MAX_WARNINGS = 1_000
_CONNECT_TIMEOUT_S = 10.0
BUFFER_BYTES = 256 * 1024
"""About the limit of a side's waiting bytes, beyond which nothing is read from it."""

_METADATA = 3
UNKNOWN_BROKER = -1
"""The id of a broker until a response has its address with an id."""


KNOWN_VERSIONS: Mapping[int, Versions] = {
    key: (min(schema_name_map[name]), max(schema_name_map[name]))
    for key, name in api_key_map.items()
}
"""The oldest and the newest version of each API that the codec knows."""


@cache
def is_known(api_key: int, version: int) -> bool:
    """Whether the codec knows a version of an API."""
    return version in schema_name_map.get(api_key_map.get(api_key, ""), {})


@cache
def _node_fields(entity_class: Any) -> tuple[str | None, tuple[str, ...]]:
    """Return the field for a node's id, if an entity is a node's address; and the fields that lead
    to such entities."""
    names = {field.name for field in fields(entity_class)}
    id_field = next((name for name in ("node_id", "broker_id") if name in names), None)
    elements: dict[str, Any] = {name: element_class(entity_class, name) for name in names}
    entities = [name for name, element in elements.items() if is_dataclass(element)]
    inner = tuple(name for name in entities if any(_node_fields(elements[name])))
    return (id_field if {"host", "port"} <= names else None), inner


def _with_endpoints(entity: Any, endpoint_of: Callable[[int, Endpoint], Endpoint]) -> Any:
    """Return a response with other addresses of brokers; the same object if all are the same.

    Args:
        entity: the response.
        endpoint_of: returns the new address for a broker's id and address.
    """
    entity_class: Any = type(entity)
    id_field, inner = _node_fields(entity_class)
    changes: dict[str, Any] = {}
    if id_field is not None and entity.host:
        known = Endpoint(entity.host, entity.port)
        endpoint = endpoint_of(getattr(entity, id_field), known)
        if endpoint != known:
            changes = endpoint._asdict()
    for name in inner:
        value = getattr(entity, name)
        if isinstance(value, tuple):
            replaced: Any = tuple(_with_endpoints(element, endpoint_of) for element in value)
        else:
            replaced = None if value is None else _with_endpoints(value, endpoint_of)
        if replaced != value:
            changes[name] = replaced
    return replace(entity, **changes) if changes else entity


@cache
def has_addresses(api_key: int, version: int) -> bool:
    """Whether responses may have addresses of brokers, as far as the codec knows the version."""
    return is_known(api_key, version) and any(_node_fields(load_response_schema(api_key, version)))


def is_unsupported_version(request: Request, response: bytes) -> bool:
    """Whether a broker doesn't know the version of an ApiVersions, and so responds in version 0."""
    code = response[_BODY_AT : _BODY_AT + 2]
    unsupported = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
    return request.api_key == API_VERSIONS and code == unsupported


def unsupported_version_response(request: Request) -> bytes:
    """Return the response to an ApiVersions that the codec doesn't know, as of an older broker."""
    oldest, newest = KNOWN_VERSIONS[API_VERSIONS]
    known = {"api_key": API_VERSIONS, "min_version": oldest, "max_version": newest}
    values = {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": [known]}
    return encode_response(API_VERSIONS, 0, request.correlation_id, values)


class BadResponseError(BadRequestError):
    """Bytes of a broker that are no response of the protocol."""


def open_response(request: Request, frame: bytes) -> tuple[bytes, Any]:
    """Return the body of a response, a frame with its length, as bytes and as an entity of `kio`.

    Excess bytes behind the fields are dropped: some of librdkafka's mock cluster have one.

    Raises:
        BadResponseError: the response can't be decoded.
    """
    response_class, read_header, read_body = readers(
        load_response_schema, request.api_key, request.api_version
    )
    try:
        rest, header_class = frame[_PREFIX_BYTES:], response_class.__header_schema__
        checked = check_frame(rest, header_class, response_class, _MAX_ELEMENTS)
        body = checked[read_header(checked, 0)[1] :]
        return body, read_body(body, 0)[0]
    except Exception as error:  # any error of the codec, such as an unknown error code
        name = f"{request.api_name} v{request.api_version}"
        raise BadResponseError(f"a response to {name} can't be decoded: {error}") from error


class ProxiedBroker:
    """A broker behind the proxy.

    Args:
        address: its address.
        broker_id: its id, or `UNKNOWN_BROKER`.
    """

    def __init__(self, address: Endpoint, broker_id: int = UNKNOWN_BROKER) -> None:
        self.address = address
        self.broker_id = broker_id
        self.addresses: Addresses
        """The brokers behind the same proxy, this one included."""
        self.connections: set[ResponseConnection] = set()
        self.requests: Counter[str] = Counter()
        """The number of requests by API."""
        self.tls: ssl.SSLContext | None = None
        """The TLS context of connections to it; None: plain connections."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_closed = False
        self.listening: Listening | None = None
        self.endpoint = address
        """The address for clients: that of the proxy, once it listens."""

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the broker.

        Raises:
            OSError: the connection failed.
        """
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                return await asyncio.open_connection(
                    *self.address,
                    limit=BUFFER_BYTES,
                    ssl=self.tls,
                    server_hostname=None if self.tls is None else self.address.host,
                )
        except TimeoutError:
            raise OSError(f"no connection within {_CONNECT_TIMEOUT_S:g} s") from None
        except UnicodeError as error:  # an invalid name
            raise OSError(str(error)) from error

    def start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a connection's task, which `close` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cut_connections(self) -> int:
        """Cut all clients' connections, and return how many there were."""
        connections = list(self.connections)
        for connection in connections:
            connection.abort()
        return len(connections)

    async def close(self) -> None:
        """Stop listening, cut all connections, and return when none is open or served."""
        if self.listening is not None:
            await self.listening.stop()
            self.listening.release()
        self.is_closed = True
        self.cut_connections()
        for task in self._tasks:
            task.cancel()
        while self.connections or self._tasks:
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # connections to the broker are aborted last


class TopicIds:
    """The topics that Metadata responses had, by their names and by their ids.

    The id of a name is the latest.
    """

    def __init__(self) -> None:
        self.names: dict[UUID, str] = {}
        self.ids: dict[str, UUID] = {}

    def learn(self, response: Any) -> None:
        """Record the topics of a response."""
        for topic in response.topics:
            topic_id = getattr(topic, "topic_id", None)
            if topic_id is not None and topic.name and topic_id not in self.names:
                self.names[topic_id] = topic.name
                self.ids[topic.name] = topic_id


class Addresses:
    """Rewrites the addresses in responses.

    Args:
        brokers: the known brokers at the start.
        listen: listens for a broker, and sets its ``endpoint``.
        topics: records the topics of responses.
    """

    def __init__(
        self,
        brokers: Sequence[ProxiedBroker],
        listen: Callable[[ProxiedBroker], Awaitable[None]],
        topics: TopicIds,
    ) -> None:
        self.brokers = list(brokers)
        for broker in brokers:
            broker.addresses = self
        self._topics = topics
        self._listen = listen
        self._learning = asyncio.Lock()
        self._warned: set[object] = set()

    def may_concern(self, request: Request) -> bool:
        """Whether a response has to be decoded before it is passed on."""
        api_key, version = request.api_key, request.api_version
        if api_key == API_VERSIONS:
            return is_known(api_key, version)
        return has_addresses(api_key, version)

    async def rewrite(self, request: Request, frame: bytes) -> bytes:
        """Return a response, with its length, that has the proxy's addresses, and the versions in
        which they can be rewritten.

        Raises:
            BadResponseError: the response can't be decoded.
            ClusterError: the proxy can't listen for a new broker.
        """
        if is_unsupported_version(request, frame):
            return frame
        _, entity = open_response(request, frame)
        rewritten = await self.rewrite_entity(request, entity)
        if rewritten is entity:
            return frame
        return encode_response(
            request.api_key, request.api_version, request.correlation_id, rewritten
        )

    async def rewrite_entity(self, request: Request, entity: Any) -> Any:
        """As `rewrite`, for a decoded response; the same object without a change."""
        if request.api_key == API_VERSIONS:
            apis = tuple(map(self._lowered, entity.api_keys))
            return entity if apis == entity.api_keys else replace(entity, api_keys=apis)
        if request.api_key == _METADATA:
            self._topics.learn(entity)
        found: dict[int, Endpoint] = {}
        _with_endpoints(entity, found.setdefault)
        endpoints = {key: await self.learn(key, address) for key, address in found.items()}
        return _with_endpoints(entity, lambda broker_id, _: endpoints[broker_id])

    def _lowered(self, api: Any) -> Any:
        """Return an API that a broker offers; of one with addresses, only versions that the codec
        knows."""
        oldest, newest = KNOWN_VERSIONS.get(api.api_key, (0, -1))
        if not api.min_version <= newest < api.max_version or not any(
            has_addresses(api.api_key, version) for version in range(oldest, newest + 1)
        ):
            return api
        self.warn_once(
            "versions_are_lowered",
            api=api_key_map[api.api_key],
            newest=api.max_version,
            offered=newest,
        )
        return replace(api, max_version=type(api.max_version)(newest))

    def warn_once(self, event: str, **values: Any) -> None:
        """Log a warning once."""
        key = event, *values.items()
        if key not in self._warned and len(self._warned) < _MAX_WARNINGS:
            self._warned.add(key)
            _log.warning(event, **values)

    async def learn(self, broker_id: int, address: Endpoint) -> Endpoint:
        """Record a broker's address, and listen for a new one; return the proxy's address."""
        async with self._learning:  # two responses may have it at the same time
            broker = self._find(broker_id) or next(
                (
                    broker
                    for broker in self.brokers
                    if broker.broker_id == UNKNOWN_BROKER and broker.address == address
                ),
                None,
            )
            if broker is None:
                broker = ProxiedBroker(address, broker_id)
                broker.addresses = self
                await self._listen(broker)
                self.brokers.append(broker)
        broker.broker_id, broker.address = broker_id, address
        return broker.endpoint

    def _find(self, broker_id: int) -> ProxiedBroker | None:
        return next((broker for broker in self.brokers if broker.broker_id == broker_id), None)
