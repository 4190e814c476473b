"""OffsetCommit, TxnOffsetCommit and OffsetFetch: how far groups have read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from purgatory.cluster.api.answer_of import answer_of
from purgatory.cluster.broker import Broker
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka import (
    CommittedOffset,
    ErrorCode,
    GroupRefusal,
    ProducerIdentity,
    TopicPartition,
)
from purgatory.kafka.transactions.transaction_verification import PASSING, verified

_SEVERAL_GROUPS_SINCE = 8
_EPOCHS_SINCE = 9
_NOTHING = CommittedOffset(-1, -1, "")


async def offset_commit(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Commit offsets; answered once they are replicated."""
    body = request.body
    offsets = _asked_offsets(body)
    codes = unsaved = dict.fromkeys(offsets, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if broker.cluster.is_saved():
        codes = await answer_of(
            partial(
                broker.groups.commit,
                body.group_id,
                getattr(body, "generation_id_or_member_epoch", -1),
                body.member_id,
                getattr(body, "group_instance_id", None),
                offsets,
                knows_epochs=request.api_version >= _EPOCHS_SINCE,
            )
        )
    if not broker.cluster.is_saved():
        codes = unsaved
    if broker.cluster.trace is not None:
        stored = {place: one for place, one in offsets.items() if not codes[place]}
        broker.cluster.trace.committed(body.group_id, stored)
    return _committed_answer(body, codes)


def _asked_offsets(body: Any) -> dict[TopicPartition, CommittedOffset]:
    return {
        TopicPartition(topic.name, asked.partition_index): CommittedOffset(
            asked.committed_offset,
            getattr(asked, "committed_leader_epoch", -1),
            asked.committed_metadata or "",
        )
        for topic in body.topics
        for asked in topic.partitions
    }


def _committed_answer(body: Any, codes: Mapping[TopicPartition, ErrorCode]) -> Answer:
    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": asked.partition_index,
                        "error_code": int(codes[TopicPartition(topic.name, asked.partition_index)]),
                    }
                    for asked in topic.partitions
                ],
            }
            for topic in body.topics
        ],
    }


async def txn_offset_commit(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Commit offsets that hold with a producer's transaction."""
    body = request.body
    offsets = _asked_offsets(body)
    producer = ProducerIdentity(body.producer_id, body.producer_epoch)
    place = broker.groups.place_of(body.group_id)
    coordinator_of = broker.cluster.coordinator_of
    code = verified(body.transactional_id, producer, [place], coordinator_of)[place]
    if code in PASSING or not broker.cluster.is_saved():
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    codes: Mapping[TopicPartition, ErrorCode] = dict.fromkeys(offsets, code)
    if code is ErrorCode.NONE:
        codes = await answer_of(
            partial(
                broker.groups.commit_in_transaction,
                body.group_id,
                producer,
                getattr(body, "generation_id", -1),
                getattr(body, "member_id", ""),
                getattr(body, "group_instance_id", None),
                offsets,
            )
        )
    if not broker.cluster.is_saved():
        codes = dict.fromkeys(offsets, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return _committed_answer(body, codes)


async def offset_fetch(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Tell what groups have committed."""
    body = request.body
    stable = getattr(body, "require_stable", False)
    if request.api_version < _SEVERAL_GROUPS_SINCE:
        return {"throttle_time": 0, **_group(broker, body.group_id, body.topics, stable)}
    return {
        "throttle_time": 0,
        "groups": [
            {
                "group_id": asked.group_id,
                **_group(
                    broker,
                    asked.group_id,
                    asked.topics,
                    stable,
                    getattr(asked, "member_id", None) or "",
                    getattr(asked, "member_epoch", -1),
                ),
            }
            for asked in body.groups
        ],
    }


def _group(
    broker: Broker,
    group_id: str,
    topics: Sequence[Any] | None,
    stable: bool,
    member_id: str = "",
    epoch: int = -1,
) -> dict[str, Any]:
    """Tell what a group has committed; with ``stable`` not what a transaction may yet change."""
    code = ErrorCode.NONE
    offsets: Mapping[TopicPartition, CommittedOffset] = {}
    pending: Collection[TopicPartition] = ()
    try:
        offsets = broker.groups.committed(group_id, member_id, epoch)
        if stable:
            pending = broker.groups.pending(group_id)
    except GroupRefusal as refusal:
        code = refusal.code
    if topics is None:
        asked: dict[str, list[int]] = {}
        for topic, partition in dict.fromkeys([*offsets, *pending]):
            asked.setdefault(topic, []).append(partition)
    else:
        asked = {topic.name: list(topic.partition_indexes) for topic in topics}
    return {
        "error_code": int(code),
        "topics": [
            {
                "name": topic,
                "partitions": [
                    _unstable(partition)
                    if TopicPartition(topic, partition) in pending
                    else _committed(partition, code, offsets.get(TopicPartition(topic, partition)))
                    for partition in partitions
                ],
            }
            for topic, partitions in asked.items()
        ],
    }


def _unstable(partition: int) -> dict[str, Any]:
    return _committed(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT, None)


def _committed(
    partition: int, code: ErrorCode, committed: CommittedOffset | None
) -> dict[str, Any]:
    committed = committed or _NOTHING
    return {
        "partition_index": partition,
        "error_code": int(code),
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
    }
