"""What a cluster looks like at one moment, as plain data: for the control, the live view, tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
                    partition_state(cluster, TopicPartition(topic.name, number))
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


def partition_state(cluster: Cluster, topic_partition: TopicPartition) -> dict[str, Any]:
    """Return how it stands with one partition. O(its replicas)."""
    state = cluster.controller.state_of(topic_partition)
    assert state is not None, "the controller was just asked for it"
    values: dict[str, Any] = {
        "partition": topic_partition.partition,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "replicas": state.replicas,
        "isr": state.isr,
        "high_watermark": None,
        "log_end_offsets": {},
    }
    for broker_id in state.replicas:
        broker = cluster.live_broker(broker_id)
        replica = None if broker is None else broker.manager.partition(topic_partition)
        if replica is not None:
            values["log_end_offsets"][broker_id] = replica.log_end_offset
            if broker_id == state.leader:
                values["high_watermark"] = replica.high_watermark
    return values
