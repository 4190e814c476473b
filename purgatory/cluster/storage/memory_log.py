"""Logs in memory, with one bound for all logs of a cluster.

A batch for which there is no room is refused, as by a full disk; what was appended stays, until
retention, compaction or the deletion of records makes room.

Replicas share their batches, so each is counted once, however many logs hold it.

Ground rules: only the cluster's loop touches a log in memory or the budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from purgatory.core.recent_errors import Logger
from purgatory.kafka import ErrorCode, KafkaError, Log, LogConfig, RecordBatch, Segment

_log = Logger("purgatory.cluster")
BATCH_BYTES = 400
"""The memory of a batch beside its bytes: the object, its numbers, its places in the indexes."""


class MemoryBudget:
    """The memory of a cluster's logs: the limit and the use, in bytes.

    Args:
        limit_bytes: for all of them.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._reference_counts: dict[int, int] = {}
        """Logs that hold a batch, by its identity: it lives as long as it is in here."""
        self.is_full = False
        """Whether the last batch was refused."""

    def check_room_for(self, batch: RecordBatch) -> None:
        """Check that a batch fits; the first one that doesn't is logged. O(1).

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR: it doesn't.
        """
        size = 0 if id(batch) in self._reference_counts else batch.size_bytes + BATCH_BYTES
        if self.used_bytes + size <= self.limit_bytes:
            if self.is_full:
                self.is_full = False
                _log.info("memory_has_room", used_bytes=self.used_bytes)
            return
        if not self.is_full:
            self.is_full = True
            _log.error(
                "memory_full",
                used_bytes=self.used_bytes,
                memory_bytes=self.limit_bytes,
                right="more memory (--memory-mb, memory_bytes), logs on a disk (--data-dir), or "
                "retention.bytes or retention.ms for the topics",
            )
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"the logs take {self.used_bytes} of {self.limit_bytes} bytes of memory",
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


class MemoryLog(Log):
    """A log whose memory counts towards a budget.

    Args:
        config: the settings of the log.
        budget: of its cluster.
    """

    __slots__ = ("_budget", "_is_removed")

    def __init__(self, config: LogConfig | None, budget: MemoryBudget) -> None:
        super().__init__(config)
        self._budget = budget
        self._is_removed = False

    def append(self, batch: RecordBatch) -> int:
        """Append as any log does.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR: there is no room; else as for any log.
        """
        budget = self._budget
        size_bytes = batch.size_bytes + BATCH_BYTES
        if budget.is_full or budget.used_bytes + size_bytes > budget.limit_bytes:
            budget.check_room_for(batch)
        base_offset = Log.append(self, batch)  # quicker than by super()
        budget.retain(batch)
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
        """Put batches in the place of closed segments, and release those of the segments."""
        replacement = super().replace_segments(segments, batches)
        if replacement is not None:
            for batch in replacement.batches:
                self._budget.retain(batch)
            for segment in segments:
                self._release(segment.batches)
        return replacement

    def remove(self) -> None:
        """Release all batches: the replica was deleted. Idempotent."""
        if not self._is_removed:
            self._is_removed = True
            for segment in self._segments:
                self._release(segment.batches)

    def _drop_deleted_segments(self) -> None:
        segments = self._segments[:]
        super()._drop_deleted_segments()
        for segment in segments[: len(segments) - len(self._segments)]:
            self._release(segment.batches)

    def _release(self, batches: Iterable[RecordBatch]) -> None:
        for batch in batches:
            self._budget.release(batch)
