"""Leader epochs of a log: the offset where each began, and where two logs diverge.

A follower whose last record was written in epoch 4 asks where the leader's epoch 4 ends. When that
is before the follower's own end, the records behind it were never committed under this leader, and
the follower truncates. The high watermark alone doesn't show that, since it trails.

Epochs and start offsets both grow strictly: two parallel lists and a binary search are enough.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import NamedTuple

from purgatory.kafka.log.record_batch import NO_LEADER_EPOCH

UNKNOWN_OFFSET = -1
"""An unknown offset."""


class EpochEndOffset(NamedTuple):
    """The largest leader epoch not above the requested one, and its end offset.

    Both are -1 when the log knows no such epoch.
    """

    leader_epoch: int
    end_offset: int


UNKNOWN_EPOCH = EpochEndOffset(NO_LEADER_EPOCH, UNKNOWN_OFFSET)


class LeaderEpochCache:
    """The leader epochs of a log with the offset that each began at.

    ``latest`` is the highest known epoch, -1 while there is none.
    """

    __slots__ = ("_epochs", "_starts", "latest")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = NO_LEADER_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that ``epoch`` begins at ``start_offset``. O(1); known and older ones are ignored.

        An epoch without a record, which therefore begins here too, is replaced.
        """
        if epoch <= self.latest:
            return
        while self._starts and self._starts[-1] >= start_offset:
            self._starts.pop()
            self._epochs.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEndOffset:
        """Return the largest known epoch at or below ``epoch``, and where it ends. O(log n).

        An epoch before all known ones ends where these begin. One above them all is unknown:
        the requester's log is ahead.
        """
        if epoch == self.latest and self._epochs:
            return EpochEndOffset(epoch, log_end_offset)
        index = bisect_right(self._epochs, epoch)
        if epoch < 0 or index == len(self._epochs):
            return UNKNOWN_EPOCH
        cached_epoch = self._epochs[index - 1] if index else epoch
        return EpochEndOffset(cached_epoch, self._starts[index])

    def epoch_of(self, offset: int) -> int:
        """Return the epoch that a record of this offset was written in, -1 if unknown. O(log n)."""
        index = bisect_right(self._starts, offset)
        return self._epochs[index - 1] if index else NO_LEADER_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget the epochs that begin at or behind ``end_offset``."""
        count = bisect_left(self._starts, end_offset)
        del self._starts[count:], self._epochs[count:]
        self.latest = self._epochs[-1] if self._epochs else NO_LEADER_EPOCH

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget the epochs that ended at or before ``start_offset``; the next one begins there."""
        index = bisect_right(self._starts, start_offset)
        if index > 1:
            del self._starts[: index - 1], self._epochs[: index - 1]
        if index:
            self._starts[0] = start_offset

    def clear(self) -> None:
        """Forget everything."""
        self.truncate_from_end(UNKNOWN_OFFSET)

    def entries(self) -> list[tuple[int, int]]:
        """Return (epoch, start offset), oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    def _check(self, start_offset: int, end_offset: int) -> None:
        """Assert every invariant of the cache of a log with these bounds. O(n)."""
        for values in (self._epochs, self._starts):
            assert all(a < b for a, b in pairwise(values)), self.entries()
        assert self.latest == (self._epochs[-1] if self._epochs else NO_LEADER_EPOCH)
        assert all(start <= end_offset for start in self._starts), (self.entries(), end_offset)
        # All but the first begin behind the log's start; the first may have begun before it.
        assert all(start > start_offset for start in self._starts[1:]), self.entries()
