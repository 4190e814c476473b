"""DescribeLogDirs: what the replicas of a broker take, and how much room there is."""

from __future__ import annotations

import shutil
from typing import Any

from purgatory.cluster.broker import Broker
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka import Partition, TopicPartition

_IN_MEMORY = "memory"


async def describe_log_dirs(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Tell of the one folder that a broker has, or of its memory."""
    asked = request.body.topics
    topics: dict[str, list[dict[str, Any]]] = {}
    for partition in broker.manager.partitions():
        topic, number = partition.topic_partition
        if asked is None or any(topic == one.topic and number in one.partitions for one in asked):
            topics.setdefault(topic, []).append(_size(broker, partition))
    total_bytes, usable_bytes = _room(broker)
    return {
        "throttle_time": 0,
        "error_code": 0,
        "results": [
            {
                "error_code": 0,
                "log_dir": _IN_MEMORY if broker.folder is None else str(broker.folder),
                "topics": [{"name": name, "partitions": told} for name, told in topics.items()],
                "total_bytes": total_bytes,
                "usable_bytes": usable_bytes,
                "is_cordoned": False,
            }
        ],
    }


def _size(broker: Broker, partition: Partition) -> dict[str, Any]:
    return {
        "partition_index": partition.topic_partition.partition,
        "partition_size": partition.log.size_bytes,
        "offset_lag": _lag(broker, partition.topic_partition, partition.log_end_offset),
        "is_future_key": False,
    }


def _lag(broker: Broker, topic_partition: TopicPartition, end_offset: int) -> int:
    """Return by how many records a replica is behind its leader; 0 where nobody leads."""
    state = broker.cluster.controller.state_of(topic_partition)
    leader = None if state is None else broker.cluster.live_broker(state.leader)
    led = None if leader is None else leader.manager.partition(topic_partition)
    return 0 if led is None else max(0, led.high_watermark - end_offset)


def _room(broker: Broker) -> tuple[int, int]:
    if broker.folder is None:
        memory = broker.memory
        return memory.limit_bytes, memory.limit_bytes - memory.used_bytes
    assert broker.cluster.config.data_dir is not None
    usage = shutil.disk_usage(broker.cluster.config.data_dir)
    return usage.total, usage.free
