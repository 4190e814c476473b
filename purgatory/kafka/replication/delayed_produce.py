"""A produce with acks=all that waits for the in-sync replicas.

For each partition one of these ends the wait:

    A   the partition isn't here any more
    B   this broker doesn't lead it any more
    C1  it leads, but the response is an error: too few replicas are in sync by now
    C2  the high watermark reached the records, and enough replicas are in sync

Each partition starts out with the error REQUEST_TIMED_OUT, which the end of its wait replaces: when
the time is up, every partition has the error that is true for it. A deletion of records waits in
the same way (`PartitionStatus`, `DelayedRequest`).

Ground rules
------------
* Only the broker's loop touches an operation's statuses.
* ``respond`` is called once, but for operations that are cancelled: their canceller responds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Generic, TypeVar

from purgatory.core.operation import DelayedOperation
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.log.leader_epoch_cache import UNKNOWN_OFFSET
from purgatory.kafka.replication.partition import HostedPartitions, LeaderAppend, Partition
from purgatory.kafka.replication.requests import PartitionProduceResponse
from purgatory.kafka.topic_partition import TopicPartition

Response = TypeVar("Response")
_NONE, _TIMED_OUT = ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT


class PartitionStatus(ABC, Generic[Response]):
    """The status of one partition of a produce request.

    ``case`` is the case that ended its wait; None while it waits, or if it never waited.
    """

    __slots__ = ("acks_pending", "case", "error", "message", "topic_partition")

    def __init__(
        self, topic_partition: TopicPartition, error: ErrorCode, message: str | None
    ) -> None:
        self.topic_partition = topic_partition
        self.error = error
        self.message = message
        self.acks_pending = False
        self.case: Enum | None = None

    @abstractmethod
    def response(self) -> Response:
        """Return the partition's response."""

    def start_waiting(self) -> None:
        """Wait: until that ends, the response is that the time was up."""
        self.acks_pending = True
        self.error = _TIMED_OUT

    def end_wait(self, case: Enum, error: ErrorCode, message: str | None = None) -> None:
        """End the wait, with this error in the response."""
        self.acks_pending = False
        self.case = case
        self.error = error
        self.message = message

    def fail(self, message: str) -> None:
        """Respond with UNKNOWN_SERVER_ERROR if it still waits."""
        if self.acks_pending:
            self.acks_pending = False
            self.error = ErrorCode.UNKNOWN_SERVER_ERROR
            self.message = message


Status = TypeVar("Status", bound=PartitionStatus[Any])


class DelayedRequest(DelayedOperation, Generic[Status, Response]):
    """Waits for each of its partitions, then responds for all.

    Args:
        timeout_ms: the longest wait.
        partitions: of this broker.
        statuses: one per partition of the request; those that wait have ``acks_pending`` set.
        respond: called with the responses.
    """

    __slots__ = ("_partitions", "_respond", "_responded", "statuses")

    waits_for: str
    """The awaited event, for the message of an error."""

    def __init__(
        self,
        timeout_ms: int,
        partitions: HostedPartitions,
        statuses: list[Status],
        respond: Callable[[dict[TopicPartition, Response]], object],
    ) -> None:
        DelayedOperation.__init__(self, timeout_ms)  # quicker than by super()
        self.statuses = statuses
        self._partitions = partitions
        self._respond = respond
        self._responded = False

    def on_complete(self) -> None:
        self._responded = True
        responses = {}
        for status in self.statuses:
            responses[status.topic_partition] = status.response()
        self._respond(responses)

    def on_failure(self, error: BaseException) -> None:
        if self._responded:
            return
        for status in self.statuses:
            status.fail(f"the wait for {self.waits_for} failed: {error!r}")
        self.on_complete()


RespondProduce = Callable[[dict[TopicPartition, PartitionProduceResponse]], object]


class ProduceCase(Enum):
    """The event that ended the wait on a partition."""

    GONE = "A"
    NOT_LEADER = "B"
    FAILED = "C1"
    REPLICATED = "C2"


_REPLICATED = ProduceCase.REPLICATED


class ProduceStatus(PartitionStatus[PartitionProduceResponse]):
    """The state of one partition of a produce; ``appended`` if its records are in the log."""

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
        self.acks_pending = False
        self.case = None
        self.partition = partition
        self.appended = appended

    def response(self) -> PartitionProduceResponse:
        appended = self.appended
        if appended is None:
            start_offset = start_offset_with(self.error, self.partition)
            return PartitionProduceResponse(
                self.error, UNKNOWN_OFFSET, start_offset, False, self.message
            )
        return PartitionProduceResponse(
            self.error,
            appended.base_offset,
            appended.log_start_offset,
            appended.duplicate,
            self.message,
        )


class DelayedProduce(DelayedRequest[ProduceStatus, PartitionProduceResponse]):
    """Waits until the appended records are replicated.

    Args:
        timeout_ms: the longest wait.
        partitions: of this broker.
        statuses: one per partition of the request; those that wait have ``acks_pending`` set.
        respond: called with the responses.
    """

    __slots__ = ()

    waits_for = "replication"

    def try_complete(self) -> bool:
        waiting = False
        for status in self.statuses:
            if status.acks_pending:
                partition, appended = status.partition, status.appended
                assert partition is not None and appended is not None, "a waiting one has appended"
                if not self._is_done(status, partition, appended):
                    waiting = True
        return not waiting and self.force_complete()

    def _is_done(self, status: ProduceStatus, partition: Partition, appended: LeaderAppend) -> bool:
        result = partition.progress_of_append(appended.required_offset)
        if result is None:
            return False  # it leads, so it is still here
        # A replica that went and came back is another one: its log may hold other records.
        if self._partitions.partition(status.topic_partition) is not partition:
            error, message = self._partitions.absence_error(status.topic_partition)
            status.end_wait(ProduceCase.GONE, error, message)
            return True
        if result is _NONE:
            status.end_wait(_REPLICATED, _NONE)
        elif result is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            status.end_wait(ProduceCase.NOT_LEADER, result, "the leader changed meanwhile")
        else:
            status.end_wait(ProduceCase.FAILED, result, "appended, but too few are in sync now")
        return True


_WITHOUT_START_OFFSET = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.KAFKA_STORAGE_ERROR,
}


def start_offset_with(error: ErrorCode, partition: Partition | None) -> int:
    """Return the log's start, as a response to a refused batch has it: -1 for these errors."""
    if partition is None or error in _WITHOUT_START_OFFSET:
        return UNKNOWN_OFFSET
    return partition.log_start_offset


def closes_connection(required_acks: int, responses: Iterable[PartitionProduceResponse]) -> bool:
    """Whether a produce with acks=0 closes its connection because of an error, as in Kafka.

    Such a produce has no response; a client that loses its connection refreshes its metadata."""
    return required_acks == 0 and any(
        response.error is not ErrorCode.NONE for response in responses
    )
