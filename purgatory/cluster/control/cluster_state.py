"""What a cluster looks like at one moment, as plain data: for the control and for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from purgatory.cluster.control.partition_state import partition_state
from purgatory.kafka import TopicPartition

if TYPE_CHECKING:
    from purgatory.cluster.broker import Broker
    from purgatory.cluster.cluster import Cluster
    from purgatory.core.async_purgatory import AsyncPurgatory

_NS_PER_MS = 1_000_000


def cluster_state(cluster: Cluster) -> dict[str, Any]:
    """Return brokers, topics, groups, purgatories and faults. O(partitions)."""
    return {
        "bootstrap_servers": cluster.bootstrap_servers,
        "elections": cluster.controller.elections,
        "brokers": [_broker(broker) for broker in cluster.brokers.values()],
        "topics": [
            {
                "name": topic.name,
                "internal": topic.internal,
                "settings": topic.configs,
                "partitions": [
                    _partition(cluster, TopicPartition(topic.name, number))
                    for number in range(len(topic.partitions))
                ],
            }
            for topic in cluster.controller.topics.values()
        ],
        "groups": [
            {
                "name": group.group_id,
                "broker": broker.broker_id,
                "state": group.state.value,
                "generation": group.generation,
                "members": list(group.members),
            }
            for broker in cluster.brokers.values()
            if broker.alive
            for group in broker.groups.groups.values()
        ],
        "faults": [fault.as_dict() for fault in cluster.fault.recent],
    }


def _partition(cluster: Cluster, topic_partition: TopicPartition) -> dict[str, Any]:
    state = partition_state(cluster, topic_partition)
    leader = cluster.live_broker(state["leader"])
    led = None if leader is None else leader.manager.partition(topic_partition)
    return {**state, "log_start_offset": None if led is None else led.log_start_offset}


def _broker(broker: Broker) -> dict[str, Any]:
    return {
        "id": broker.broker_id,
        "host": broker.host,
        "port": broker.port,
        "alive": broker.alive,
        "connections": broker.connection_count,
        "purgatories": [_purgatory(one) for one in broker.purgatories] if broker.alive else [],
    }


def _purgatory(purgatory: AsyncPurgatory) -> dict[str, Any]:
    return {
        "name": purgatory.name,
        "pending": purgatory.num_delayed,
        "oldest_ms": purgatory.core.oldest_pending_ns // _NS_PER_MS,
        "outcomes": purgatory.counters.outcomes,
    }
