"""What a produce and a deletion of records have in common while they wait on their partitions.

Ground rules
------------
* The statuses are touched by the callbacks alone, which never overlap.
* ``respond`` is called once, whatever the outcome but a cancellation: who cancels, answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from purgatory.core.operation import DelayedOperation
from purgatory.kafka.hosted_partitions import HostedPartitions
from purgatory.kafka.partition_status import PartitionStatus
from purgatory.kafka.topic_partition import TopicPartition

Status = TypeVar("Status", bound=PartitionStatus[Any])
Response = TypeVar("Response")


class DelayedRequest(DelayedOperation, Generic[Status, Response]):
    """Waits until the wait on each of its partitions has ended, then answers for all.

    Args:
        timeout_ms: the longest wait.
        partitions: what is here.
        statuses: one per partition of the request; those that wait have ``waits`` set.
        respond: takes the answers.
    """

    __slots__ = ("_answered", "_partitions", "_respond", "statuses")

    waits_for: str
    """What it waits for, in the words of an error's message."""

    def __init__(
        self,
        timeout_ms: int,
        partitions: HostedPartitions,
        statuses: list[Status],
        respond: Callable[[dict[TopicPartition, Response]], object],
    ) -> None:
        super().__init__(timeout_ms)
        self.statuses = statuses
        self._partitions = partitions
        self._respond = respond
        self._answered = False

    def on_complete(self) -> None:
        self._answered = True
        responses = {}
        for status in self.statuses:
            responses[status.topic_partition] = status.response()
        self._respond(responses)

    def on_failure(self, error: BaseException) -> None:
        if self._answered:
            return
        for status in self.statuses:
            status.fail(f"the wait for {self.waits_for} failed: {error!r}")
        self.on_complete()
