"""What one partition of a cluster looks like at one moment, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from purgatory.kafka import TopicPartition

if TYPE_CHECKING:
    from purgatory.cluster.cluster_metadata import ClusterMetadata


def partition_state(cluster: ClusterMetadata, topic_partition: TopicPartition) -> dict[str, Any]:
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
