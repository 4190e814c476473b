"""The responses of a cluster's brokers, as they go to the wire.

The answers are read by the schemas of the protocol, whoever the client is, and with TLS too.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any
from uuid import UUID

from purgatory.cluster import Cluster
from purgatory.cluster.broker import Broker
from purgatory.cluster.protocol.connection import Connection
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka.errors import ErrorCode
from tests.wire.cluster.wire_values import read_response
from tests.world.history import (
    Epoch,
    Exchange,
    Expelled,
    History,
    Offset,
    Partition,
    ServedEarly,
)
from tests.world.wire_client import (
    CONSUMER_HEARTBEAT,
    END_TXN,
    FETCH,
    HEARTBEAT,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LEAVE_GROUP,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PRODUCE,
    SHARE_HEARTBEAT,
    STREAMS_HEARTBEAT,
    SYNC_GROUP,
    TXN_OFFSET_COMMIT,
)

_EXPELLING = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.FENCED_INSTANCE_ID,
)
_HEARD = (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
_COMMIT_CODES = {ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
"""Errors of commits that tell of the member; others, of a commit that came late."""
_LEAVE_EPOCH = -1
_ROUNDING_S = 0.001
_FIRST_LIST_OF_LEAVING = 3


class WireTap:
    """Records what brokers take and tell.

    Args:
        cluster: its brokers are tapped from now on.
        history: takes what they tell.
        now_s: the world's time.
        session_s: the session timeout of all members.
    """

    def __init__(
        self, cluster: Cluster, history: History, now_s: Callable[[], float], session_s: float
    ) -> None:
        self._cluster = cluster
        self._history = history
        self._now_s = now_s
        self._session_s = session_s
        self._open: dict[tuple[int, int], Exchange] = {}
        self._throttled_until_s: dict[Connection, float] = {}
        self._heard_s: dict[tuple[str, str], float] = {}
        self._left: set[tuple[str, str]] = set()
        self._pending: dict[str, dict[tuple[str, Partition], int]] = {}
        self.assigned: dict[tuple[str, str], frozenset[Partition]] = {}
        # Members of share and streams groups whose last answer was an error: the assignment that
        # it would have had is not told again, as in Kafka.
        self.untold: set[tuple[str, str]] = set()
        """The partitions that members have by the last answer, by group and member.

        Those of classic groups are by the topic's name, as they are on the wire.
        """
        self.made_anew: dict[str, float] = {}
        """Until when offsets of a topic may be meant for the former one of its name, or be told of
        that one, as they are kept by name."""
        self.member_epochs: dict[tuple[str, str], int] = {}
        self.producers: dict[str, tuple[int, int]] = {}
        """The last told id and epoch of each transactional id."""
        self._tellers: Mapping[int, Callable[[Request, Any, Exchange], None]] = {
            METADATA: self._on_metadata,
            OFFSET_COMMIT: self._on_commit,
            OFFSET_FETCH: self._on_offsets,
            JOIN_GROUP: self._on_join,
            HEARTBEAT: self._on_heartbeat,
            LEAVE_GROUP: self._on_leave,
            SYNC_GROUP: self._on_sync,
            INIT_PRODUCER_ID: self._on_producer_id,
            END_TXN: self._on_end,
            TXN_OFFSET_COMMIT: self._on_transactional_commit,
            CONSUMER_HEARTBEAT: self._on_epoch_heartbeat,
            SHARE_HEARTBEAT: self._on_epoch_heartbeat,
            STREAMS_HEARTBEAT: self._on_epoch_heartbeat,
        }
        for broker in cluster.brokers.values():
            self._tap(broker)

    def _tap(self, broker: Broker) -> None:
        serve, send, closed = broker._serve, broker._send, broker._closed

        def tapped_serve(request: Request, connection: Connection) -> Any:
            self._check_throttle(broker.broker_id, request, connection)
            exchange = Exchange(
                broker.broker_id, request.client_id or "", request.api_name, self._now_s()
            )
            self._history.exchanges.append(exchange)
            self._open[id(connection), request.correlation_id] = exchange
            return serve(request, connection)

        def tapped_send(
            connection: Connection, request: Request, frame: bytes
        ) -> Awaitable[None] | None:
            exchange = self._open.pop((id(connection), request.correlation_id), None)
            if exchange is not None and broker.alive:
                exchange.ended_s = self._now_s()
                if self._history.throttled_s is not None and request.api_key in (PRODUCE, FETCH):
                    self._add_throttle(request, connection, frame)
                teller = self._tellers.get(request.api_key)
                if teller is not None and request.body is not None:
                    body = read_response(request.api_key, request.api_version, frame[4:])[1]
                    teller(request, body, exchange)
            return send(connection, request, frame)

        def tapped_closed(connection: Connection) -> None:
            for key in [key for key in self._open if key[0] == id(connection)]:
                exchange = self._open.pop(key)
                exchange.ended_s, exchange.is_cut = self._now_s(), True
            closed(connection)

        for name, tapped in (
            ("_serve", tapped_serve),
            ("_send", tapped_send),
            ("_closed", tapped_closed),
        ):
            setattr(broker, name, tapped)

    # Quotas.

    def _add_throttle(self, request: Request, connection: Connection, frame: bytes) -> None:
        body = read_response(request.api_key, request.api_version, frame[4:])[1]
        throttle_s = body.throttle_time.total_seconds()
        if throttle_s and self._history.throttled_s is not None:
            self._history.throttled_s += throttle_s
            self._throttled_until_s[connection] = self._now_s() + throttle_s

    def _check_throttle(self, broker: int, request: Request, connection: Connection) -> None:
        until_s, now_s = self._throttled_until_s.pop(connection, 0.0), self._now_s()
        if now_s < until_s - _ROUNDING_S:
            client = request.client_id or ""
            self._history.served_early.append(ServedEarly(client, broker, now_s, until_s))

    # Members.

    def live_members(self, group: str) -> list[str]:
        """Return the members that were heard within a session, and did not leave."""
        least_s = self._now_s() - self._session_s
        return sorted(
            member
            for (of_group, member), heard_s in self._heard_s.items()
            if of_group == group and heard_s >= least_s and (group, member) not in self._left
        )

    def _hear(self, group: str, member: str, code: int, exchange: Exchange, of_type: str) -> None:
        key = (group, member)
        if code in _HEARD:
            self._heard_s[key] = exchange.began_s
        elif code in _EXPELLING and key in self._heard_s and key not in self._left:
            assert exchange.ended_s is not None
            heard_s, told_s = self._heard_s.pop(key), exchange.ended_s
            text, error = f"{member} of {group}", ErrorCode(code).name
            self._history.expelled.append(
                Expelled(text, of_type, heard_s, told_s, self._session_s, error)
            )
            self.assigned.pop(key, None)

    def _leave(self, group: str, member: str) -> None:
        self._left.add((group, member))
        self.assigned.pop((group, member), None)

    def _on_join(self, request: Request, body: Any, exchange: Exchange) -> None:
        group = request.body.group_id
        if request.body.member_id and body.error_code:
            self._hear(group, request.body.member_id, body.error_code, exchange, "classic")
        if body.error_code == ErrorCode.NONE:
            self._heard_s[group, body.member_id] = self._now_s()
            self._add_epoch("generation", group, body.generation_id, "")

    def _on_sync(self, request: Request, body: Any, exchange: Exchange) -> None:
        asked = request.body
        self._hear(asked.group_id, asked.member_id, body.error_code, exchange, "classic")
        if body.error_code == ErrorCode.NONE:
            parts = frozenset(read_assignment(body.assignment))
            self.assigned[asked.group_id, asked.member_id] = parts

    def _on_heartbeat(self, request: Request, body: Any, exchange: Exchange) -> None:
        asked = request.body
        self._hear(asked.group_id, asked.member_id, body.error_code, exchange, "classic")

    def _on_leave(self, request: Request, body: Any, exchange: Exchange) -> None:
        asked = request.body
        lists = request.api_version >= _FIRST_LIST_OF_LEAVING
        for one in asked.members if lists else (asked,):
            self._leave(asked.group_id, one.member_id)
            # A static member may be told by its instance alone.
            instance_id = getattr(one, "group_instance_id", None)
            if instance_id:
                self._left.add((asked.group_id, instance_id))

    def _on_epoch_heartbeat(self, request: Request, body: Any, exchange: Exchange) -> None:
        asked, of_type = request.body, _HEARTBEATS[request.api_key]
        key = (asked.group_id, body.member_id or asked.member_id)
        self._hear(*key, body.error_code, exchange, of_type)
        if body.error_code != ErrorCode.NONE:
            if of_type != "consumer":
                self.untold.add(key)
            return
        if asked.member_epoch <= _LEAVE_EPOCH:
            self._leave(*key)
            return
        self._left.discard(key)
        if asked.member_epoch:
            self._add_epoch("member", f"{key[1]} of {key[0]}", body.member_epoch, "")
        self.member_epochs[key] = body.member_epoch
        if of_type == "streams":
            if body.active_tasks is not None:
                self.untold.discard(key)
                self.assigned[key] = frozenset(read_tasks(body.active_tasks))
        elif body.assignment is not None:
            self.untold.discard(key)
            self.assigned[key] = frozenset(
                (str(topic.topic_id), number)
                for topic in body.assignment.topic_partitions
                for number in topic.partitions
            )

    # Offsets.

    def _on_commit(self, request: Request, body: Any, exchange: Exchange) -> None:
        asked = request.body
        codes = {
            (_name(topic), one.partition_index): one.error_code
            for topic in body.topics
            for one in topic.partitions
        }
        if asked.member_id:
            for code in set(codes.values()) & _COMMIT_CODES:
                self._hear(asked.group_id, asked.member_id, code, exchange, "classic")
        for partition, offset in _committed(asked):
            if codes.get(partition) == ErrorCode.NONE:
                self._add_offset(asked.group_id, partition, offset, exchange, True)

    def _on_transactional_commit(self, request: Request, body: Any, exchange: Exchange) -> None:
        asked = request.body
        codes = {one.error_code for topic in body.topics for one in topic.partitions}
        if codes == {ErrorCode.NONE}:
            pending = self._pending.setdefault(asked.transactional_id, {})
            for partition, offset in _committed(asked):
                pending[asked.group_id, self._partition(*partition)] = offset

    def _on_offsets(self, request: Request, body: Any, exchange: Exchange) -> None:
        for group in getattr(body, "groups", None) or (body,):
            group_id = getattr(group, "group_id", None) or request.body.group_id
            if getattr(group, "error_code", 0):
                continue
            for topic in group.topics:
                for one in topic.partitions:
                    if one.error_code == ErrorCode.NONE:
                        key = (_name(topic), one.partition_index)
                        self._add_offset(group_id, key, one.committed_offset, exchange, False)

    def _add_offset(
        self,
        group: str,
        partition: tuple[Any, int],
        offset: int,
        exchange: Exchange,
        is_commit: bool,
    ) -> None:
        topic = self._cluster.topic_of(partition[0]) if isinstance(partition[0], UUID) else None
        name = partition[0] if topic is None else topic.name
        if self._now_s() < self.made_anew.get(name, 0.0):
            return
        told = (exchange.began_s, self._now_s(), is_commit)
        self._history.offsets.append(Offset(group, self._partition(*partition), offset, *told))

    # Producers.

    def _on_producer_id(self, request: Request, body: Any, exchange: Exchange) -> None:
        if body.error_code == ErrorCode.NONE and request.body.transactional_id is not None:
            self._pending.pop(request.body.transactional_id, None)
            self._tell_producer(request.body.transactional_id, body, "initialized")

    def _on_end(self, request: Request, body: Any, exchange: Exchange) -> None:
        asked = request.body
        if body.error_code != ErrorCode.NONE:
            return
        for (group, partition), offset in self._pending.pop(asked.transactional_id, {}).items():
            if asked.committed:
                told_s = self._now_s()
                self._history.offsets.append(
                    Offset(group, partition, offset, exchange.began_s, told_s, True)
                )
        if getattr(body, "producer_id", -1) >= 0:
            self._tell_producer(asked.transactional_id, body, "")

    def _tell_producer(self, transactional_id: str, body: Any, holder: str) -> None:
        self.producers[transactional_id] = (body.producer_id, body.producer_epoch)
        name = f"producer {body.producer_id} of {transactional_id}"
        if holder:  # each initialization has an epoch of its own
            holder = f"{holder} at {self._now_s():.3f} s"
        self._add_epoch("producer", name, body.producer_epoch, holder)

    # Topics.

    def _on_metadata(self, request: Request, body: Any, exchange: Exchange) -> None:
        for topic in body.topics:
            for one in topic.partitions:
                epoch = getattr(one, "leader_epoch", -1)
                if topic.error_code == one.error_code == ErrorCode.NONE and epoch >= 0:
                    name = "-".join(map(str, self._partition(topic.name, one.partition_index)))
                    self._add_epoch("leader", name, epoch, f"broker {one.leader_id}")

    def _add_epoch(self, kind: str, name: str, epoch: int, holder: str) -> None:
        self._history.epochs.append(Epoch(kind, name, epoch, holder, self._now_s()))

    def _partition(self, topic: Any, number: int) -> Partition:
        known = self._cluster.controller.topics.get(topic) if isinstance(topic, str) else None
        return str(topic if known is None else known.topic_id), number


_HEARTBEATS = {
    CONSUMER_HEARTBEAT: "consumer",
    SHARE_HEARTBEAT: "share",
    STREAMS_HEARTBEAT: "streams",
}


def read_tasks(listed: Any) -> list[Partition]:
    """Return tasks, by subtopology."""
    return [(one.subtopology_id, number) for one in listed for number in one.partitions]


def _name(topic: Any) -> Any:
    """A topic's name, or its id in versions that have no names."""
    return getattr(topic, "name", None) or topic.topic_id


def _committed(body: Any) -> Iterator[tuple[tuple[Any, int], int]]:
    for topic in body.topics:
        for one in topic.partitions:
            yield (_name(topic), one.partition_index), one.committed_offset


_SHORT, _INT = struct.Struct(">h"), struct.Struct(">i")


def read_assignment(data: bytes) -> list[tuple[str, int]]:
    """Return the partitions of an assignment of the classic protocol."""
    found: list[tuple[str, int]] = []
    if not data:
        return found
    (topics,) = _INT.unpack_from(data, 2)
    at = 6
    for _ in range(topics):
        (size,) = _SHORT.unpack_from(data, at)
        name = data[at + 2 : at + 2 + size].decode()
        at += 2 + size
        (count,) = _INT.unpack_from(data, at)
        found += [(name, _INT.unpack_from(data, at + 4 + 4 * one)[0]) for one in range(count)]
        at += 4 + 4 * count
    return found
