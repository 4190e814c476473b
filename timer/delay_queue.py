"""The buckets in use, in the order in which they fall due: this is what moves time.

A bucket enters when its expiration changes and leaves when it is due, so the queue is bounded by
the number of buckets, and time jumps from one occupied bucket to the next. The queue is a binary
heap of tuples of integers; with at most a few hundred buckets, its O(log buckets) is a constant.

Ground rules
------------
* Plain data: changed under the lock of the timer that drives the wheel. The queue never waits; a
  driver that does asks for ``first_expiration_ms`` and learns of an earlier one by ``on_earlier``.
* An interrupt between any two steps, or a finalizer that adds a task, leaves a bucket in the queue
  once too often, never once too rarely: it enters before it gets its expiration, and leaves after
  it was emptied. The driver finds nothing in it the second time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import TypeAlias

from timer.snapshot import QueuedState
from timer.timer_task_list import TimerTaskList

Queued: TypeAlias = tuple[int, int, int, TimerTaskList]
"""A bucket in the queue, after its expiration, level and index."""


class DelayQueue:
    """A priority queue of buckets by expiration, then level, then index.

    Args:
        on_earlier: called when a bucket enters that is due before all the others: wake the thread
            or move the event loop's timer. Called under the timer's lock.
    """

    __slots__ = ("_heap", "_on_earlier")

    def __init__(self, on_earlier: Callable[[], object] | None = None) -> None:
        self._heap: list[Queued] = []
        self._on_earlier = on_earlier

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[TimerTaskList]:
        """Iterate over the buckets in no order."""
        return iter([item[3] for item in self._heap])

    def __repr__(self) -> str:
        first_ms = self.first_expiration_ms
        first = "" if first_ms is None else f", the first due at {first_ms} ms"
        return f"<{type(self).__name__} of {len(self)} buckets{first}>"

    @property
    def first_expiration_ms(self) -> int | None:
        """When the first bucket is due, or None. O(1)."""
        return self._heap[0][0] if self._heap else None

    def offer(self, bucket: TimerTaskList, expiration_ms: int) -> None:
        """Set a bucket's expiration and add it. O(log buckets)."""
        queued = (expiration_ms, bucket.level, bucket.index, bucket)
        if bucket.expiration_ms == expiration_ms:
            return  # a finalizer that ran while the tuple was made was faster
        heapq.heappush(self._heap, queued)
        if self._on_earlier is not None and self._heap[0] is queued:
            self._on_earlier()
        # Last: a thread that finds the bucket with this expiration relies on all the above.
        bucket.expiration_ms = expiration_ms

    def first_due(self, now_ms: int) -> Queued | None:
        """Return the first bucket, which stays, if it is due at ``now_ms``; needs no lock. O(1)."""
        for first in self._heap[:1]:  # one step: another thread may empty the heap
            if first[0] <= now_ms:
                return first
        return None

    def remove(self, queued: Queued) -> None:
        """Remove the bucket of ``first_due``, if it is still the first. O(log buckets)."""
        if self._heap and self._heap[0] is queued:
            heapq.heappop(self._heap)

    def states(self) -> list[QueuedState]:
        """Return the buckets by expiration: expiration, level and index."""
        in_order = sorted(self._heap, key=lambda queued: queued[:3])
        return [(bucket.expiration_ms, bucket.level, bucket.index) for *_, bucket in in_order]

    def clear(self) -> None:
        """Forget all buckets."""
        self._heap.clear()
