"""What a cluster's metadata were at one moment, for a broker that goes on telling them.

Ground rules
------------
* Only those APIs are asked with it that tell metadata and change nothing (``METADATA_APIS``). What
  isn't kept here is that of the cluster as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from purgatory.kafka import TopicPartition
from purgatory.kafka.controller import Controller
from purgatory.kafka.topics import PartitionState

METADATA_APIS = frozenset(
    {"metadata", "describe_cluster", "describe_topic_partitions", "find_coordinator"}
)
"""What is answered from the metadata alone."""


class LiveCluster(Protocol):
    """The cluster as it is."""

    controller: Controller

    @property
    def brokers(self) -> Mapping[int, Any]:
        """All brokers by id."""


class _Peer(NamedTuple):
    broker_id: int
    host: str
    port: int
    alive: bool
    of: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of, name)


class _Controller:
    """The controller's topics and live brokers as they were."""

    def __init__(self, of: Any) -> None:
        self.topics = copy.deepcopy(of.topics)
        self.live = dict(of.live)
        self._of = of

    def state_of(self, topic_partition: TopicPartition) -> PartitionState | None:
        """Return what was known of a partition."""
        topic = self.topics.get(topic_partition.topic)
        if topic is None or topic_partition.partition >= len(topic.partitions):
            return None
        state: PartitionState = topic.partitions[topic_partition.partition]
        return state

    def topic_with_id(self, topic_id: object) -> Any:
        """Return the topic that had an id, or None. O(topics)."""
        return next((one for one in self.topics.values() if one.topic_id == topic_id), None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


class FrozenCluster:
    """A cluster whose topics, leaders and live brokers are those of the moment when it was made.

    O(partitions).
    """

    def __init__(self, cluster: LiveCluster) -> None:
        self.controller = _Controller(cluster.controller)
        self.brokers = {
            number: _Peer(number, one.host, one.port, one.alive, one)
            for number, one in cluster.brokers.items()
        }
        self._of = cluster

    def live_broker(self, broker_id: int) -> Any:
        """Return a broker that lived then, or None."""
        broker = self.brokers.get(broker_id)
        return broker if broker is not None and broker.alive else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


class FrozenBroker:
    """A broker that sees a cluster as it was."""

    def __init__(self, broker: Any, cluster: FrozenCluster) -> None:
        self.cluster = cluster
        self._of = broker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)
