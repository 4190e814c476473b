"""The buckets in use, in the order in which they fall due: this is what moves time.

A bucket enters when its expiration changes and leaves when it is due, so the queue is bounded by
the number of buckets, and time jumps from one occupied bucket to the next. It is a binary heap of
tuples of integers; with at most a few hundred buckets, its O(log buckets) is a constant.

Ground rules
------------
* Plain data: changed under the lock of the timer that drives the wheel. It never waits; who wants
  to wait asks for ``first_expiration_ms`` and is told of an earlier one by ``on_earlier``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from timer.timer_task_list import TimerTaskList


class DelayQueue:
    """A priority queue of buckets by expiration, then level, then index.

    Args:
        on_earlier: called when a bucket enters that is due before all the others: wake the thread
            or move the event loop's timer. It runs under the timer's lock.
    """

    __slots__ = ("_heap", "_on_earlier")

    def __init__(self, on_earlier: Callable[[], object] | None = None) -> None:
        self._heap: list[tuple[int, int, int, TimerTaskList]] = []
        self._on_earlier = on_earlier

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[TimerTaskList]:
        """Iterate over the buckets in no order."""
        return (item[3] for item in self._heap)

    @property
    def first_expiration_ms(self) -> int | None:
        """When the first bucket is due, or None. O(1)."""
        return self._heap[0][0] if self._heap else None

    def offer(self, bucket: TimerTaskList) -> None:
        """Put in a bucket whose expiration was just set. O(log buckets)."""
        heapq.heappush(self._heap, (bucket.expiration_ms, bucket.level, bucket.index, bucket))
        if self._on_earlier is not None and self._heap[0][3] is bucket:
            self._on_earlier()

    def poll(self, now_ms: int) -> TimerTaskList | None:
        """Take out the first bucket if it is due at ``now_ms``. O(log buckets)."""
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        return heapq.heappop(self._heap)[3]

    def in_order(self) -> list[TimerTaskList]:
        """Return the buckets as they will fall due, without taking them out."""
        return [item[3] for item in sorted(self._heap, key=lambda item: item[:3])]

    def clear(self) -> None:
        """Forget all buckets."""
        self._heap.clear()
