"""The layered timing wheel: O(1) insertion at each level, O(m) for m levels.

A wheel has ``wheel_size`` buckets of ``tick_ms`` each. A task beyond that range goes to the
overflow wheel, whose tick is this wheel's whole range; it is made when first needed, and stays.
Three levels of 20 buckets from a tick of 1 ms cover 8 s, four cover 160 s. A heap pays O(log n) for
each insertion and keeps what was cancelled; here the cost does not depend on how many tasks wait.

After Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (1987), in the form that Kafka
gave it: a queue of the occupied buckets moves the wheel, so empty ticks cost nothing.

An example
----------
Three buckets of 1 s; it is 20.558 s past the minute, and tasks 1 to 7 come with delays of 1 to 7 s.
Of each bucket that is in use: when it begins, and its tasks::

    after all were added       level 1, from 20 s: 21 s: 1   22 s: 2
                               level 2, from 18 s: 21 s: 3   24 s: 4 5 6
                               level 3, from 12 s: 21 s: 7
    advance to 21 s, 1 runs    level 1, from 21 s: 22 s: 2   23 s: 3
                               level 2, from 21 s: 24 s: 4 5 6   27 s: 7
    advance to 24 s, 4 runs    level 1, from 24 s: 25 s: 5   26 s: 6
                               level 2, from 24 s: 27 s: 7

Task 3 is due at 23.558 s, beyond level 1, which ends at 23 s. Its bucket of level 2 begins at 21 s:
then it is emptied, and the task *cascades* to the bucket of 23 s (`system_timer` moves it). With a
tick of 1 s a task runs when its bucket begins, up to 1 s early; with the default tick of 1 ms it
never runs early, since an expiration is rounded up to a whole millisecond.

Ground rules
------------
* A data structure: it has no clock and no thread, takes no lock and does no I/O. Its driver calls
  it under one lock (or from one event loop, or one simulation) and tells it the time. Only
  ``add_if_queued`` may be called without the lock, at any time.
* An interrupt may leave any of the steps here undone: taking them again puts it right.
* ``current_time_ms`` is a multiple of ``tick_ms`` and never goes back. Every occupied bucket's
  expiration lies in [current_time_ms, current_time_ms + interval_ms).
"""

from __future__ import annotations

from operator import attrgetter

from timer.delay_queue import DelayQueue
from timer.snapshot import IDLE_MS, LevelState, check_levels
from timer.timer_task import NOWHERE, TimerTask, TimerTaskEntry
from timer.timer_task_list import TimerTaskList

_EXPIRATION_MS = attrgetter("_timer_entry.expiration_ms")


class TimingWheel:
    """One level of the wheel, with its overflow wheel above it.

    Args:
        tick_ms: the width of one bucket.
        wheel_size: how many buckets; ``tick_ms * wheel_size`` is the range of this level.
        start_ms: the time at the start; rounded down to a multiple of ``tick_ms``.
        queue: where buckets go that come into use.
        level: 1 for the finest wheel.
    """

    __slots__ = (
        "buckets",
        "current_time_ms",
        "end_ms",
        "interval_ms",
        "level",
        "overflow_wheel",
        "queue",
        "tick_ms",
        "wheel_size",
    )

    def __init__(
        self, tick_ms: int, wheel_size: int, start_ms: int, queue: DelayQueue, level: int = 1
    ) -> None:
        self.tick_ms = tick_ms
        self.wheel_size = wheel_size
        self.interval_ms = tick_ms * wheel_size
        self.current_time_ms = start_ms - start_ms % tick_ms
        self.end_ms = self.current_time_ms + self.interval_ms
        self.queue = queue
        self.level = level
        self.buckets = [TimerTaskList(level, index) for index in range(wheel_size)]
        self.overflow_wheel: TimingWheel | None = None

    def __repr__(self) -> str:
        wheel = f"level={self.level} tick_ms={self.tick_ms} wheel_size={self.wheel_size}"
        return f"<{type(self).__name__} {wheel} at {self.current_time_ms} ms>"

    def add(self, entry: TimerTaskEntry) -> bool:
        """Put ``entry`` into the bucket of its expiration. O(m), m = number of levels.

        Returns:
            False if it was not taken, because it has expired already.
        """
        expiration_ms = entry.expiration_ms
        if expiration_ms < self.current_time_ms + self.tick_ms:
            return False
        wheel = self
        while expiration_ms >= wheel.end_ms:
            wheel = wheel.overflow_wheel or wheel._add_overflow_wheel()
        virtual_id = expiration_ms // wheel.tick_ms
        bucket = wheel.buckets[virtual_id % wheel.wheel_size]
        begin_ms = virtual_id * wheel.tick_ms
        # Queued first, then filled: an interrupt leaves an empty bucket in the queue, and not a
        # full one outside.
        if bucket.expiration_ms != begin_ms:
            self.queue.offer(bucket, begin_ms)
        # bucket.add(entry), written out: where few tasks wait, this is the hot path.
        if entry.bucket is NOWHERE:
            number = entry.number = next(bucket.numbers)
            entry.bucket = bucket.entries
            bucket.entries[number] = entry
        else:
            bucket.cascaded.append(entry)
        return True

    def add_if_queued(self, entry: TimerTaskEntry) -> bool:
        """Add ``entry`` to its bucket if the bucket is queued, the usual case. O(m).

        No lock is needed. The wheel's time may advance meanwhile, and the bucket be emptied: its
        containers and its expiration, read before and after, show whether the entry was added
        before that. A bucket queued for just that expiration is the right one.

        Returns:
            Whether the entry was added. If not, it may have come too late: it is in a container
            that is no longer read, or it was read after all.
        """
        expiration_ms = entry.expiration_ms
        wheel = self
        while expiration_ms >= wheel.end_ms:
            overflow_wheel = wheel.overflow_wheel
            if overflow_wheel is None:
                return False
            wheel = overflow_wheel
        tick_ms = wheel.tick_ms
        virtual_id = expiration_ms // tick_ms
        bucket = wheel.buckets[virtual_id % wheel.wheel_size]
        entries, cascaded = bucket.entries, bucket.cascaded
        if bucket.expiration_ms != virtual_id * tick_ms:
            return False
        # bucket.add(entry), written out: this is the hot path.
        if entry.bucket is NOWHERE:
            number = entry.number = next(bucket.numbers)
            entry.bucket = entries
            entries[number] = entry
        else:
            cascaded.append(entry)
        return (
            bucket.entries is entries
            and bucket.cascaded is cascaded
            and bucket.expiration_ms == virtual_id * tick_ms
        )

    def advance_clock(self, time_ms: int) -> None:
        """Advance this wheel and its overflow wheels to ``time_ms``. O(m)."""
        tick_ms = self.tick_ms
        if time_ms < self.current_time_ms + tick_ms:
            return
        # From the top down, and the end of a level before its time: after an interrupt the lower
        # ones are late, and the next call begins with them.
        overflow_wheel = self.overflow_wheel
        if (
            overflow_wheel is not None
            and time_ms >= overflow_wheel.current_time_ms + overflow_wheel.tick_ms
        ):
            overflow_wheel.advance_clock(time_ms)
        begin_ms = time_ms - time_ms % tick_ms
        self.end_ms = begin_ms + self.interval_ms
        self.current_time_ms = begin_ms

    def levels(self) -> list[TimingWheel]:
        """Return this wheel and those above it, the finest first."""
        levels = [self]
        while (overflow_wheel := levels[-1].overflow_wheel) is not None:
            levels.append(overflow_wheel)
        return levels

    def _add_overflow_wheel(self) -> TimingWheel:
        overflow_wheel = TimingWheel(
            self.interval_ms, self.wheel_size, self.current_time_ms, self.queue, self.level + 1
        )
        # Looked at again: while the buckets were made, the garbage collector may have run a
        # finalizer that added a task, and so made this level.
        if self.overflow_wheel is None:
            self.overflow_wheel = overflow_wheel
        return self.overflow_wheel

    def states(self) -> list[LevelState]:
        """Return this level and those above it as plain data. O(buckets + tasks)."""
        return [
            (level.tick_ms, level.current_time_ms, [*map(_bucket_tasks, level.buckets)])
            for level in self.levels()
        ]

    def _check(self) -> None:
        """Assert every invariant of this level and those above. O(buckets + tasks)."""
        queued = sorted(set(self.queue.states()))  # an interrupt may leave one there twice
        check_levels(self.states(), queued, self.wheel_size, _EXPIRATION_MS)
        for level in self.levels():
            assert level.end_ms == level.current_time_ms + level.tick_ms * level.wheel_size
            for bucket in level.buckets:
                assert bucket.expiration_ms != IDLE_MS or not bucket.entries
                assert all(entry.bucket is bucket.entries for entry in bucket.entries.values())


def _bucket_tasks(bucket: TimerTaskList) -> tuple[int, list[TimerTask]]:
    tasks = [entry.task for entry in bucket]
    return bucket.expiration_ms, [task for task in tasks if task is not None]
