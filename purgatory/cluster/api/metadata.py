"""Metadata and DescribeCluster: who lives, who leads what."""

from __future__ import annotations

import re
from typing import Any

from purgatory.cluster.api import permitted_operations
from purgatory.cluster.broker import Broker
from purgatory.cluster.cluster_metadata import ClusterMetadata
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka.controller import NO_LEADER, Topic

_UNKNOWN_TOPIC = 3
_LEADER_NOT_AVAILABLE = 5
_INVALID_TOPIC = 17
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    """Whether Kafka would take it as a topic's name."""
    return _NAME.fullmatch(name) is not None and name not in (".", "..")


async def metadata(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Tell about the topics that are asked for, or all; make those that are missing, if allowed."""
    body, cluster = request.body, broker.cluster
    allowed = permitted_operations.of_topic(body)
    if body.topics is None:
        topics = [_topic(cluster, topic, allowed) for topic in cluster.controller.topics.values()]
    else:
        may_create = cluster.config.auto_create_topics and getattr(
            body, "allow_auto_topic_creation", True
        )
        names = dict.fromkeys(asked.name for asked in body.topics)
        topics = [_named_topic(cluster, name, may_create, allowed) for name in names]
    return {
        "throttle_time": 0,
        "brokers": _brokers(cluster),
        "cluster_id": cluster.cluster_id,
        "controller_id": _controller(cluster),
        "topics": topics,
        "cluster_authorized_operations": permitted_operations.of_cluster(body),
    }


async def describe_cluster(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Tell who lives."""
    cluster = broker.cluster
    brokers = [
        {"broker_id": one["node_id"], "host": one["host"], "port": one["port"], "rack": None}
        for one in _brokers(cluster)
    ]
    return {
        "throttle_time": 0,
        "error_code": 0,
        "error_message": None,
        "cluster_id": cluster.cluster_id,
        "controller_id": _controller(cluster),
        "brokers": brokers,
        "cluster_authorized_operations": permitted_operations.of_cluster(request.body),
    }


def _brokers(cluster: ClusterMetadata) -> list[dict[str, Any]]:
    return [
        {"node_id": broker.broker_id, "host": broker.host, "port": broker.port, "rack": None}
        for broker in cluster.brokers.values()
        if broker.alive
    ]


def _controller(cluster: ClusterMetadata) -> int:
    return min(cluster.controller.live, default=-1)


def _named_topic(
    cluster: ClusterMetadata, name: str, may_create: bool, allowed: int
) -> dict[str, Any]:
    topic = cluster.controller.topics.get(name)
    if topic is not None:
        return _topic(cluster, topic, allowed)
    error = _UNKNOWN_TOPIC if is_topic_name(name) else _INVALID_TOPIC
    may_create = may_create and cluster.has_room_for(cluster.config.default_partitions)
    if may_create and error == _UNKNOWN_TOPIC:
        topic = cluster.controller.create_topic(
            name, cluster.config.default_partitions, cluster.default_replication
        )
        return _topic(cluster, topic, allowed)
    return {"error_code": error, "name": name, "is_internal": False, "partitions": ()}


def _topic(cluster: ClusterMetadata, topic: Topic, allowed: int) -> dict[str, Any]:
    live = cluster.controller.live
    return {
        "error_code": 0,
        "name": topic.name,
        "is_internal": topic.internal,
        "partitions": [
            {
                "error_code": _LEADER_NOT_AVAILABLE if state.leader == NO_LEADER else 0,
                "partition_index": number,
                "leader_id": state.leader,
                "leader_epoch": state.leader_epoch,
                "replica_nodes": state.replicas,
                "isr_nodes": state.isr,
                "offline_replicas": [one for one in state.replicas if one not in live],
            }
            for number, state in enumerate(topic.partitions)
        ],
        "topic_authorized_operations": allowed,
    }
