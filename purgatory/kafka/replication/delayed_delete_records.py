"""A deletion of records that waits until every live replica has deleted them.

For each partition the wait ends when the low watermark, the lowest log start offset of the live
replicas, reached the requested offset; or when the partition is gone from here or led by another
broker. Each starts out with the error REQUEST_TIMED_OUT, which the end of its wait replaces.

Ground rules: those of `delayed_produce`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.log.leader_epoch_cache import UNKNOWN_OFFSET
from purgatory.kafka.replication.delayed_produce import DelayedRequest, PartitionStatus
from purgatory.kafka.replication.partition import HostedPartitions, Partition
from purgatory.kafka.replication.requests import PartitionDeleteRecordsResponse
from purgatory.kafka.topic_partition import TopicPartition

RespondDeleteRecords = Callable[[dict[TopicPartition, PartitionDeleteRecordsResponse]], object]


class DeleteRecordsCase(Enum):
    """The event that ended the wait on a partition."""

    GONE = "gone"
    NOT_LEADER = "not leader"
    DELETED = "deleted"


class DeleteRecordsStatus(PartitionStatus[PartitionDeleteRecordsResponse]):
    """The state of one partition of a deletion, which waits for ``required_offset``."""

    __slots__ = ("low_watermark", "required_offset")

    def __init__(
        self,
        topic_partition: TopicPartition,
        required_offset: int,
        low_watermark: int,
        error: ErrorCode = ErrorCode.NONE,
        message: str | None = None,
    ) -> None:
        super().__init__(topic_partition, error, message)
        self.required_offset = required_offset
        self.low_watermark = low_watermark

    def end_wait(self, case: Enum, error: ErrorCode, message: str | None = None) -> None:
        super().end_wait(case, error, message)
        if error is not ErrorCode.NONE:
            self.low_watermark = UNKNOWN_OFFSET

    def response(self) -> PartitionDeleteRecordsResponse:
        return PartitionDeleteRecordsResponse(self.error, self.low_watermark, self.message)


class DelayedDeleteRecords(DelayedRequest[DeleteRecordsStatus, PartitionDeleteRecordsResponse]):
    """Waits until the low watermarks reach the requested offsets.

    Args:
        timeout_ms: the longest wait.
        partitions: of this broker.
        low_watermark: returns a partition's, None where this broker doesn't lead it.
        statuses: one per partition of the request; those that wait have ``acks_pending`` set.
        respond: called with the responses.
    """

    __slots__ = ("_low_watermark",)

    waits_for = "the replicas"

    def __init__(
        self,
        timeout_ms: int,
        partitions: HostedPartitions,
        low_watermark: Callable[[Partition], int | None],
        statuses: list[DeleteRecordsStatus],
        respond: RespondDeleteRecords,
    ) -> None:
        super().__init__(timeout_ms, partitions, statuses, respond)
        self._low_watermark = low_watermark

    def try_complete(self) -> bool:
        waiting = False
        for status in self.statuses:
            if status.acks_pending and not self._is_done(status):
                waiting = True
        return not waiting and self.force_complete()

    def _is_done(self, status: DeleteRecordsStatus) -> bool:
        topic_partition = status.topic_partition
        partition = self._partitions.partition(topic_partition)
        if partition is None:
            error, message = self._partitions.absence_error(topic_partition)
            status.end_wait(DeleteRecordsCase.GONE, error, message)
            return True
        low_watermark = self._low_watermark(partition)
        if low_watermark is None:
            status.end_wait(
                DeleteRecordsCase.NOT_LEADER,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "the leader changed meanwhile",
            )
            return True
        # The response has the low watermark on a timeout, too.
        status.low_watermark = low_watermark
        if low_watermark < status.required_offset:
            return False
        status.end_wait(DeleteRecordsCase.DELETED, ErrorCode.NONE)
        return True
