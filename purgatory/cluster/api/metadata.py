"""Metadata and DescribeCluster: who lives, who leads what."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from purgatory.cluster.api import permitted_operations
from purgatory.cluster.broker import Broker
from purgatory.cluster.cluster_metadata import ClusterMetadata
from purgatory.cluster.listener import Listener
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka.topics import NO_LEADER, Topic, why_no_topic_name

_UNKNOWN_TOPIC = 3
_LEADER_NOT_AVAILABLE = 5
_INVALID_TOPIC = 17
_INVALID_REQUEST = 42
_UNKNOWN_TOPIC_ID = 100
_MISMATCHED_ENDPOINT_TYPE = 114
_BROKERS = 1
"""The type of the endpoints that a client asks for."""
_BY_ID_SINCE = 12
"""Since this version of Metadata a topic may be asked for by its id alone."""


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
        wanted = dict.fromkeys((one.name, getattr(one, "topic_id", None)) for one in body.topics)
        topics = [
            _topic_with_id(cluster, topic_id, allowed, request.api_version)
            if name is None
            else _named_topic(cluster, name, may_create, allowed)
            for name, topic_id in wanted
        ]
    return {
        "throttle_time": 0,
        "error_code": 0,
        "brokers": _brokers(cluster, connection.listener),
        "cluster_id": cluster.cluster_id,
        "controller_id": _controller(cluster),
        "topics": topics,
        "cluster_authorized_operations": permitted_operations.of_cluster(body),
    }


async def describe_cluster(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Tell who lives. The controllers, for whom a client may ask instead, are no brokers."""
    cluster = broker.cluster
    asks_brokers = getattr(request.body, "endpoint_type", _BROKERS) == _BROKERS
    brokers = [
        {
            "broker_id": one["node_id"],
            "host": one["host"],
            "port": one["port"],
            "rack": one["rack"],
            "is_fenced": False,
        }
        for one in _brokers(cluster, connection.listener)
    ]
    return {
        "throttle_time": 0,
        "error_code": 0 if asks_brokers else _MISMATCHED_ENDPOINT_TYPE,
        "error_message": None if asks_brokers else "the controllers have no listeners of their own",
        "endpoint_type": _BROKERS,
        "cluster_id": cluster.cluster_id,
        "controller_id": _controller(cluster),
        "brokers": brokers if asks_brokers else (),
        "cluster_authorized_operations": permitted_operations.of_cluster(request.body),
    }


def _brokers(cluster: ClusterMetadata, listener: Listener) -> list[dict[str, Any]]:
    return [
        {
            "node_id": broker.broker_id,
            **broker.place(listener)._asdict(),
            "rack": cluster.config.rack(broker.broker_id),
        }
        for broker in cluster.brokers.values()
        if broker.alive
    ]


def _controller(cluster: ClusterMetadata) -> int:
    return min(cluster.controller.live, default=-1)


def _topic_with_id(
    cluster: ClusterMetadata, topic_id: UUID | None, allowed: int, api_version: int
) -> dict[str, Any]:
    may_ask = topic_id is not None and api_version >= _BY_ID_SINCE
    topic = cluster.controller.topic_with_id(topic_id) if topic_id and may_ask else None
    if topic is not None:
        return _topic(cluster, topic, allowed)
    return {
        "error_code": _UNKNOWN_TOPIC_ID if may_ask else _INVALID_REQUEST,
        "name": None if api_version >= _BY_ID_SINCE else "",
        "topic_id": topic_id,
        "partitions": (),
    }


def _named_topic(
    cluster: ClusterMetadata, name: str, may_create: bool, allowed: int
) -> dict[str, Any]:
    topic = cluster.controller.topics.get(name)
    if topic is not None:
        return _topic(cluster, topic, allowed)
    others = cluster.controller.topics if may_create else ()
    error = _UNKNOWN_TOPIC if why_no_topic_name(name, others) is None else _INVALID_TOPIC
    may_create = may_create and cluster.has_room_for(cluster.config.default_partitions)
    if may_create and error == _UNKNOWN_TOPIC:
        topic = cluster.controller.create_topic(
            name, cluster.config.default_partitions, cluster.default_replication
        )
        return _topic(cluster, topic, allowed)
    return {
        "error_code": error,
        "name": name,
        "topic_id": None,
        "is_internal": False,
        "partitions": (),
    }


def _topic(cluster: ClusterMetadata, topic: Topic, allowed: int) -> dict[str, Any]:
    live = cluster.controller.live
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
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
