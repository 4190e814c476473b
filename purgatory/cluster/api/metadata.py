"""Metadata, DescribeCluster, DescribeTopicPartitions; and the leader hints of other responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from purgatory.cluster.api.acls import (
    NOT_REQUESTED,
    authorized_cluster_operations,
    authorized_topic_operations,
    described_topic_operations,
)
from purgatory.cluster.broker_services import BrokerServices
from purgatory.cluster.listeners import Listener
from purgatory.cluster.metadata import ClusterMetadata, Peer
from purgatory.cluster.protocol.connection import Connection, Response
from purgatory.cluster.protocol.fixed_layouts import NO_HINTS, Key, LeaderHints, NodeEndpoint
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka import (
    ErrorCode,
    PartitionFetchResponse,
    PartitionProduceResponse,
    TopicPartition,
)
from purgatory.kafka.topics import (
    INTERNAL_TOPICS,
    NO_LEADER,
    PartitionState,
    Topic,
    invalid_topic_name_reason,
)

_BROKERS, _CONTROLLERS = 1, 2
"""The types of the endpoints that a client requests."""

_TOPIC_ID_MIN_VERSION = 12
"""Since this version of Metadata a topic may be requested by its id alone."""


async def metadata(broker: BrokerServices, request: Request, connection: Connection) -> Response:
    """Describe the requested topics, or all; create missing ones, if allowed."""
    body, cluster = request.body, broker.cluster
    allowed = authorized_topic_operations(body)
    by_ids = [topic for topic in body.topics or () if getattr(topic, "topic_id", None)]
    topics: list[Mapping[str, Any]]
    if body.topics is None:
        topics = [
            _topic(cluster, topic, allowed)
            for topic in cluster.controller.topics.values()
            if not _is_hidden(broker, topic.name)
        ]
    elif request.api_version < _TOPIC_ID_MIN_VERSION and (
        by_ids or any(topic.name is None for topic in body.topics)
    ):
        return _refusal(body, ErrorCode.INVALID_REQUEST)
    elif not by_ids and any(topic.name is None for topic in body.topics):
        return _refusal(body, ErrorCode.UNKNOWN_SERVER_ERROR)  # as in Kafka
    elif by_ids:  # as in Kafka, whatever names are there
        topic_ids = dict.fromkeys(topic.topic_id for topic in by_ids)
        topics = [_topic_with_id(broker, topic_id, allowed) for topic_id in topic_ids]
    else:
        may_create = cluster.config.auto_create_topics and getattr(
            body, "allow_auto_topic_creation", True
        )
        names = dict.fromkeys(topic.name for topic in body.topics)
        existing = list(cluster.controller.topics) if may_create else ()
        topics = [_named_topic(broker, name, existing, may_create, allowed) for name in names]
    return {
        "throttle_time": 0,
        "error_code": 0,
        "brokers": _brokers(cluster, connection.listener),
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller.controller_id,
        "topics": topics,
        "cluster_authorized_operations": authorized_cluster_operations(body),
    }


async def describe_cluster(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Return the live brokers, and dead ones as fenced where requested.

    Controllers, which a client may request instead, have no listeners of their own.
    """
    body, cluster = request.body, broker.cluster
    values = {"throttle_time": 0, "error_message": None, "endpoint_type": _BROKERS}
    endpoint_type = getattr(body, "endpoint_type", _BROKERS)
    if endpoint_type != _BROKERS:
        is_known = endpoint_type == _CONTROLLERS
        error = (
            ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        )
        return {
            **values,
            "error_code": int(error),
            "error_message": f"endpoint type {endpoint_type}: here are brokers, of type {_BROKERS}",
            "cluster_id": "",
            "controller_id": -1,
            "brokers": (),
        }
    fenced = getattr(body, "include_fenced_brokers", False)
    brokers = [
        {**_node(cluster, peer, connection.listener, "broker_id"), "is_fenced": not peer.alive}
        for peer in cluster.brokers.values()
        if peer.alive or fenced
    ]
    return {
        **values,
        "error_code": 0,
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller.controller_id,
        "brokers": brokers,
        "cluster_authorized_operations": authorized_cluster_operations(body),
    }


def _brokers(cluster: ClusterMetadata, listener: Listener) -> list[dict[str, Any]]:
    return [
        _node(cluster, peer, listener, "node_id") for peer in cluster.brokers.values() if peer.alive
    ]


def _node(cluster: ClusterMetadata, peer: Peer, listener: Listener, key: str) -> dict[str, Any]:
    rack = cluster.config.rack(peer.broker_id)
    return {key: peer.broker_id, **peer.endpoint(listener)._asdict(), "rack": rack}


def _refusal(body: Any, code: ErrorCode) -> Response:
    return {
        "throttle_time": 0,
        "error_code": code,
        "brokers": (),
        "cluster_id": None,
        "controller_id": -1,
        "topics": [
            {
                "error_code": code,
                "name": topic.name or "",
                "topic_id": topic.topic_id,
                "partitions": (),
            }
            for topic in body.topics
        ],
    }


def _is_hidden(broker: BrokerServices, topic: str) -> bool:
    """Whether the broker doesn't know a topic yet."""
    delays = broker.cluster.delays
    return delays is not None and delays.hides_topic(broker.broker_id, topic)


def _topic_with_id(broker: BrokerServices, topic_id: UUID, allowed: int) -> Mapping[str, Any]:
    topic = broker.cluster.controller.topic_with_id(topic_id)
    if topic is not None and not _is_hidden(broker, topic.name):
        return _topic(broker.cluster, topic, allowed)
    unknown = ErrorCode.UNKNOWN_TOPIC_ID
    return {"error_code": unknown, "name": None, "topic_id": topic_id, "partitions": ()}


def _named_topic(
    broker: BrokerServices, name: str, existing: Sequence[str], may_create: bool, allowed: int
) -> Mapping[str, Any]:
    cluster = broker.cluster
    topic = cluster.controller.topics.get(name)
    if topic is None and may_create and name in INTERNAL_TOPICS:
        topic = cluster.create_internal_topic(name)
    if topic is not None and not _is_hidden(broker, name):
        return _topic(cluster, topic, allowed)
    error = (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if invalid_topic_name_reason(name, existing) is None
        else ErrorCode.INVALID_TOPIC_EXCEPTION
    )
    may_create = may_create and cluster.has_room_for(cluster.config.default_partitions)
    if topic is None and may_create and error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        if cluster.delays is not None:
            cluster.delays.begin_topic(name, is_automatic=True)
        topic = cluster.controller.create_topic(
            name, cluster.config.default_partitions, cluster.default_replication
        )
        if not _is_hidden(broker, name):
            return _topic(cluster, topic, allowed)
    return {
        "error_code": error,
        "name": name,
        "topic_id": None,
        "is_internal": name in INTERNAL_TOPICS,
        "partitions": (),
    }


def _topic(cluster: ClusterMetadata, topic: Topic, allowed: int) -> dict[str, Any]:
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "partitions": [
            _partition(cluster, number, state) for number, state in enumerate(topic.partitions)
        ],
        "topic_authorized_operations": allowed,
    }


def _partition(cluster: ClusterMetadata, number: int, state: PartitionState) -> dict[str, Any]:
    """Render a partition for any response: one that lacks a field leaves it out."""
    live = cluster.controller.live
    return {
        "error_code": ErrorCode.LEADER_NOT_AVAILABLE if state.leader == NO_LEADER else 0,
        "partition_index": number,
        "leader_id": state.leader,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": state.replicas,
        # The last one in sync is eligible, and no more in sync, once it is dead (KIP-966).
        "isr_nodes": () if state.leader == NO_LEADER else state.isr,
        "eligible_leader_replicas": state.isr if state.leader == NO_LEADER else (),
        # The last leader, where none is left.
        "last_known_elr": state.isr[:1] if state.leader == NO_LEADER else (),
        "offline_replicas": [broker_id for broker_id in state.replicas if broker_id not in live],
    }


_MAX_PARTITIONS = 2_000


async def describe_topic_partitions(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Describe the requested topics, or all, from the cursor on."""
    body, cluster = request.body, broker.cluster
    cursor = body.cursor
    if cursor is not None and cursor.partition_index < 0:
        refused = {"error_code": int(ErrorCode.INVALID_REQUEST), "topic_id": None, "partitions": ()}
        topics = [{**refused, "name": topic.name} for topic in body.topics]
        return {"throttle_time": 0, "topics": topics, "next_cursor": None}
    requested = {topic.name for topic in body.topics}
    if cursor is not None and requested and max(requested) < cursor.topic_name:
        refused = {"error_code": int(ErrorCode.INVALID_REQUEST), "topic_id": None, "partitions": ()}
        topics = [{**refused, "name": name} for name in sorted(requested)]
        return {"throttle_time": 0, "topics": topics, "next_cursor": None}
    names = sorted(requested or cluster.controller.topics)
    remaining = max(1, min(body.response_partition_limit, _MAX_PARTITIONS))
    topics, following = [], None
    for name in names:
        if cursor is not None and name < cursor.topic_name:
            continue
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if remaining == 0:
            following = {"topic_name": name, "partition_index": first}
            break
        described = _described(cluster, name, first, remaining)
        topics.append(described)
        remaining -= len(described["partitions"])
        until = max(0, first) + len(described["partitions"])
        topic = cluster.controller.topics.get(name)
        if topic is not None and until < len(topic.partitions):
            following = {"topic_name": name, "partition_index": until}
            break
    return {"throttle_time": 0, "topics": topics, "next_cursor": following}


def _described(cluster: ClusterMetadata, name: str, first: int, most: int) -> dict[str, Any]:
    topic = cluster.controller.topics.get(name)
    if topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if invalid_topic_name_reason(name):
            code = ErrorCode.INVALID_TOPIC_EXCEPTION if name else ErrorCode.UNKNOWN_SERVER_ERROR
        return {
            "error_code": code,
            "name": name,
            "topic_id": None,
            "partitions": (),
            "topic_authorized_operations": described_topic_operations() if name else NOT_REQUESTED,
        }
    first = max(0, first)
    return {
        "error_code": 0,
        "name": name,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "partitions": [
            {**_partition(cluster, number, state), "error_code": 0}  # a leader or not, as in Kafka
            for number, state in enumerate(topic.partitions[first : first + most], first)
        ],
        "topic_authorized_operations": described_topic_operations(),
    }


_HINTED_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def leader_hints(
    cluster: ClusterMetadata,
    listener: Listener,
    results: Mapping[Key, PartitionProduceResponse] | Mapping[Key, PartitionFetchResponse],
) -> LeaderHints:
    """Return the leaders of partitions whose clients must use another broker. O(partitions).

    Args:
        cluster: the cluster of the brokers.
        listener: the listener of the client.
        results: those of the requested partitions.
    """
    for result in results.values():
        if result.error in _HINTED_ERRORS:
            break
    else:
        return NO_HINTS
    wrong = [key for key, result in results.items() if result.error in _HINTED_ERRORS]
    leaders = {}
    for key in wrong:
        topic = cluster.topic_of(key[0])
        state = topic and cluster.controller.state_of(TopicPartition(topic.name, key[1]))
        if state:
            leaders[key] = (state.leader, state.leader_epoch)
    endpoints = [
        NodeEndpoint(broker.broker_id, *broker.endpoint(listener), None)
        for broker_id in sorted({leader for leader, _ in leaders.values()})
        if (broker := cluster.live_broker(broker_id)) is not None
    ]
    return LeaderHints(leaders, tuple(endpoints))
