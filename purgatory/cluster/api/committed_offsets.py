"""OffsetCommit and OffsetFetch: how far groups have read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from purgatory.cluster.api.groups import coordinated_partition
from purgatory.cluster.groups import GroupError, GroupRefusal
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka import TopicPartition

if TYPE_CHECKING:
    from purgatory.cluster.broker import Broker

_UNKNOWN_TOPIC = 3
_OFFSET_METADATA_TOO_LARGE = 12
_MOST_METADATA_BYTES = 4096
_SEVERAL_GROUPS_SINCE = 8
_NOTHING = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}


async def offset_commit(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Commit offsets; answered once they are replicated."""
    body = request.body
    refused: dict[tuple[str, int], int] = {}
    offsets = {}
    for topic in body.topics:
        for asked in topic.partitions:
            of = (topic.name, asked.partition_index)
            metadata = asked.committed_metadata or ""
            if broker.cluster.controller.state_of(TopicPartition(*of)) is None:
                refused[of] = _UNKNOWN_TOPIC
            elif len(metadata.encode()) > _MOST_METADATA_BYTES:
                refused[of] = _OFFSET_METADATA_TOO_LARGE
            else:
                epoch = getattr(asked, "committed_leader_epoch", -1)
                offsets[of] = (asked.committed_offset, epoch, metadata)
    try:
        partition = coordinated_partition(broker, body.group_id)
        generation = getattr(body, "generation_id_or_member_epoch", -1)
        instance_id = getattr(body, "group_instance_id", None)
        broker.groups.check_commit(body.group_id, generation, body.member_id, instance_id)
        code = GroupError.NONE
        if offsets and broker.cluster.is_saved():
            code = await broker.offsets.commit(partition, body.group_id, offsets)
        if not broker.cluster.is_saved():
            code = GroupError.COORDINATOR_NOT_AVAILABLE
    except GroupRefusal as refusal:
        code = refusal.code
        refused.clear()
    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": asked.partition_index,
                        "error_code": refused.get((topic.name, asked.partition_index), int(code)),
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
    code = GroupError.NONE
    try:
        coordinated_partition(broker, group_id)
    except GroupRefusal as refusal:
        code = refusal.code
    offsets = {} if code else broker.offsets.of_group(group_id)
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
                    {
                        "partition_index": partition,
                        "error_code": int(code),
                        **_committed(offsets, topic, partition),
                    }
                    for partition in partitions
                ],
            }
            for topic, partitions in asked.items()
        ],
    }


def _committed(offsets: Any, topic: str, partition: int) -> dict[str, Any]:
    committed = offsets.get((topic, partition))
    if committed is None:
        return dict(_NOTHING)
    return {
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
    }
