"""AlterPartitionReassignments and ListPartitionReassignments: replicas that move."""

from __future__ import annotations

from typing import Any

from purgatory.cluster.broker import Broker
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka import ErrorCode, KafkaError, TopicPartition
from purgatory.kafka.controller import Controller
from purgatory.kafka.topics import PartitionState


async def alter_partition_reassignments(
    broker: Broker, request: Request, connection: Connection
) -> Answer:
    """Begin to move replicas, or call it off; each succeeds or fails by itself."""
    body = request.body
    may_change_count = getattr(body, "allow_replication_factor_change", True)
    return {
        "throttle_time": 0,
        "allow_replication_factor_change": may_change_count,
        "error_code": 0,
        "error_message": None,
        "responses": [
            {
                "name": topic.name,
                "partitions": [
                    _reassigned(broker.cluster.controller, topic.name, asked, may_change_count)
                    for asked in topic.partitions
                ],
            }
            for topic in body.topics
        ],
    }


def _reassigned(
    controller: Controller, topic: str, asked: Any, may_change_count: bool
) -> dict[str, Any]:
    topic_partition = TopicPartition(topic, asked.partition_index)
    code, message = ErrorCode.NONE, None
    try:
        if not may_change_count:
            _check_count(controller.state_of(topic_partition), asked.replicas)
        controller.reassign(topic_partition, asked.replicas)
    except KafkaError as error:
        code, message = error.code, error.message
    return {
        "partition_index": asked.partition_index,
        "error_code": int(code),
        "error_message": message,
    }


def _check_count(state: PartitionState | None, replicas: tuple[int, ...] | None) -> None:
    if state is not None and replicas is not None and len(replicas) != len(state.target):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{len(replicas)} replicas in place of {len(state.target)}, which may not change",
        )


async def list_partition_reassignments(
    broker: Broker, request: Request, connection: Connection
) -> Answer:
    """Tell which partitions are being moved, of those that are asked for, or of all."""
    asked = request.body.topics
    wanted = asked and {(topic.name, one) for topic in asked for one in topic.partition_indexes}
    topics: dict[str, list[dict[str, Any]]] = {}
    for topic_partition, state in broker.cluster.controller.partitions():
        moves = bool(state.adding or state.removing)
        if moves and (asked is None or topic_partition in wanted):
            told = {
                "partition_index": topic_partition.partition,
                "replicas": state.replicas,
                "adding_replicas": state.adding,
                "removing_replicas": state.removing,
            }
            topics.setdefault(topic_partition.topic, []).append(told)
    return {
        "throttle_time": 0,
        "error_code": 0,
        "error_message": None,
        "topics": [{"name": topic, "partitions": told} for topic, told in topics.items()],
    }
