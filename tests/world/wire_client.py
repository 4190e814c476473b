"""A client of bare requests in a virtual world: the oldest or the newest versions, and any login.

Ground rules: a request that isn't answered in `GIVES_UP_S` ends its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import UUID

from purgatory.cluster import Cluster
from purgatory.cluster.api.registry import SUPPORTED
from purgatory.cluster.record_fields import (
    COMPACT,
    INT16,
    INT32,
    INT64,
    STRING,
    Array,
    Schema,
)
from purgatory.kafka.errors import ErrorCode
from tests.wire.cluster.wire_values import read_response, request_frame
from tests.world.security import USER, Security

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH = 0, 1, 2, 3, 8, 9
FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 10, 11, 12, 13, 14
DESCRIBE_GROUPS, LIST_GROUPS, SASL_HANDSHAKE, CREATE_TOPICS, DELETE_TOPICS = 15, 16, 17, 19, 20
INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 22, 24, 25, 26, 28
DESCRIBE_CONFIGS, SASL_AUTHENTICATE, CREATE_PARTITIONS, ALTER_CONFIGS = 32, 36, 37, 44
ALTER_CLIENT_QUOTAS, DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS = 49, 61, 65
CONSUMER_HEARTBEAT, CONSUMER_DESCRIBE, SHARE_HEARTBEAT, SHARE_DESCRIBE = 68, 69, 76, 77
SHARE_FETCH, SHARE_ACKNOWLEDGE, SHARE_OFFSETS = 78, 79, 90
STREAMS_HEARTBEAT, STREAMS_DESCRIBE = 88, 89
GROUP, TRANSACTION = 0, 1
"""The types of coordinators' keys."""

GIVES_UP_S = 90.0
_METADATA_S = 3.0
_NO_ANSWER = (ConnectionError, OSError, asyncio.IncompleteReadError, TimeoutError)


class NoAnswerError(Exception):
    """A request whose connection was cut, or for which there is no broker: nobody knows more."""


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._asked = 0

    async def ask(
        self, api_key: int, version: int, client_id: str, values: Mapping[str, Any]
    ) -> Any:
        self._asked += 1
        asked = self._asked
        frame = request_frame(api_key, version, asked, values, client_id)
        self._writer.write(len(frame).to_bytes(4, "big") + frame)
        length = int.from_bytes(await self._reader.readexactly(4), "big")
        frame = await self._reader.readexactly(length)
        if api_key == DESCRIBE_TRANSACTIONS:
            return _read_transactions(frame)
        answered, body = read_response(api_key, version, frame)
        assert answered == asked, f"answers out of order: {answered} to {asked}"
        return body

    @property
    def is_cut(self) -> bool:
        """Whether the broker has cut it."""
        return self._reader.at_eof() or self._reader.exception() is not None

    def close(self) -> None:
        self._writer.transport.abort()


_TRANSACTIONS = Schema(
    INT32,
    Array(
        COMPACT,
        Schema(
            *(INT16, STRING, STRING, INT32, INT64, INT64, INT16),
            Array(COMPACT, Schema(STRING, Array(COMPACT, INT32), flexible=True)),
            flexible=True,
        ),
    ),
    flexible=True,
)
"""DescribeTransactions: `kio` reads no transaction that has not begun, whose time is -1."""


class TransactionState(NamedTuple):
    """One described transactional id."""

    error_code: int
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int


def _read_transactions(frame: bytes) -> list[TransactionState]:
    (_, described), _ = _TRANSACTIONS.read(frame, _FLEXIBLE_HEADER_BYTES)
    return [
        TransactionState(code, transactional_id, state, producer_id, epoch)
        for code, transactional_id, state, _, _, producer_id, epoch, _ in described
    ]


_FLEXIBLE_HEADER_BYTES = 5


class WireClient:
    """Connections to all brokers, one request at a time on each.

    Args:
        cluster: the target.
        client_id: its name.
        newest: whether it uses the newest version of each request, else the oldest one.
        security: how it logs in.
        user: as whom.
    """

    def __init__(
        self,
        cluster: Cluster,
        client_id: str,
        newest: bool,
        security: Security,
        user: str = USER,
    ) -> None:
        self.cluster = cluster
        self.client_id = client_id
        self.newest = newest
        self._security = security
        self._user = user
        self._connections: dict[int, _Connection] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        self._leaders: dict[tuple[str, int], int] = {}
        self._coordinators: dict[tuple[str, int], int] = {}
        self.topic_ids: dict[str, UUID] = {}

    def version(self, api_key: int, least: int = 0) -> int:
        """Return the version of an API that it uses, of at least ``least``."""
        oldest, newest = SUPPORTED[api_key]
        return newest if self.newest else max(oldest, least)

    async def ask(
        self,
        broker: int,
        api_key: int,
        values: Mapping[str, Any],
        least: int = 0,
        gives_up_s: float = GIVES_UP_S,
        version: int | None = None,
    ) -> Any:
        """Send a request to a broker, and return the body of its answer.

        Args:
            version: the request's; None: that of this client, and at least ``least``.

        Raises:
            NoAnswerError: the broker is dead, the connection was cut, or the time is over.
        """
        async with self._locks.setdefault(broker, asyncio.Lock()):
            try:
                async with asyncio.timeout(gives_up_s):
                    connection = self._connections.get(broker)
                    if connection is None or connection.is_cut:
                        self.cut(broker)
                        connection = await self._connect(broker)
                    if version is None:
                        version = self.version(api_key, least)
                    return await connection.ask(api_key, version, self.client_id, values)
            except _NO_ANSWER as error:
                self.cut(broker)
                raise NoAnswerError(f"broker {broker}: {error!r}") from error
            except asyncio.CancelledError:
                self.cut(broker)
                raise

    async def _connect(self, broker: int) -> _Connection:
        address = self.cluster.brokers[broker]
        tls = self._security.tls
        name = None if tls is None else "localhost"
        reader, writer = await asyncio.open_connection(
            address.host, address.port, ssl=tls, server_hostname=name
        )
        connection = self._connections[broker] = _Connection(reader, writer)
        if self._security.passwords:
            mechanism = {"mechanism": "PLAIN"}
            await connection.ask(SASL_HANDSHAKE, 1, self.client_id, mechanism)
            password = self._security.passwords[self._user]
            token = f"\0{self._user}\0{password}".encode()
            version = self.version(SASL_AUTHENTICATE)
            answer = await connection.ask(
                SASL_AUTHENTICATE, version, self.client_id, {"auth_bytes": token}
            )
            assert answer.error_code == 0, answer
        return connection

    def cut(self, broker: int | None = None) -> None:
        """Cut the connection to a broker, or all of them."""
        for one in [broker] if broker is not None else list(self._connections):
            connection = self._connections.pop(one, None)
            if connection is not None:
                connection.close()

    # Leaders and coordinators.

    def forget(self) -> None:
        """Ask anew for leaders and coordinators, at the next need."""
        self._leaders.clear()
        self._coordinators.clear()

    async def _ask_any(self, api_key: int, values: Mapping[str, Any]) -> Any:
        for broker in self.cluster.brokers:
            with suppress(NoAnswerError):
                return await self.ask(broker, api_key, values, gives_up_s=_METADATA_S)
        raise NoAnswerError("no broker answers")

    async def refresh(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Ask for the leaders of topics, and return their numbers of partitions."""
        asked = {"topics": [{"name": topic, "topic_id": None} for topic in topics]}
        answer = await self._ask_any(METADATA, asked)
        counts = {}
        for topic in answer.topics:
            if topic.error_code:
                continue
            counts[topic.name] = len(topic.partitions)
            for partition in topic.partitions:
                self._leaders[topic.name, partition.partition_index] = partition.leader_id
            topic_id = getattr(topic, "topic_id", None)
            if topic_id is None:
                known = self.cluster.controller.topics.get(topic.name)
                topic_id = None if known is None else known.topic_id
            if topic_id is not None:
                self.topic_ids[topic.name] = topic_id
        return counts

    async def leader(self, topic: str, partition: int) -> int:
        """Return the leader of a partition.

        Raises:
            NoAnswerError: there is none.
        """
        if self._leaders.get((topic, partition), -1) < 0:
            await self.refresh([topic])
        leader = self._leaders.get((topic, partition), -1)
        if leader < 0:
            self._leaders.pop((topic, partition), None)
            raise NoAnswerError(f"{topic}-{partition} has no leader")
        return leader

    async def ask_coordinator(
        self,
        key: str,
        kind: int,
        api_key: int,
        values: Mapping[str, Any],
        least: int = 0,
        version: int | None = None,
    ) -> Any:
        """Send a request to the coordinator of a group or a transactional id.

        Raises:
            NoAnswerError: there is none, or no answer.
        """
        broker = await self.coordinator(key, kind)
        try:
            return await self.ask(broker, api_key, values, least, version=version)
        except NoAnswerError:
            self._coordinators.pop((key, kind), None)
            raise

    async def coordinator(self, key: str, kind: int) -> int:
        """Return the coordinator of a group or a transactional id.

        Raises:
            NoAnswerError: there is none, or no answer.
        """
        known = self._coordinators.get((key, kind))
        return await self._find_coordinator(key, kind) if known is None else known

    def forget_coordinator(self, key: str, kind: int) -> None:
        """Ask anew for a coordinator, at the next need."""
        self._coordinators.pop((key, kind), None)

    async def _find_coordinator(self, key: str, kind: int) -> int:
        version = self.version(FIND_COORDINATOR)
        least = 1 if kind == TRANSACTION else 0
        asked = {"key": key, "key_type": kind, "coordinator_keys": [key]}
        for broker in self.cluster.brokers:
            with suppress(NoAnswerError):
                answer = await self.ask(broker, FIND_COORDINATOR, asked, least, _METADATA_S)
                found = answer.coordinators[0] if version >= 4 else answer
                if found.error_code == ErrorCode.NONE:
                    self._coordinators[key, kind] = found.node_id
                    return int(found.node_id)
        raise NoAnswerError(f"{key} has no coordinator")
