"""OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete: the committed offsets of groups."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from purgatory.cluster.api.response_future import (
    coordinator_response,
    response_future,
    saved_response,
)
from purgatory.cluster.broker_services import BrokerServices
from purgatory.cluster.protocol.connection import Connection, Response
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka import (
    CommittedOffset,
    ErrorCode,
    GroupRefusal,
    ProducerIdentity,
    TopicPartition,
)
from purgatory.kafka.groups.offsets import NO_EXPIRY_MS
from purgatory.kafka.transactions.transaction_verification import (
    RETRIABLE,
    add_partitions,
    verify_partitions,
)

_ADD_OFFSETS_MIN_VERSION = 5
"""The first version of TxnOffsetCommit that adds the group's offsets to the transaction."""
_KNOWS_ABORTABLE_MIN_VERSION = 4
"""The first version of TxnOffsetCommit that has TRANSACTION_ABORTABLE."""

_GROUP_ERROR_MIN_VERSION = 2
"""The first version of OffsetFetch with an error of the group; before, its partitions have it."""
_GROUPS_MIN_VERSION = 8
_EPOCHS_MIN_VERSION = 9
_TOPIC_IDS_MIN_VERSION = 10
_NO_OFFSET = CommittedOffset(-1, -1, "")
_BY_CLUSTER = timedelta(milliseconds=-1)
"""The retention of a commit that leaves it to the cluster."""

Codes = Mapping[TopicPartition, ErrorCode]
_RequestedTopic = tuple[str | None, UUID | None, Sequence[int]]
"""A topic's name, its id, and the partitions that are requested."""


async def offset_commit(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Commit offsets; complete when they are replicated."""
    body = request.body
    offsets = _requested_offsets(broker, body)
    codes: Codes = await saved_response(
        broker.cluster,
        partial(
            broker.groups.offset_metadata.commit,
            body.group_id,
            getattr(body, "generation_id_or_member_epoch", -1),
            body.member_id,
            getattr(body, "group_instance_id", None),
            offsets,
            knows_epochs=request.api_version >= _EPOCHS_MIN_VERSION,
        ),
        dict.fromkeys(offsets, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    )
    if broker.cluster.trace is not None:
        stored = {place: one for place, one in offsets.items() if not codes[place]}
        broker.cluster.trace.record_commit(body.group_id, stored)
    return _committed_response(broker, body, codes)


def _name_of(broker: BrokerServices, topic: Any) -> str | None:
    """Return the name of a topic that is requested by its name or its id; None: unknown."""
    if hasattr(topic, "name"):
        return str(topic.name)
    known = broker.cluster.topic_of(topic.topic_id)
    return None if known is None else known.name


def _requested_offsets(broker: BrokerServices, body: Any) -> dict[TopicPartition, CommittedOffset]:
    commit_ms = broker.now_ms()
    retention_ms = getattr(body, "retention_time", _BY_CLUSTER) // timedelta(milliseconds=1)
    expire_ms = NO_EXPIRY_MS if retention_ms == -1 else commit_ms + retention_ms
    return {
        TopicPartition(name, requested.partition_index): CommittedOffset(
            requested.committed_offset,
            getattr(requested, "committed_leader_epoch", -1),
            requested.committed_metadata or "",
            commit_ms,
            expire_ms,
        )
        for topic in body.topics
        if (name := _name_of(broker, topic)) is not None
        for requested in topic.partitions
    }


def _committed_response(broker: BrokerServices, body: Any, codes: Codes) -> Response:
    unknown = ErrorCode.UNKNOWN_TOPIC_ID
    topics = []
    for topic in body.topics:
        name = _name_of(broker, topic) or ""
        partitions = [
            {
                "partition_index": requested.partition_index,
                "error_code": int(
                    codes.get(TopicPartition(name, requested.partition_index), unknown)
                ),
            }
            for requested in topic.partitions
        ]
        topic_id = getattr(topic, "topic_id", None)
        if partitions:
            topics.append({"name": name, "topic_id": topic_id, "partitions": partitions})
    return {"throttle_time": 0, "topics": topics}


async def txn_offset_commit(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Commit offsets as a part of a producer's transaction."""
    body = request.body
    offsets = _requested_offsets(broker, body)
    producer = ProducerIdentity(body.producer_id, body.producer_epoch)
    place = broker.groups.coordinator_partition(body.group_id)
    coordinator_of = broker.cluster.coordinator_of
    requested = body.transactional_id, producer, [place]
    if request.api_version >= _ADD_OFFSETS_MIN_VERSION:
        codes_of_place = await coordinator_response(
            partial(add_partitions, *requested, coordinator_of),
            {place: ErrorCode.COORDINATOR_NOT_AVAILABLE},
        )
        code = codes_of_place[place]
    else:
        knows_abortable = request.api_version >= _KNOWS_ABORTABLE_MIN_VERSION
        verified = verify_partitions(*requested, coordinator_of, knows_abortable=knows_abortable)
        code = verified[place]
    unavailable: Codes = dict.fromkeys(offsets, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if code in RETRIABLE:
        return _committed_response(broker, body, unavailable)

    def commit(respond: Callable[[Codes], object]) -> None:
        if code is not ErrorCode.NONE:
            respond(dict.fromkeys(offsets, code))
            return
        broker.groups.offset_metadata.commit_in_transaction(
            body.group_id,
            producer,
            getattr(body, "generation_id", -1),
            getattr(body, "member_id", ""),
            getattr(body, "group_instance_id", None),
            offsets,
            respond,
        )

    codes = await saved_response(broker.cluster, commit, unavailable)
    return _committed_response(broker, body, codes)


async def offset_fetch(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Return groups' committed offsets."""
    body = request.body
    stable = getattr(body, "require_stable", False)
    by_ids = request.api_version >= _TOPIC_IDS_MIN_VERSION
    if request.api_version < _GROUPS_MIN_VERSION:
        has_error = request.api_version >= _GROUP_ERROR_MIN_VERSION
        group = _group(broker, body.group_id, body.topics, stable, has_error=has_error)
        return {"throttle_time": 0, **group}
    return {
        "throttle_time": 0,
        "groups": [
            {
                "group_id": requested.group_id,
                **_group(
                    broker,
                    requested.group_id,
                    requested.topics,
                    stable,
                    getattr(requested, "member_id", None) or "",
                    getattr(requested, "member_epoch", -1),
                    by_ids,
                ),
            }
            for requested in body.groups
        ],
    }


def _group(
    broker: BrokerServices,
    group_id: str,
    topics: Sequence[Any] | None,
    stable: bool,
    member_id: str = "",
    epoch: int = -1,
    by_ids: bool = False,
    has_error: bool = True,
) -> dict[str, Any]:
    """Return a group's committed offsets; with ``stable``, none that a transaction may change.

    Requested by ids, deleted topics are omitted.
    """
    code = ErrorCode.NONE
    offsets: Mapping[TopicPartition, CommittedOffset] = {}
    pending: Collection[TopicPartition] = ()
    try:
        offsets = broker.groups.offset_metadata.committed(group_id, member_id, epoch)
        if stable:
            pending = broker.groups.offset_metadata.pending(group_id)
    except GroupRefusal as refusal:
        code = refusal.code
        if has_error:
            return {"error_code": int(code), "topics": ()}
    requested: list[_RequestedTopic] = []
    if topics is None:
        numbers: dict[str, list[int]] = {}
        for name, partition in offsets:
            numbers.setdefault(name, []).append(partition)
        for name, partitions in numbers.items():
            known = broker.cluster.topic_of(name)
            if known is not None or not by_ids:
                requested.append((name, None if known is None else known.topic_id, partitions))
    else:
        for topic in topics:
            topic_id = getattr(topic, "topic_id", None)
            requested.append((_name_of(broker, topic), topic_id, topic.partition_indexes))

    def partition_of(name: str | None, partition: int) -> dict[str, Any]:
        if name is None:
            return _committed(partition, code or ErrorCode.UNKNOWN_TOPIC_ID, None)
        place = TopicPartition(name, partition)
        if place in pending:
            return _committed(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT, None)
        return _committed(partition, code, offsets.get(place))

    return {
        "error_code": int(code),
        "topics": [
            {
                "name": name or "",
                "topic_id": topic_id,
                "partitions": [partition_of(name, partition) for partition in partitions],
            }
            for name, topic_id, partitions in requested
        ],
    }


def _committed(
    partition: int, code: ErrorCode, committed: CommittedOffset | None
) -> dict[str, Any]:
    committed = committed or _NO_OFFSET
    return {
        "partition_index": partition,
        "error_code": int(code),
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
    }


_Responses = tuple[ErrorCode, Mapping[TopicPartition, ErrorCode]]


async def offset_delete(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Delete committed offsets; complete when the deletion is replicated."""
    body = request.body
    places = [
        TopicPartition(topic.name, requested.partition_index)
        for topic in body.topics
        for requested in topic.partitions
    ]

    def fetch_offsets(respond: Callable[[_Responses], object]) -> None:
        broker.groups.offset_metadata.delete_offsets(
            body.group_id, places, lambda code, codes: respond((code, codes))
        )

    code, codes = await response_future(fetch_offsets)
    return {
        "throttle_time": 0,
        "error_code": int(code),
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": requested.partition_index,
                        "error_code": int(
                            codes[TopicPartition(topic.name, requested.partition_index)]
                        ),
                    }
                    for requested in topic.partitions
                ],
            }
            for topic in (body.topics if code is ErrorCode.NONE else ())
        ],
    }
