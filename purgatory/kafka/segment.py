"""A segment: a run of a log's batches, with the index to find one by offset or by position."""

from __future__ import annotations

from array import array
from bisect import bisect_right

from purgatory.kafka.record_batch import RecordBatch


class Segment:
    """Batches from ``base_offset`` on.

    Positions count the bytes since the log's beginning, across segments, so that the bytes between
    two offsets are one subtraction wherever they lie. The two indexes are arrays of 64-bit numbers
    beside the batches: a simulation holds millions, and boxed ints would double its memory.
    """

    __slots__ = (
        "_offsets",
        "_positions",
        "base_offset",
        "base_position",
        "batches",
        "end_position",
    )

    def __init__(self, base_offset: int, base_position: int) -> None:
        self.base_offset = base_offset
        self.base_position = base_position
        self.end_position = base_position
        self.batches: list[RecordBatch] = []
        self._offsets = array("q")
        self._positions = array("q")

    @property
    def size_bytes(self) -> int:
        """The bytes of all its batches."""
        return self.end_position - self.base_position

    @property
    def end_offset(self) -> int:
        """The offset behind its last record."""
        return self.batches[-1].next_offset if self.batches else self.base_offset

    def append(self, batch: RecordBatch) -> None:
        """Put a batch at the end. Amortised O(1)."""
        self.batches.append(batch)
        self._offsets.append(batch.base_offset)
        self._positions.append(self.end_position)
        self.end_position += batch.size_bytes

    def position_of(self, offset: int) -> int:
        """Return where the batch with ``offset`` begins; behind them all, the end. O(log n)."""
        if not self.batches or offset >= self.batches[-1].next_offset:
            return self.end_position
        return self._positions[self._index_of(offset)]

    def read(
        self, offset: int, max_bytes: int, upto_offset: int, min_one: bool
    ) -> list[RecordBatch]:
        """Return whole batches from the one with ``offset`` on. O(log n + those returned).

        Args:
            offset: at or above the base offset.
            max_bytes: how much at most.
            upto_offset: no batch that reaches beyond this offset.
            min_one: the first batch comes even if it alone is larger than ``max_bytes``.
        """
        batches = self.batches
        if not batches or offset >= batches[-1].next_offset:
            return []
        begin = self._index_of(offset)
        end = len(batches)
        if upto_offset < batches[-1].next_offset:
            # The batch at `end` is the one that holds upto_offset: it is left out.
            end = max(begin, bisect_right(self._offsets, upto_offset) - 1)
        limit = self._positions[begin] + max_bytes
        if self.end_position > limit:
            # positions[k] is where batch k - 1 ends.
            fits = bisect_right(self._positions, limit, begin) - 1
            if fits == begin and min_one:
                fits = begin + 1
            end = min(end, fits)
        return batches[begin:end]

    def truncate_to(self, offset: int) -> None:
        """Drop every batch that reaches beyond ``offset``."""
        keep = len(self.batches)
        while keep and self.batches[keep - 1].next_offset > offset:
            keep -= 1
        if keep < len(self.batches):
            self.end_position = self._positions[keep]
            del self.batches[keep:], self._offsets[keep:], self._positions[keep:]

    def _index_of(self, offset: int) -> int:
        # The first batch may begin before the segment, and one offset more is looked up than held.
        return (bisect_right(self._offsets, offset) or 1) - 1

    def _check(self) -> None:
        """Assert every invariant. O(n)."""
        assert len(self.batches) == len(self._offsets) == len(self._positions)
        position = self.base_position
        for index, batch in enumerate(self.batches):
            assert self._offsets[index] == batch.base_offset, (index, batch)
            assert self._positions[index] == position, (index, batch)
            position += batch.size_bytes
            if index:
                assert batch.base_offset == self.batches[index - 1].next_offset, (index, batch)
        assert self.end_position == position, (self.end_position, position)
        # The first batch may begin before the segment when a log was restarted within it.
        assert not self.batches or self.batches[0].base_offset <= self.base_offset
        assert not self.batches or self.batches[0].next_offset > self.base_offset
