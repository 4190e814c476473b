"""A produce with acks=all that waits until the in-sync replicas have its records.

For each partition one of these ends the wait:

    A   the partition isn't here any more
    B   this broker doesn't lead it any more, or not in the term that it appended in
    C1  it leads, but the answer is an error: too few replicas are in sync by now
    C2  the high watermark reached the records, and enough replicas are in sync

Each partition starts out with the answer REQUEST_TIMED_OUT, which the end of its wait replaces. So
when the time is up, every partition gets the answer that is true for it.

Ground rules: those of `delayed_request`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from purgatory.kafka.delayed_request import DelayedRequest
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.leader_append import LeaderAppend
from purgatory.kafka.partition import Partition
from purgatory.kafka.partition_status import PartitionStatus
from purgatory.kafka.requests import UNKNOWN_OFFSET, PartitionProduceResponse
from purgatory.kafka.topic_partition import TopicPartition

RespondProduce = Callable[[dict[TopicPartition, PartitionProduceResponse]], object]

_NONE = ErrorCode.NONE


class ProduceCase(Enum):
    """What ended the wait on a partition."""

    GONE = "A"
    NOT_LEADER = "B"
    FAILED = "C1"
    REPLICATED = "C2"


class ProduceStatus(PartitionStatus[PartitionProduceResponse]):
    """Where one partition of a produce stands; ``appended`` if its records are in the log."""

    __slots__ = ("appended", "partition")

    def __init__(
        self,
        topic_partition: TopicPartition,
        partition: Partition | None = None,
        appended: LeaderAppend | None = None,
        error: ErrorCode = _NONE,
        message: str | None = None,
    ) -> None:
        self.topic_partition = topic_partition  # quicker than by super()
        self.error = error
        self.message = message
        self.waits = False
        self.case = None
        self.partition = partition
        self.appended = appended

    def response(self) -> PartitionProduceResponse:
        appended = self.appended
        if appended is None:
            return PartitionProduceResponse(
                self.error, UNKNOWN_OFFSET, UNKNOWN_OFFSET, False, self.message
            )
        return PartitionProduceResponse(
            self.error,
            appended.base_offset,
            appended.log_start_offset,
            appended.duplicate,
            self.message,
        )


class DelayedProduce(DelayedRequest[ProduceStatus, PartitionProduceResponse]):
    """Waits for the replication of what was appended.

    Args:
        timeout_ms: the longest wait.
        partitions: what is here.
        statuses: one per partition of the request; those that wait have ``waits`` set.
        respond: takes the answers.
    """

    __slots__ = ()

    waits_for = "replication"

    def try_complete(self) -> bool:
        waiting = False
        for status in self.statuses:
            if status.waits:
                partition, appended = status.partition, status.appended
                assert partition is not None and appended is not None, "who waits has appended"
                # Looked at without a lock, and most often still true: the term lasts and the
                # records aren't replicated. Whatever changes that is followed by another check.
                if (
                    partition.leadership == appended.leadership
                    and partition.log.high_watermark < appended.required_offset
                ) or not self._ends(status, partition, appended):
                    waiting = True
        return not waiting and self.force_complete()

    def _ends(self, status: ProduceStatus, partition: Partition, appended: LeaderAppend) -> bool:
        # A replica that went and came back is another one: its log may hold other records.
        if self._partitions.get(status.topic_partition) is not partition:
            error, message = self._partitions.why_absent(status.topic_partition)
            status.end_wait(ProduceCase.GONE, error, message)
            return True
        result = partition.progress_of_append(appended.required_offset, appended.leadership)
        if result is None:
            return False
        if result is _NONE:
            status.end_wait(ProduceCase.REPLICATED, _NONE)
        elif result is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            status.end_wait(ProduceCase.NOT_LEADER, result, "the leader changed meanwhile")
        else:
            status.end_wait(ProduceCase.FAILED, result, "appended, but too few are in sync now")
        return True
