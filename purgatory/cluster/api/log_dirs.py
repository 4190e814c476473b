"""DescribeLogDirs and AlterReplicaLogDirs: the size of replicas, and the free space on the disk.

A broker has one log folder: AlterReplicaLogDirs accepts no other.
"""

from __future__ import annotations

from typing import Any

from purgatory.cluster.api.authorization import authorization_context
from purgatory.cluster.broker_services import BrokerServices
from purgatory.cluster.protocol.connection import Connection, Response
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka import Partition, TopicPartition
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.security.authorizer import Operation

_IN_MEMORY = "memory"


async def describe_log_dirs(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Describe the only log folder of a broker, or its memory."""
    requested = request.body.topics
    topics: dict[str, list[dict[str, Any]]] = {}
    for partition in broker.manager.partitions():
        topic, number = partition.topic_partition
        if requested is None or any(
            topic == other.topic and number in other.partitions for other in requested
        ):
            topics.setdefault(topic, []).append(_size(broker, partition))
    if broker.logs.folder is None:
        memory = broker.cluster.memory
        total_bytes, usable_bytes = memory.limit_bytes, memory.limit_bytes - memory.used_bytes
    else:
        assert broker.cluster.config.data_dir is not None
        total_bytes, usable_bytes = broker.cluster.data_disk.disk_usage(
            broker.cluster.config.data_dir
        )
    return {
        "throttle_time": 0,
        "error_code": 0,
        "results": [
            {
                "error_code": 0,
                "log_dir": log_dir_of(broker),
                "topics": [
                    {"name": name, "partitions": partitions} for name, partitions in topics.items()
                ],
                "total_bytes": total_bytes,
                "usable_bytes": usable_bytes,
                "is_cordoned": False,
            }
        ],
    }


async def alter_replica_log_dirs(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Accept the present folder of a replica, and no other."""
    context = authorization_context(broker, request, connection)
    is_allowed = context is None or context.allows_cluster(Operation.ALTER)
    topics: dict[str, list[dict[str, Any]]] = {}
    for folder in request.body.dirs:
        for topic in folder.topics:
            for number in topic.partitions:
                code = (
                    _move_error(broker, folder.path, TopicPartition(topic.name, number))
                    if is_allowed
                    else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                )
                partition = {"partition_index": number, "error_code": code}
                topics.setdefault(topic.name, []).append(partition)
    return {
        "throttle_time": 0,
        "results": [
            {"topic_name": name, "partitions": partitions} for name, partitions in topics.items()
        ],
    }


def _move_error(broker: BrokerServices, folder: str, replica: TopicPartition) -> int:
    if folder != log_dir_of(broker):
        return ErrorCode.LOG_DIR_NOT_FOUND
    if broker.cluster.controller.state_of(replica) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    is_here = broker.manager.partition(replica) is not None
    return 0 if is_here else ErrorCode.REPLICA_NOT_AVAILABLE


def log_dir_of(broker: BrokerServices) -> str:
    return _IN_MEMORY if broker.logs.folder is None else str(broker.logs.folder)


def _size(broker: BrokerServices, partition: Partition) -> dict[str, Any]:
    return {
        "partition_index": partition.topic_partition.partition,
        "partition_size": partition.log.size_bytes,
        "offset_lag": _lag(broker, partition.topic_partition, partition.log_end_offset),
        "is_future_key": False,
    }


def _lag(broker: BrokerServices, topic_partition: TopicPartition, end_offset: int) -> int:
    """Return the lag of a replica behind its leader, in records; 0 without a leader."""
    state = broker.cluster.controller.state_of(topic_partition)
    leader = None if state is None else broker.cluster.live_broker(state.leader)
    led = None if leader is None else leader.manager.partition(topic_partition)
    return 0 if led is None else max(0, led.high_watermark - end_offset)
