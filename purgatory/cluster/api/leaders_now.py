"""Who leads now, for answers to clients that asked somebody else, or in an old epoch."""

from __future__ import annotations

from collections.abc import Mapping

from purgatory.cluster.cluster_metadata import ClusterMetadata
from purgatory.cluster.listener import Listener
from purgatory.cluster.protocol.leader_hints import NO_HINTS, Key, LeaderHints, NodeEndpoint
from purgatory.kafka import (
    ErrorCode,
    PartitionFetchResponse,
    PartitionProduceResponse,
    TopicPartition,
)

_HINTED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def leader_hints(
    cluster: ClusterMetadata,
    listener: Listener,
    answers: Mapping[Key, PartitionProduceResponse] | Mapping[Key, PartitionFetchResponse],
) -> LeaderHints:
    """Return who leads the partitions whose clients are to go to another broker. O(answers).

    Args:
        cluster: whose brokers they are.
        listener: by which the client came.
        answers: what it is answered.
    """
    for answer in answers.values():
        if answer.error in _HINTED:
            break
    else:
        return NO_HINTS
    wrong = [key for key, answer in answers.items() if answer.error in _HINTED]
    leaders = {}
    for key in wrong:
        topic = cluster.topic_of(key[0])
        state = topic and cluster.controller.state_of(TopicPartition(topic.name, key[1]))
        if state:
            leaders[key] = (state.leader, state.leader_epoch)
    endpoints = [
        NodeEndpoint(broker.broker_id, *broker.place(listener), None)
        for broker_id in sorted({leader for leader, _ in leaders.values()})
        if (broker := cluster.live_broker(broker_id)) is not None
    ]
    return LeaderHints(leaders, tuple(endpoints))
