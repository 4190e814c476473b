"""Groups at a simulated broker: what `purgatory.kafka` decides, with a process's purgatories.

Records of committed offsets have no bytes here: what they say is the tag of their batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import cast

from purgatory.kafka import (
    OFFSETS_TOPIC,
    BrokerGroups,
    GroupConfig,
    ProducerIdentity,
    RecordBatch,
    ReplicaManager,
    StoredEntry,
    TopicPartition,
    partition_of,
)
from purgatory.kafka.groups.consumer_group_member import Viewer
from purgatory.kafka.groups.group_manager import OnEnded
from purgatory.kafka.groups.subscription import KnownTopic
from purgatory.simulation.engine import NS_PER_MS, Engine
from purgatory.simulation.runtime import Process
from purgatory.simulation.scenario import Scenario

OFFSETS_PARTITIONS = 5
_RECORD_BYTES = 100


def offsets_partition_of(group_id: str) -> TopicPartition:
    """The partition whose leader coordinates a group."""
    return TopicPartition(OFFSETS_TOPIC, partition_of(group_id, OFFSETS_PARTITIONS))


def simulated_groups(
    scenario: Scenario,
    engine: Engine,
    process: Process,
    manager: ReplicaManager,
    on_ended: OnEnded | None,
) -> BrokerGroups:
    """Return what coordinates groups in a broker's process."""
    numbers = count(1)
    prefix = f"{manager.broker_id}-{engine.now_ns()}"
    return BrokerGroups(
        manager,
        GroupConfig(
            initial_rebalance_delay_ms=scenario.cluster.initial_rebalance_delay_ms,
            min_session_timeout_ms=1,
        ),
        _OffsetsInTags(),
        new_purgatory=process.purgatory,
        # Ids are put in order where partitions are dealt out.
        new_member_id=lambda beginning: f"{beginning}{prefix}-{next(numbers):06}",
        now_ms=lambda: engine.now_ns() // NS_PER_MS,
        offsets_partitions=lambda: OFFSETS_PARTITIONS,
        is_known=lambda _: True,
        known_topics=_NoTopics(),
        on_ended=on_ended,
    )


class _NoTopics:
    """Simulated members are assigned partitions by their leader, who knows the topics."""

    topics: Mapping[str, KnownTopic] = MappingProxyType({})
    topics_version = 0

    def sees(self, viewer: Viewer, topic: str) -> bool:
        """Whether somebody may know of a topic: of none, as there is none."""
        return False


class _OffsetsInTags:
    """Makes and reads record batches that have no bytes."""

    def batch(
        self, entries: Sequence[StoredEntry], producer: ProducerIdentity | None = None
    ) -> RecordBatch:
        """Return a batch that commits or deletes offsets."""
        size_bytes = len(entries) * _RECORD_BYTES
        if producer is None:
            return RecordBatch(0, len(entries), size_bytes, tag=tuple(entries))
        return RecordBatch(
            0,
            len(entries),
            size_bytes,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            tag=tuple(entries),
            transactional=True,
        )

    def entries(self, batch: RecordBatch) -> Iterable[StoredEntry]:
        """Return what a batch commits and deletes, in its order."""
        return cast(Sequence[StoredEntry], batch.tag)
