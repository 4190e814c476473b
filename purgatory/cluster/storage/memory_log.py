"""Logs in memory, with one bound for all logs of a cluster.

When there is no room for a batch, the oldest segments of committed records go, of the log that
takes most; where none can go, the batch is refused. That is logged, once for each topic: to whoever
was told that the records are stored, nothing else says so. Topics that are to be compacted keep
all: their old records may be the only ones of their keys.

Replicas share their batches, so each is counted once, however many logs hold it.

Ground rules
------------
* Everything happens on the event loop's thread: making room for one log takes from others, whose
  partitions' locks nobody else holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from purgatory.core.recent_errors import Logger
from purgatory.kafka import (
    ErrorCode,
    KafkaError,
    Log,
    LogConfig,
    RecordBatch,
    Segment,
    TopicPartition,
)

_log = Logger("purgatory.cluster")
BATCH_BYTES = 400
"""What a batch takes beside its bytes: the object, its numbers, its places in the indexes."""


class MemoryBudget:
    """The memory of a cluster's logs: the limit and the use, in bytes.

    Args:
        limit_bytes: for all of them.
        committed_of: tells up to which offset a partition's leader, if one lives, has committed
            its records. A follower that is behind in that, too, gives up what is before.
    """

    def __init__(
        self, limit_bytes: int, committed_of: Callable[[TopicPartition], int] = lambda _: 0
    ) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.logs: dict[MemoryLog, None] = {}  # in the order in which they came
        self._committed_of = committed_of
        self._reference_counts: dict[int, int] = {}
        """How many logs hold a batch, by its identity: it lives as long as it is in here."""
        self._topics_logged: set[str] = set()

    def make_room_for(self, batch: RecordBatch) -> None:
        """Have the oldest records go until a batch fits. O(logs) for each segment that goes.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR: nothing more can go.
        """
        size = 0 if id(batch) in self._reference_counts else batch.size_bytes + BATCH_BYTES
        while self.used_bytes + size > self.limit_bytes:
            largest_first = sorted(self.logs, key=lambda log: -log.held_bytes)
            if not any(map(self._drop_oldest, largest_first)) and not any(
                map(self._drop_all, largest_first)
            ):
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"the logs take {self.used_bytes} of {self.limit_bytes} bytes of memory, "
                    "and none of it is committed and may go",
                )

    def retain(self, batch: RecordBatch) -> None:
        """Add a log's reference to a batch, whose bytes count once, however many logs have it."""
        key = id(batch)
        holders = self._reference_counts.get(key, 0)
        self._reference_counts[key] = holders + 1
        if not holders:
            self.used_bytes += batch.size_bytes + BATCH_BYTES

    def release(self, batch: RecordBatch) -> None:
        """Drop a log's reference to a batch; the last one frees its bytes."""
        key = id(batch)
        holders = self._reference_counts.pop(key) - 1
        if holders:
            self._reference_counts[key] = holders
        else:
            self.used_bytes -= batch.size_bytes + BATCH_BYTES

    def _drop_oldest(self, log: MemoryLog) -> bool:
        return self._log_dropped(log, log.drop_oldest(self._committed_of(log.topic_partition)))

    def _drop_all(self, log: MemoryLog) -> bool:
        return self._log_dropped(log, log.drop_all(self._committed_of(log.topic_partition)))

    def _log_dropped(self, log: MemoryLog, dropped: bool) -> bool:
        topic = log.topic_partition.topic
        if dropped and topic not in self._topics_logged:
            self._topics_logged.add(topic)
            _log.warning(
                "records_dropped_for_memory",
                topic=topic,
                partition=log.topic_partition.partition,
                log_start_offset=log.start_offset,
                memory_bytes=self.limit_bytes,
                right="more memory (--memory-mb, memory_bytes), logs on a disk (--data-dir), or "
                "retention.bytes for the topic; this is logged once for each topic",
            )
        return dropped


class MemoryLog(Log):
    """A log whose memory counts towards a budget.

    Args:
        config: the settings of the log; one that ``deletes`` gives up its oldest records for room.
        budget: of its cluster.
        topic_partition: whose log it is.
    """

    __slots__ = ("__weakref__", "_budget", "held_bytes", "topic_partition")

    def __init__(
        self, config: LogConfig | None, budget: MemoryBudget, topic_partition: TopicPartition
    ) -> None:
        super().__init__(config)
        self._budget = budget
        self.topic_partition = topic_partition
        self.held_bytes = 0
        """What it would take alone."""
        budget.logs[self] = None

    def append(self, batch: RecordBatch) -> int:
        """Append as any log does.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR: there is no room; else as for any log.
        """
        budget = self._budget
        if budget.used_bytes + batch.size_bytes + BATCH_BYTES > budget.limit_bytes:
            budget.make_room_for(batch)
        base_offset = Log.append(self, batch)  # quicker than by super()
        self._retain_all((batch,))
        return base_offset

    def truncate_to(self, offset: int) -> None:
        """Cut the log."""
        if offset >= self.start_offset:
            for segment in reversed(self._segments):
                if segment.end_offset <= offset:
                    break
                self._release(batch for batch in segment.batches if batch.next_offset > offset)
        super().truncate_to(offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Begin again."""
        segments = self._segments
        super().truncate_fully_and_start_at(offset)
        for segment in segments:
            self._release(segment.batches)

    def replace_segments(
        self, segments: Sequence[Segment], batches: Sequence[RecordBatch]
    ) -> Segment | None:
        """Put batches in the place of closed segments, and give back the memory of the others."""
        replacement = super().replace_segments(segments, batches)
        if replacement is not None:
            self._retain_all(replacement.batches)
            for segment in segments:
                self._release(segment.batches)
        return replacement

    def remove(self) -> None:
        """Give the memory back: the replica was deleted."""
        if self in self._budget.logs:
            del self._budget.logs[self]
            for segment in self._segments:
                self._release(segment.batches)

    def _drop_deleted_segments(self) -> None:
        segments = self._segments[:]
        super()._drop_deleted_segments()
        for segment in segments[: len(segments) - len(self._segments)]:
            self._release(segment.batches)

    def _retain_all(self, batches: Iterable[RecordBatch]) -> None:
        for batch in batches:
            self.held_bytes += batch.size_bytes + BATCH_BYTES
            self._budget.retain(batch)

    def _release(self, batches: Iterable[RecordBatch]) -> None:
        for batch in batches:
            self.held_bytes -= batch.size_bytes + BATCH_BYTES
            self._budget.release(batch)

    # ---- making room

    def drop_oldest(self, committed: int = 0) -> bool:
        """Drop the oldest segment if it is committed and not the last; return whether it was.

        Args:
            committed: up to where the leader knows the records to be committed.
        """
        if len(self._bases) < 2:
            return False
        return self._drop_up_to(self._bases[1], committed)

    def drop_all(self, committed: int = 0) -> bool:
        """Drop all segments if they are committed; return whether there were any."""
        if not self.held_bytes:
            return False
        return self._drop_up_to(self.end_offset, committed)

    def _drop_up_to(self, offset: int, committed: int) -> bool:
        if not self.config.deletes or offset > max(self.high_watermark, committed):
            return False
        if offset == self.end_offset:
            self.roll()
        self.update_high_watermark(max(self.high_watermark, offset))
        return self.delete_up_to(offset)
