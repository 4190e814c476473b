"""Delete-records requests: delete on the leader, answer when every live replica did.

Ground rules: nothing here changes but through the partitions, and ``live_brokers``, which is
replaced whole; no lock is held over a check of a purgatory or ``respond``.
"""

from __future__ import annotations

from collections.abc import Mapping

from purgatory.kafka.delayed_delete_records import (
    DelayedDeleteRecords,
    DeleteRecordsStatus,
    RespondDeleteRecords,
)
from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.hosted_partitions import HostedPartitions
from purgatory.kafka.partition import Partition
from purgatory.kafka.requests import UNKNOWN_OFFSET
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.kafka.waiting_requests import WaitingRequests


class DeleteRecordsRequests:
    """Does what delete-records requests ask.

    Args:
        partitions: what is here.
        waiting: where the requests wait.

    ``live_brokers`` are those whose log start offsets count; None counts everybody's.
    """

    __slots__ = ("_partitions", "_waiting", "live_brokers")

    def __init__(self, partitions: HostedPartitions, waiting: WaitingRequests) -> None:
        self._partitions = partitions
        self._waiting = waiting
        self.live_brokers: frozenset[int] | None = None

    def delete(
        self,
        timeout_ms: int,
        offsets: Mapping[TopicPartition, int],
        respond: RespondDeleteRecords,
    ) -> None:
        """Serve one request, as `ReplicaManager.delete_records` says."""
        statuses = [
            self._delete_on_leader(topic_partition, offset)
            for topic_partition, offset in offsets.items()
        ]
        waiting = []
        for status in statuses:
            if status.error is ErrorCode.NONE:
                # What a read-committed fetch waits behind may be gone: a transaction that is open.
                partition = self._partitions.get(status.topic_partition)
                if partition is not None:
                    self._waiting.after_append(partition)
                # The leader's own start may have been the least one.
                self._waiting.deletions.check_and_complete(status.topic_partition)
                if status.low_watermark < status.required_offset:
                    status.begin_to_wait()
                    waiting.append(status.topic_partition)
        if waiting:
            operation = DelayedDeleteRecords(
                timeout_ms, self._partitions, self._low_watermark, statuses, respond
            )
            self._waiting.deletions.try_complete_else_watch(operation, waiting)
        else:
            respond({status.topic_partition: status.response() for status in statuses})

    def _delete_on_leader(
        self, topic_partition: TopicPartition, offset: int
    ) -> DeleteRecordsStatus:
        partition = self._partitions.get(topic_partition)
        if partition is None:
            error, message = self._partitions.why_absent(topic_partition)
            return DeleteRecordsStatus(topic_partition, offset, UNKNOWN_OFFSET, error, message)
        try:
            required_offset = partition.delete_records(offset)
        except KafkaError as failure:
            return DeleteRecordsStatus(
                topic_partition, offset, UNKNOWN_OFFSET, failure.code, failure.message
            )
        low_watermark = self._low_watermark(partition)
        if low_watermark is None:
            low_watermark = UNKNOWN_OFFSET  # the wait finds out that another leads now
        return DeleteRecordsStatus(topic_partition, required_offset, low_watermark)

    def _low_watermark(self, partition: Partition) -> int | None:
        return partition.low_watermark_if_leader(self.live_brokers)
