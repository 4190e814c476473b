"""How a coordinator finds the leaders of partitions, and brings markers to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from purgatory.kafka.record_batch import RecordBatch
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.kafka.transactions.transaction_answers import RespondCodes


class MarkerRoutes(Protocol):
    """The cluster, as a coordinator sees it."""

    def leader_of(self, topic_partition: TopicPartition) -> int | None:
        """Return who leads a partition, -1 if nobody does now; None: there is no such partition."""

    def send_markers(
        self, broker_id: int, markers: Mapping[TopicPartition, RecordBatch], respond: RespondCodes
    ) -> None:
        """Bring markers to a broker, to be written there by `write_markers`.

        Args:
            broker_id: who leads the partitions.
            markers: by partition.
            respond: is told once what became of each, when it can have no more effect: a marker
                that comes late would end the producer's next transaction. It may be told within
                this call, and never is if this broker was killed.
        """
