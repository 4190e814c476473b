"""The three purgatories of a broker, and which of them an event on a partition checks.

    records appended                         checks Fetch
    high or low watermark moved              checks Produce, Fetch and DeleteRecords
    leader changed, replica stopped,
    topic deleted, ISR changed               checks all three, too
    another broker died or lives             checks DeleteRecords

Ground rules: the checks run without any lock of the manager or a partition held.
"""

from __future__ import annotations

from typing import NamedTuple

from purgatory.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.kafka.topic_partition import TopicPartition


class WaitingRequests(NamedTuple):
    """Where the requests of each kind wait, watched on their partitions."""

    produces: DelayedOperationPurgatory
    fetches: DelayedOperationPurgatory
    deletions: DelayedOperationPurgatory

    def check_all(self, topic_partition: TopicPartition) -> None:
        """Complete whatever waits on the partition and can be answered now."""
        self.produces.check_and_complete(topic_partition)
        self.fetches.check_and_complete(topic_partition)
        self.deletions.check_and_complete(topic_partition)
