"""Logs in memory, with a bound for all logs of a broker together.

When a log has no room for a batch, the oldest segments of committed records go, of the log that
takes most; where none can go, the batch is refused. Topics that are to be compacted keep all: their
old records may be the only ones of their keys.

Ground rules
------------
* Everything happens on the event loop's thread: making room for one log takes from others, whose
  partitions' locks nobody else holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from purgatory.kafka import ErrorCode, KafkaError, Log, LogConfig, RecordBatch, Segment

BATCH_BYTES = 400
"""What a batch takes beside its bytes: the object, its numbers, its places in the indexes."""


class MemoryBudget:
    """What the logs of one broker may take, in bytes, and what they do take.

    Args:
        limit_bytes: for all of them.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.logs: dict[MemoryLog, None] = {}  # in the order in which they came

    def make_room(self, size: int) -> None:
        """Have the oldest records go until ``size`` bytes fit. O(logs) for each segment that goes.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR: nothing more can go.
        """
        while self.used_bytes + size > self.limit_bytes:
            largest_first = sorted(self.logs, key=lambda log: -log.held_bytes)
            if not (
                any(log.drop_oldest() for log in largest_first)
                or any(log.drop_all() for log in largest_first)
            ):
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"the logs take {self.used_bytes} of {self.limit_bytes} bytes of memory, "
                    "and none of it is committed and may go",
                )


class MemoryLog(Log):
    """A log that takes its memory from a budget.

    Args:
        config: the settings of the log; one that ``deletes`` gives up its oldest records for room.
        budget: of its broker.
    """

    __slots__ = ("__weakref__", "_budget", "held_bytes")

    def __init__(self, config: LogConfig | None, budget: MemoryBudget) -> None:
        super().__init__(config)
        self._budget = budget
        self.held_bytes = 0
        budget.logs[self] = None

    def append(self, batch: RecordBatch) -> int:
        """Append as any log does.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR: there is no room; else as for any log.
        """
        size = batch.size_bytes + BATCH_BYTES
        budget = self._budget
        if budget.used_bytes + size > budget.limit_bytes:
            budget.make_room(size)
        base_offset = Log.append(self, batch)  # quicker than by super()
        self.held_bytes += size
        budget.used_bytes += size
        return base_offset

    def truncate_to(self, offset: int) -> None:
        """Cut the log."""
        super().truncate_to(offset)
        self._count_anew()

    def truncate_fully_and_start_at(self, offset: int, start_offset: int | None = None) -> None:
        """Begin anew."""
        super().truncate_fully_and_start_at(offset, start_offset)
        self._count_anew()

    def delete_up_to(self, offset: int) -> bool:
        """Move the log's start."""
        moved = super().delete_up_to(offset)
        self._count_anew()
        return moved

    def drop_local_up_to(self, offset: int) -> bool:
        """Drop what is in the remote tier."""
        dropped = super().drop_local_up_to(offset)
        self._count_anew()
        return dropped

    def replace_segments(
        self, segments: Sequence[Segment], batches: Sequence[RecordBatch]
    ) -> Segment | None:
        """Put batches in the place of closed segments, and give back the memory of the others."""
        replacement = super().replace_segments(segments, batches)
        self._count_anew()
        return replacement

    def remove(self) -> None:
        """Give the memory back: the replica was deleted."""
        self._budget.logs.pop(self, None)
        self._budget.used_bytes -= self.held_bytes
        self.held_bytes = 0

    # ---- making room

    def drop_oldest(self) -> bool:
        """Drop the oldest segment, if it is committed and not the last; say whether it went."""
        if not self.config.deletes or len(self._bases) < 2 or self._bases[1] > self.high_watermark:
            return False
        if self.config.is_tiered:
            return self.drop_local_up_to(self._bases[1])
        return self.delete_up_to(self._bases[1])

    def drop_all(self) -> bool:
        """Drop everything, if it is committed and there is something; say whether it went."""
        config = self.config
        if not config.deletes or config.is_tiered:
            return False
        if self.high_watermark < self.end_offset or not self.held_bytes:
            return False
        self.roll()
        return self.delete_up_to(self.end_offset)

    def _count_anew(self) -> None:
        if self not in self._budget.logs:
            return
        batches = sum(len(segment.batches) for segment in self._segments)
        held_bytes = self.size_bytes + BATCH_BYTES * batches
        self._budget.used_bytes += held_bytes - self.held_bytes
        self.held_bytes = held_bytes
