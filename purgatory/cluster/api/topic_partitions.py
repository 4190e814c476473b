"""DescribeTopicPartitions: topics in the order of their names, a page at a time."""

from __future__ import annotations

from typing import Any

from purgatory.cluster.api.permitted_operations import of_described_topic
from purgatory.cluster.broker import Broker
from purgatory.cluster.cluster_metadata import ClusterMetadata
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka.topics import NO_LEADER, PartitionState, why_no_topic_name

_UNKNOWN_TOPIC, _LEADER_NOT_AVAILABLE, _INVALID_TOPIC, _INVALID_REQUEST = 3, 5, 17, 42
_MOST_PARTITIONS = 2_000


async def describe_topic_partitions(
    broker: Broker, request: Request, connection: Connection
) -> Answer:
    """Tell of the topics that are asked for, or all, from the cursor on."""
    body, cluster = request.body, broker.cluster
    cursor = body.cursor
    names = sorted({topic.name for topic in body.topics} or cluster.controller.topics)
    left = max(1, min(body.response_partition_limit, _MOST_PARTITIONS))
    topics, following = [], None
    for name in names:
        if cursor is not None and name < cursor.topic_name:
            continue
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if left == 0:
            following = {"topic_name": name, "partition_index": first}
            break
        described = _described(cluster, name, first, left)
        topics.append(described)
        left -= len(described["partitions"])
        until = max(0, first) + len(described["partitions"])
        topic = cluster.controller.topics.get(name)
        if topic is not None and until < len(topic.partitions):
            following = {"topic_name": name, "partition_index": until}
            break
    return {"throttle_time": 0, "topics": topics, "next_cursor": following}


def _described(cluster: ClusterMetadata, name: str, first: int, most: int) -> dict[str, Any]:
    topic = cluster.controller.topics.get(name)
    if topic is None:
        return {
            "error_code": _INVALID_TOPIC if why_no_topic_name(name) else _UNKNOWN_TOPIC,
            "name": name,
            "topic_id": None,
            "partitions": (),
        }
    first = max(0, first)
    return {
        "error_code": 0,
        "name": name,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "partitions": [
            _partition(cluster, number, state)
            for number, state in enumerate(topic.partitions[first : first + most], first)
        ],
        "topic_authorized_operations": of_described_topic(),
    }


def _partition(cluster: ClusterMetadata, number: int, state: PartitionState) -> dict[str, Any]:
    live = cluster.controller.live
    return {
        "error_code": _LEADER_NOT_AVAILABLE if state.leader == NO_LEADER else 0,
        "partition_index": number,
        "leader_id": state.leader,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": state.replicas,
        "isr_nodes": state.isr,
        "eligible_leader_replicas": (),
        "last_known_elr": (),
        "offline_replicas": [one for one in state.replicas if one not in live],
    }
