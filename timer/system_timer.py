"""The timer: a layered timing wheel, a clock, a lock, and an executor for what has expired.

Ground rules
------------
* One lock guards the wheel, its buckets and the delay queue. It is held for one insertion, one move
  of an entry or one swap of a bucket's contents: never while user code runs, and never while a
  whole bucket cascades. It is reentrant, because a finalizer that the garbage collector runs in the
  middle of ``add`` may use the timer. ``cancel`` goes without it (see ``timer_task``).
* Any thread may add, cancel, look and close. Any thread may drive the timer by ``advance_clock``;
  one usually does.
* What the bucket that is due holds is taken out of the wheel in one step and kept in hand: a dict
  in ``_in_hand``. Its entries are then moved to finer buckets one at a time, each under the lock
  anew; until then they are pending, can be cancelled, and are counted.
* An expired entry is popped at the moment its task begins to run, on the executor's thread, so a
  task can be cancelled until then.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from timer import forking
from timer.clock import NS_PER_MS, Clock, SystemClock
from timer.delay_queue import DelayQueue
from timer.errors import TimerClosedError, checked_delay_ms, checked_ms
from timer.executor import InlineExecutor, SingleThreadExecutor, TaskExecutor
from timer.histogram import Histogram
from timer.safe_log import log_safely, safe_repr
from timer.snapshot import TimerSnapshot, take_snapshot
from timer.timer import Timer
from timer.timer_task import CallLater, Entries, TimerTask, TimerTaskEntry
from timer.timer_task_list import TimerTaskList
from timer.timing_wheel import TimingWheel

MAX_EXPIRATION_MS = 2**63 - 1
"""Where deadlines saturate, some 292 million years ahead: the largest signed 64-bit integer."""

LATENESS_BOUNDS_MS = (0.5, 1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000)


class SystemTimer(Timer):
    """A timer on a layered timing wheel.

    With a tick of 1 ms no task runs early: its expiration is rounded up to a whole millisecond when
    it is added. With a coarser tick it runs when its bucket begins, up to one tick early.

    Args:
        name: names the timer in logs and metrics, and its worker thread.
        tick_ms: the width of the finest buckets, in milliseconds.
        wheel_size: buckets per level, at least 2.
        clock: the time; the machine's monotonic clock by default.
        executor: runs expired tasks; by default one worker thread of the timer's own.

    Raises:
        TypeError: tick_ms or wheel_size is not an integer.
        ValueError: tick_ms is below 1, wheel_size below 2, or the clock's time below 0.
    """

    def __init__(
        self,
        name: str,
        tick_ms: int = 1,
        wheel_size: int = 20,
        clock: Clock | None = None,
        executor: TaskExecutor | None = None,
    ) -> None:
        _check_at_least("tick_ms", tick_ms, 1)
        _check_at_least("wheel_size", wheel_size, 2)
        self.name = name
        self.clock = SystemClock() if clock is None else clock
        _check_at_least("the clock's time", self.clock.now_ns(), 0)
        self._now_ns = self.clock.now_ns
        self._tick_ms = tick_ms
        self._wheel_size = wheel_size
        self.on_earlier: Callable[[], object] | None = None
        """Called, under the timer's lock, when a bucket comes that is due before all others: for a
        driver that sleeps elsewhere than in ``advance_clock``, as an event loop does."""
        self._start_empty()
        self._own_executor = SingleThreadExecutor(f"executor-{name}") if executor is None else None
        self._executor: TaskExecutor = self._own_executor or executor  # type: ignore[assignment]
        self._closed = False
        forking.protect(self)

    def _start_empty(self) -> None:
        self._lock = threading.RLock()
        self._earlier = threading.Condition(self._lock)
        self._queue = DelayQueue(on_earlier=self._wake_driver)
        self._wheel = TimingWheel(self._tick_ms, self._wheel_size, self.clock.now_ms(), self._queue)
        self._in_hand: dict[int, Entries] = {}
        self._due = TimerTaskList()
        self._hold(self._due.entries)
        self._unsubmitted: deque[TimerTaskEntry] = deque()
        self.lateness = Histogram(LATENESS_BOUNDS_MS)
        self.failures = 0

    def _wake_driver(self) -> None:
        self._earlier.notify_all()
        if self.on_earlier is not None:
            self.on_earlier()

    def _after_fork(self) -> None:
        """In the child: forget the parent's tasks, with a lock that its threads may hold."""
        for entries in (*(bucket.entries for bucket in self._queue), *self._in_hand.values()):
            for entry in entries.values():
                entry.task = None  # a cancel in the child finds nothing, and takes no lock
            entries.clear()
        self._start_empty()
        if isinstance(self._executor, (InlineExecutor, SingleThreadExecutor)):
            self._executor._after_fork()

    def add(self, task: TimerTask) -> None:
        """Run ``task`` once its ``delay_ms`` are over. O(m), m = number of levels.

        A task that waits already, here or on another timer, is taken off first. A delay of zero or
        less is due at once; one beyond the range of 64 bits is cut to it.

        Raises:
            TypeError: the delay is not an integer.
            TimerClosedError: the timer was closed.
        """
        delay_ms = task.delay_ms
        if type(delay_ms) is not int or delay_ms < 0:
            delay_ms = max(0, checked_delay_ms(delay_ms))
        # Rounded up: the millisecond that has begun must not count as a whole one.
        expiration_ms = delay_ms - (-self._now_ns() // NS_PER_MS)
        if expiration_ms > MAX_EXPIRATION_MS:
            expiration_ms = MAX_EXPIRATION_MS
        if task._timer_entry is not None:
            self._check_open()  # a task that can't be taken stays where it is
            task.cancel()  # outside the lock: the other timer may be waiting for its own
        # acquire and release, since ``with`` costs twice as much.
        lock = self._lock
        lock.acquire()
        try:
            if self._closed:
                self._check_open()
            if task._timer_entry is not None:
                task._timer_entry.remove()  # another thread added it since
            entry = TimerTaskEntry(task, expiration_ms, lock)
            task._timer_entry = entry
            if self._wheel.add(entry):
                return
            self._due.add(entry)
        finally:
            lock.release()
        self._submit(entry)

    def call_later(
        self, delay_ms: int, function: Callable[..., object], *args: object
    ) -> TimerTask:
        """Call ``function(*args)`` after ``delay_ms``, and return the task, which can be cancelled.

        Raises:
            TypeError: the delay is not an integer.
            TimerClosedError: the timer was closed.
        """
        task = CallLater(delay_ms, function, args)
        self.add(task)
        return task

    def advance_clock(self, timeout_ms: int = 0) -> bool:
        """Wait at most ``timeout_ms`` for a due bucket, then run everything that is due.

        Returns:
            Whether a bucket was due.

        Raises:
            TypeError: the timeout is not an integer.
            TimerClosedError: the timer was closed before.
        """
        if type(timeout_ms) is not int:
            timeout_ms = checked_ms("timeout_ms", timeout_ms)
        if self._closed:
            raise TimerClosedError(f"timer {self.name!r} was closed: it does not advance")
        if self._unsubmitted:
            self._submit_due()
        entries = self._wait_for_due(timeout_ms)
        was_due = entries is not None
        while entries is not None:
            self._reinsert(entries)
            self._submit_due()
            with self._lock:
                entries = self._poll(self.clock.now_ms())
        return was_due

    @property
    def size(self) -> int:
        """How many tasks are pending: added, and neither cancelled nor begun.

        Exact, and counted when asked for, so that adding and cancelling cost nothing: O(buckets in
        use), whatever the number of tasks.
        """
        with self._lock:
            return sum(map(len, self._queue)) + sum(map(len, self._in_hand.values()))

    @property
    def levels_in_use(self) -> int:
        """How many wheels there are: one, and the overflow wheels made so far."""
        return len(self._wheel.levels())

    @property
    def buckets_occupied(self) -> int:
        """How many buckets are in the delay queue. O(1)."""
        return len(self._queue)

    def next_expiration_ms(self) -> int | None:
        """Return when the next bucket is due, or None: what a driver may sleep until. O(1)."""
        with self._lock:
            return self._queue.first_expiration_ms

    def snapshot(self, label: Callable[[TimerTask], Any] = repr) -> TimerSnapshot:
        """Return all levels and the delay queue as plain data. O(buckets + tasks).

        Args:
            label: what stands for a task in the result; it runs under the timer's lock.
        """
        with self._lock:
            return take_snapshot(self._wheel, self._queue, label)

    def close(self, timeout_s: float | None = None) -> int:
        """Take no more tasks and drop the pending ones: they never run, nor can be cancelled.

        A task that is running is waited for, unless it is the one that closes, or runs on an
        executor of the user's. Closing again has no effect.

        Args:
            timeout_s: how long to wait for it, in seconds; by default there is no limit.

        Returns:
            How many tasks were dropped.
        """
        dropped: list[TimerTaskEntry] = []
        with self._lock:
            self._closed = True
            for bucket in self._queue:
                bucket.flush(dropped.append)
            self._queue.clear()
            for entries in self._in_hand.values():
                dropped += [
                    entry
                    for entry in list(entries.values())
                    if entries.pop(entry.number, None) is not None
                ]
            self._earlier.notify_all()
        for entry in dropped:
            entry.task = None
        if self._own_executor is not None:
            self._own_executor.shutdown(timeout_s)
        if dropped:
            log_safely("timer", "info", "timer_closed", timer=self.name, dropped_tasks=len(dropped))
        return len(dropped)

    def _check_open(self) -> None:
        if self._closed:
            raise TimerClosedError(f"timer {self.name!r} was closed: it takes no task")

    def _wait_for_due(self, timeout_ms: int) -> Entries | None:
        clock = self.clock
        with self._earlier:
            deadline_ns = self._now_ns() + timeout_ms * NS_PER_MS
            while not self._closed:
                now_ns = self._now_ns()
                entries = self._poll(now_ns // NS_PER_MS)
                if entries is not None or now_ns >= deadline_ns:
                    return entries
                first_ms = self._queue.first_expiration_ms
                until_ns = deadline_ns
                if first_ms is not None:
                    until_ns = min(deadline_ns, first_ms * NS_PER_MS)
                if not clock.wait(self._earlier, until_ns):
                    break
        return None

    def _poll(self, now_ms: int) -> Entries | None:
        """Take in hand what the first due bucket holds, and move the wheels; under the lock."""
        bucket = self._queue.poll(now_ms)
        if bucket is None:
            return None
        self._wheel.advance_clock(bucket.expiration_ms)
        return self._hold(bucket.take())

    def _hold(self, entries: Entries) -> Entries:
        self._in_hand[id(entries)] = entries
        return entries

    def _reinsert(self, entries: Entries) -> None:
        """Move each entry to a finer bucket, or, where there is none, to those that are due."""
        lock = self._lock
        add = self._wheel.add
        # The lock is taken for each entry, not for the bucket: an add from another thread gets
        # its turn in the middle of a cascade of 100,000.
        for entry in list(entries.values()):
            with lock:
                if entries.pop(entry.number, None) is None or add(entry):
                    continue
                self._due.add(entry)
            self._unsubmitted.append(entry)
        with lock:
            del self._in_hand[id(entries)]

    def _submit_due(self) -> None:
        # A queue of the timer's, not a local one: if a task that runs inline is interrupted, the
        # next call goes on with the others.
        unsubmitted = self._unsubmitted
        while unsubmitted:
            self._submit(unsubmitted.popleft())

    def _submit(self, entry: TimerTaskEntry) -> None:
        try:
            self._executor.submit(self._run, entry)
        except Exception as error:
            # A pool that is full, broken or shut down: on the wrong thread is better than never.
            log_safely(
                "timer", "error", "timer_executor_refused", timer=self.name, error=str(error)
            )
            self._run(entry)

    def _run(self, entry: TimerTaskEntry) -> None:
        if self._due.entries.pop(entry.number, None) is None:
            return
        task, entry.task = entry.task, None
        assert task is not None, "only who popped the entry clears it"
        self.lateness.observe(self._now_ns() - entry.expiration_ms * NS_PER_MS)
        try:
            task.run()
        except Exception as error:
            with self._lock:
                self.failures += 1
            log_safely(
                "timer",
                "error",
                "timer_task_failed",
                timer=self.name,
                task=safe_repr(task),
                exc_info=error,
            )

    def _check(self) -> None:
        """Assert all invariants; exact while no thread is inside the timer. O(buckets + tasks)."""
        with self._lock:
            self._wheel._check()
            assert len(self._queue) <= self._wheel.wheel_size * self.levels_in_use
            for held in self._in_hand.values():
                assert not any(entry.cancelled for entry in held.values())


def _check_at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {value!r} ({type(value).__name__})")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value!r}")
