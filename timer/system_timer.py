"""The timer: a layered timing wheel, a clock, and an executor for what has expired.

What is done for each task is in ``timer_core``, or in ``native``; here is what is done for all.

Ground rules
------------
* Any thread may add, cancel, look and close. Any thread may drive the timer by ``advance_clock``;
  one usually does.
* *An exception may come between any two steps* (a signal's handler that raises), and leaves no lock
  held and no task lost. What was broken off is found by the next call of ``advance_clock``, which
  goes on.
* No lock is held while user code runs, but for ``on_earlier`` in pure Python.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic_ns, sleep
from typing import TYPE_CHECKING, Any, TypedDict

from timer import forking
from timer._timer_pure import MAX_EXPIRATION_MS
from timer._timer_pure import SystemTimer as PureTimer
from timer.backend import NATIVE, describe_as
from timer.clock import NS_PER_MS, Clock, SystemClock
from timer.durations import checked_ms, checked_timeout_s
from timer.errors import TimerClosedError
from timer.executor import InlineExecutor, SingleThreadExecutor, TaskExecutor
from timer.histogram import Histogram
from timer.levels import LevelState, QueuedState
from timer.log import log_safely, safe_repr
from timer.timer_task import CallLater, TimerTask
from timer.wake import Wake

if TYPE_CHECKING or not NATIVE:
    TimerBase = PureTimer
else:
    from timer.native.timer import NativeTimer as TimerBase

    describe_as(TimerBase, PureTimer)

LATENESS_BOUNDS_MS = (0.5, 1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000)

MAX_RUN_NS = 2_000_000
"""How long the worker runs due tasks before it yields to other threads."""

YIELD_S = 50e-6
"""How long it yields: enough to wake a thread that waits for the interpreter's lock."""


class Timer(ABC):
    """Runs tasks after a delay, driven by whoever calls ``advance_clock``."""

    clock: Clock

    @abstractmethod
    def add(self, task: TimerTask) -> None:
        """Run ``task`` after its ``delay_ms``; a pending task is rescheduled."""

    @abstractmethod
    def advance_clock(self, timeout_ms: int) -> bool:
        """Run due tasks, waiting at most ``timeout_ms`` for one; return whether there were any."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.size} pending>"

    @property
    @abstractmethod
    def size(self) -> int:
        """How many tasks are pending."""

    @abstractmethod
    def close(self) -> int:
        """Take no more tasks, drop the pending ones, and return how many they were."""


class SystemTimer(TimerBase, Timer):
    """A timer on a layered timing wheel.

    With a tick of 1 ms no task runs early: its expiration is rounded up to a whole millisecond when
    it is added. With a coarser tick it runs when its bucket begins, up to one tick early.

    Args:
        name: names the timer in logs and metrics, and its worker thread.
        tick_ms: the width of the finest buckets, in milliseconds, or a timedelta.
        wheel_size: buckets per level, at least 2.
        clock: the time; the machine's monotonic clock by default.
        executor: runs expired tasks; by default one worker thread of the timer's own.

    Raises:
        TypeError: tick_ms or wheel_size is not an integer.
        ValueError: tick_ms is below 1 or beyond 64 bits, wheel_size below 2, or the clock's time
            below 0.
    """

    def __init__(
        self,
        name: str,
        tick_ms: int | timedelta = 1,
        wheel_size: int = 20,
        clock: Clock | None = None,
        executor: TaskExecutor | None = None,
    ) -> None:
        tick_ms = checked_ms("tick_ms", tick_ms, 1)
        _check_at_least("wheel_size", wheel_size, 2)
        if tick_ms > MAX_EXPIRATION_MS:
            raise ValueError(f"tick_ms must be at most {MAX_EXPIRATION_MS}, not {tick_ms!r}")
        self.name = name
        self.clock = SystemClock() if clock is None else clock
        _check_at_least("the clock's time", self.clock.now_ns(), 0)
        self._tick_ms = tick_ms
        self._wheel_size = wheel_size
        self.on_earlier: Callable[[], object] | None = None
        """Called, under the timer's lock, when a bucket comes that is due before all others: for a
        driver that sleeps elsewhere than in ``advance_clock``, as an event loop does."""
        self._start_empty()
        self._own_executor = SingleThreadExecutor(f"executor-{name}") if executor is None else None
        self._executor: TaskExecutor = self._own_executor or executor  # type: ignore[assignment]
        self._is_serial = isinstance(self._executor, (InlineExecutor, SingleThreadExecutor))
        self._closed = False
        forking.register(self)

    def __repr__(self) -> str:
        closed = " closed" if self._closed else ""
        return f"<{type(self).__name__} {self.name!r}{closed}: {self.size} pending>"

    def _start_empty(self) -> None:
        self._sleepers = {}
        lateness = Histogram(LATENESS_BOUNDS_MS)
        now_ns = self.clock.now_ns
        self._start_wheel(self._tick_ms, self._wheel_size, now_ns, lateness, CallLater)

    def _wake_driver(self) -> None:
        if self._sleepers:
            self._wake_sleepers()
        if self.on_earlier is not None:
            self.on_earlier()

    def _wake_sleepers(self) -> None:
        for wake in list(self._sleepers.values()):
            wake.set()

    def _after_fork(self) -> None:
        """In the child: forget the parent's tasks, with locks that its threads may hold."""
        self._forget_all()  # a cancel in the child finds nothing
        self._start_empty()
        if isinstance(self._executor, (InlineExecutor, SingleThreadExecutor)):
            self._executor._after_fork()

    def advance_clock(self, timeout_ms: int | timedelta = 0) -> bool:
        """Wait at most ``timeout_ms`` for a due bucket, then run everything that is due.

        Returns:
            Whether a bucket was due.

        Raises:
            TypeError: the timeout is neither an integer, in milliseconds, nor a timedelta.
            TimerClosedError: the timer was closed before.
        """
        limit_ms = timeout_ms if type(timeout_ms) is int else checked_ms("timeout_ms", timeout_ms)
        if self._closed:
            raise TimerClosedError(f"timer {self.name!r} was closed: it does not advance")
        has_run = False
        while True:
            # At first, this is what an interrupt broke off.
            while self._cascade_some():
                pass
            if self._has_due():
                self._submit_due()
            if not self._poll() and (has_run or limit_ms <= 0 or not self._wait_for_due(limit_ms)):
                return has_run
            has_run = True

    def snapshot(self, label: Callable[[TimerTask], Any] = repr) -> TimerSnapshot:
        """Return all levels and the delay queue as plain data. O(buckets + tasks).

        Args:
            label: what stands for a task in the result.
        """
        return take_snapshot(self._levels(), self._queued(), self._wheel_size, label)

    def close(self, timeout_s: float | timedelta | None = None) -> int:
        """Take no more tasks and drop the pending ones: they never run, nor can be cancelled.

        A task that is running is waited for, unless it is the one that closes, or runs on an
        executor of the user's. Closing again has no effect.

        Args:
            timeout_s: how long to wait for it, in seconds or as a timedelta; by default there is no
                limit.

        Returns:
            How many tasks were dropped.

        Raises:
            TypeError: timeout_s is neither a number nor a timedelta.
            ValueError: timeout_s is nan.
        """
        limit_s = checked_timeout_s(timeout_s, "timeout_s")
        self._closed = True
        self._wake_sleepers()
        dropped = self._drop_all()
        if self._own_executor is not None:
            self._own_executor.shutdown(limit_s)
        if dropped:
            log_safely("timer", "info", "timer_closed", timer=self.name, dropped_tasks=dropped)
        return dropped

    # Driving. Each step may be broken off, and is then taken again by the next call.

    def _wait_for_due(self, timeout_ms: int) -> bool:
        deadline_ns = self._now_ns() + timeout_ms * NS_PER_MS
        wake = Wake()
        try:
            # First, then looked: a bucket that comes later wakes us.
            self._sleepers[id(wake)] = wake
            return self._sleep_until_due(wake, deadline_ns)
        finally:
            self._sleepers.pop(id(wake), None)

    def _sleep_until_due(self, wake: Wake, deadline_ns: int) -> bool:
        while not self._closed:
            now_ns = self._now_ns()
            if self._poll():
                return True
            if now_ns >= deadline_ns:
                return False
            first_ms = self.next_expiration_ms()
            until_ns = deadline_ns
            if first_ms is not None:
                until_ns = min(deadline_ns, first_ms * NS_PER_MS)
            if not self.clock.wait(wake, until_ns):
                break
        return False

    def _submit_due(self) -> None:
        if not self._is_serial:
            self._submit_each_due()
            return
        try:
            self._executor.submit(self._run_due)  # one call will do for all
        except Exception as error:
            self._run_here(error, self._run_due)

    def _run_here(self, error: Exception, function: Callable[..., object], *args: object) -> None:
        # A pool that is full, broken or shut down: on the wrong thread is better than never.
        log_safely("timer", "error", "timer_executor_refused", timer=self.name, error=str(error))
        function(*args)

    def _run_due(self) -> None:
        try:
            self._run_all_due()
        except BaseException:
            if self._own_executor is not None:
                self._own_executor.submit(self._run_due)  # this call ends; not the others
            raise

    # By itself: a jump back would lie outside of the ``try`` on some Pythons.
    def _run_all_due(self) -> None:
        if self._own_executor is None:
            while self._run_some_due():
                pass
            return
        start_ns = monotonic_ns()
        while self._run_some_due():
            if monotonic_ns() - start_ns > MAX_RUN_NS:
                # Who waits for the interpreter's lock would else ask for it only after 5 ms.
                sleep(YIELD_S)
                start_ns = monotonic_ns()

    def _log_failure(self, task: TimerTask, error: Exception) -> None:
        log_safely(
            "timer",
            "error",
            "timer_task_failed",
            timer=self.name,
            task=safe_repr(task),
            exc_info=error,
        )


def _check_at_least(name: str, value: int, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {value!r} ({type(value).__name__})")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, not {value!r}")


# A timer's state as plain data: to print, to compare, to dump as JSON.


class BucketSnapshot(TypedDict):
    """A bucket: when it begins (-1 while idle), and the labels of its tasks in order."""

    expiration_ms: int
    tasks: list[Any]


class LevelSnapshot(TypedDict):
    """A wheel: its level from 1, its tick, the range [begin, end) ahead, and all its buckets."""

    level: int
    tick_ms: int
    covers_ms: list[int]
    buckets: list[BucketSnapshot]


class QueuedBucketSnapshot(TypedDict):
    """A bucket in the delay queue: when it is due, and which one it is."""

    expiration_ms: int
    level: int
    bucket: int


class TimerSnapshot(TypedDict):
    """All levels, the finest first, and the delay queue in the order in which it will be polled."""

    levels: list[LevelSnapshot]
    delay_queue: list[QueuedBucketSnapshot]


def take_snapshot(
    levels: Sequence[LevelState],
    queued: Sequence[QueuedState],
    wheel_size: int,
    label: Callable[[TimerTask], Any],
) -> TimerSnapshot:
    """Describe a timer, naming each task by ``label(task)``. O(buckets + tasks).

    Args:
        levels: of each its tick, its time, and its buckets: expirations and tasks.
        queued: the buckets as they fall due: expiration, level and index.
        wheel_size: buckets for each level.
    """
    return {
        "levels": [
            {
                "level": number,
                "tick_ms": tick_ms,
                "covers_ms": [current_ms, current_ms + tick_ms * wheel_size],
                "buckets": [
                    {"expiration_ms": expiration_ms, "tasks": list(map(label, tasks))}
                    for expiration_ms, tasks in buckets
                ],
            }
            for number, (tick_ms, current_ms, buckets) in enumerate(levels, 1)
        ],
        "delay_queue": [
            {"expiration_ms": expiration_ms, "level": level, "bucket": index}
            for expiration_ms, level, index in queued
        ],
    }
