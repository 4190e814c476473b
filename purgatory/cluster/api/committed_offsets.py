"""OffsetCommit and OffsetFetch: how far groups have read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from purgatory.cluster.api.answer_of import answer_of
from purgatory.cluster.broker import Broker
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka import CommittedOffset, ErrorCode, GroupRefusal, TopicPartition

_SEVERAL_GROUPS_SINCE = 8
_NOTHING = CommittedOffset(-1, -1, "")


async def offset_commit(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Commit offsets; answered once they are replicated."""
    body = request.body
    offsets = {
        TopicPartition(topic.name, asked.partition_index): CommittedOffset(
            asked.committed_offset,
            getattr(asked, "committed_leader_epoch", -1),
            asked.committed_metadata or "",
        )
        for topic in body.topics
        for asked in topic.partitions
    }
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
            )
        )
    if not broker.cluster.is_saved():
        codes = unsaved
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


async def offset_fetch(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Tell what groups have committed."""
    body = request.body
    if request.api_version < _SEVERAL_GROUPS_SINCE:
        return {"throttle_time": 0, **_group(broker, body.group_id, body.topics)}
    return {
        "throttle_time": 0,
        "groups": [
            {"group_id": asked.group_id, **_group(broker, asked.group_id, asked.topics)}
            for asked in body.groups
        ],
    }


def _group(broker: Broker, group_id: str, topics: Sequence[Any] | None) -> dict[str, Any]:
    code = ErrorCode.NONE
    offsets: Mapping[TopicPartition, CommittedOffset] = {}
    try:
        offsets = broker.groups.committed(group_id)
    except GroupRefusal as refusal:
        code = refusal.code
    if topics is None:
        asked: dict[str, list[int]] = {}
        for topic, partition in offsets:
            asked.setdefault(topic, []).append(partition)
    else:
        asked = {topic.name: list(topic.partition_indexes) for topic in topics}
    return {
        "error_code": int(code),
        "topics": [
            {
                "name": topic,
                "partitions": [
                    _committed(partition, code, offsets.get(TopicPartition(topic, partition)))
                    for partition in partitions
                ],
            }
            for topic, partitions in asked.items()
        ],
    }


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
