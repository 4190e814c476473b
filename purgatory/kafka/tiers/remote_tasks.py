"""What is read from the remote tier, and the operations that wait for it.

A request that needs the tier begins a task for each of its partitions that does, and waits, watched
on all its partitions, until

* all tasks are done, or
* this broker has a partition no more, or may not read it in this term.

When the time is up it answers with what was read till then, and the rest of the tasks is cancelled.

Ground rules
------------
* Tasks are begun and done on one thread at a time. Whoever reads for one does so elsewhere.
* The callbacks of an operation never overlap; ``respond`` is called once, but by who was cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from purgatory.core.operation import DelayedOperation
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.hosted_partitions import HostedPartitions
from purgatory.kafka.record_batch import RecordBatch
from purgatory.kafka.requests import UNKNOWN_OFFSET
from purgatory.kafka.tiers.remote_log import RemoteLog, RemoteSegment
from purgatory.kafka.topic_partition import TopicPartition


class RemoteTask:
    """Something that is read of one partition in the remote tier.

    Args:
        topic_partition: which.
        on_done: called when it is done: not where it was cancelled before.
    """

    __slots__ = ("_on_done", "error", "is_cancelled", "is_done", "topic_partition")

    def __init__(
        self, topic_partition: TopicPartition, on_done: Callable[[TopicPartition], object]
    ) -> None:
        self.topic_partition = topic_partition
        self.error = ErrorCode.NONE
        self.is_done = self.is_cancelled = False
        self._on_done = on_done

    def done(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Tell that it is done, or couldn't be."""
        if not self.is_cancelled and not self.is_done:
            self.error = error
            self.is_done = True
            self._on_done(self.topic_partition)


class RemoteRead(RemoteTask):
    """Reads whole batches of a segment.

    Args:
        segment: which.
        offset: of the first record wanted.
        max_bytes: how much at most; the first batch comes whatever its size.

    ``batches`` are to be set before it is done.
    """

    __slots__ = ("batches", "max_bytes", "offset", "segment")

    def __init__(
        self,
        topic_partition: TopicPartition,
        on_done: Callable[[TopicPartition], object],
        segment: RemoteSegment,
        offset: int,
        max_bytes: int,
    ) -> None:
        super().__init__(topic_partition, on_done)
        self.segment = segment
        self.offset = offset
        self.max_bytes = max_bytes
        self.batches: tuple[RecordBatch, ...] = ()


class RemoteLookup(RemoteTask):
    """Looks for the first record of a time or later.

    Args:
        segments: that may have it, oldest first.
        timestamp_ms: the time, in milliseconds since 1970.
        from_offset: of the first record that counts.

    What was found is to be set before it is done: ``offset``, ``found_ms`` and ``leader_epoch`` are
    -1 where nothing was.
    """

    __slots__ = ("found_ms", "from_offset", "leader_epoch", "offset", "segments", "timestamp_ms")

    def __init__(
        self,
        topic_partition: TopicPartition,
        on_done: Callable[[TopicPartition], object],
        segments: tuple[RemoteSegment, ...],
        timestamp_ms: int,
        from_offset: int,
    ) -> None:
        super().__init__(topic_partition, on_done)
        self.segments = segments
        self.timestamp_ms = timestamp_ms
        self.from_offset = from_offset
        self.offset = self.found_ms = self.leader_epoch = UNKNOWN_OFFSET


class RemoteTier(Protocol):
    """The remote tier, as a broker has it."""

    def log_of(self, topic_partition: TopicPartition) -> RemoteLog:
        """Return what the tier has of a partition; nothing of one that it doesn't know."""

    def begin(self, task: RemoteTask) -> None:
        """Begin to read; the task is told when that is done."""


class RemoteAccess(NamedTuple):
    """How a broker reads the remote tier, and where those wait who ask for what is there.

    ``fetches`` wait for ``fetch_max_wait_ms`` at most.
    """

    tier: RemoteTier
    fetches: DelayedOperationPurgatory
    list_offsets: DelayedOperationPurgatory
    fetch_max_wait_ms: int


class DelayedRemoteTasks(DelayedOperation):
    """Waits until all tasks are done, or one of them is to no purpose.

    Args:
        timeout_ms: the longest wait.
        partitions: what is here.
        tasks: that were begun, by their partitions.
        from_followers: whether a replica that doesn't lead may answer.
    """

    __slots__ = ("_answered", "_from_followers", "_partitions", "_tasks", "_terms")

    def __init__(
        self,
        timeout_ms: int,
        partitions: HostedPartitions,
        tasks: Mapping[TopicPartition, RemoteTask],
        from_followers: bool,
    ) -> None:
        super().__init__(timeout_ms)
        self._partitions = partitions
        self._tasks = tasks
        self._from_followers = from_followers
        self._terms = {key: self._term(key) for key in tasks}
        self._answered = False

    def try_complete(self) -> bool:
        is_over = all(task.is_done for task in self._tasks.values()) or any(
            term is None or self._term(key) != term for key, term in self._terms.items()
        )
        return is_over and self.force_complete()

    def _term(self, topic_partition: TopicPartition) -> int | None:
        """Return the term in which a partition may be read here; None where it may not."""
        partition = self._partitions.get(topic_partition)
        if partition is None or not (partition.is_leader or self._from_followers):
            return None
        return partition.leadership

    def _cancel_tasks(self) -> None:
        for task in self._tasks.values():
            if not task.is_done:
                task.is_cancelled = True
