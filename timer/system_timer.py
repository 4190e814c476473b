"""The timer: a layered timing wheel, a clock, and an executor for expired tasks.

``_PureTimer`` does the work for each task, or ``NativeTimer`` where native code was built.
``SystemTimer`` adds the work for all tasks to either.

Ground rules
------------
* One lock guards the moves of the wheel, its buckets and the delay queue. The lock is held for one
  insertion, one swap of a bucket's contents or the moves of a few entries: never while user code
  runs, and never while a large bucket cascades. The lock is reentrant, because a finalizer that the
  garbage collector runs in the middle may use the timer. ``cancel`` goes without it, and so does
  nearly every ``add`` (see ``timer_task`` and ``TimingWheel.add_if_queued``).
* Any thread may add, cancel, look and close. Any thread may drive the timer by ``advance_clock``;
  one usually does.
* The entries of a due bucket go from the wheel to ``_polled``, and one at a time to finer buckets
  or to ``_due``; those of a finest bucket go to ``_due`` at once. Until its task begins, an entry
  stays in the dict to which it was added, which ``_active_buckets`` keeps: there it is counted, and
  can be cancelled.
* *An exception may come between any two steps* (a signal's handler that raises), and leaves no lock
  held and no task lost. Locks are taken by ``with`` only, and no loop is written within one: from
  Python 3.12 on, an exception at its backward jump would leave the lock held. Every step puts an
  entry in its next place before it takes it out of the one before, so interrupted work is found
  by the next call of ``advance_clock``, which goes on; an entry in two places is passed over the
  second time.
* A dict that others change is copied by ``dict(x)`` or ``list(x)`` before it is iterated over. The
  garbage collector, and so a finalizer or another thread, may come in the middle of
  ``list(x.items())``, and on Python 3.11 of ``x.copy()``, which then may be of no use.
* A task is taken out of its home and begun in one step of the interpreter, on the executor's
  thread. The task can be cancelled until then. An interrupt of its ``run`` may have come before its
  first step: a task that may run again is put back, any other counts as run.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import count
from operator import attrgetter, call
from typing import TYPE_CHECKING, Any, NoReturn

from timer import forking
from timer.backend import NATIVE, describe_as
from timer.clock import NS_PER_MS, Clock, SystemClock
from timer.delay_queue import DelayQueue
from timer.durations import checked_delay_ms, checked_ms, checked_timeout_s
from timer.errors import (
    TimerClosedError,
    negative_time_error,
    not_copied_error,
    uninitialized_task_error,
    wrong_type_error,
)
from timer.executor import InlineExecutor, SingleThreadExecutor, TaskExecutor
from timer.histogram import Histogram
from timer.locks import ScopedLock
from timer.log import log_safely, safe_repr
from timer.machine_time import time
from timer.snapshot import LevelState, QueuedState, TimerSnapshot, take_snapshot
from timer.timer_task import NOWHERE, CallLater, Entries, TimerTask, TimerTaskEntry
from timer.timing_wheel import TimingWheel
from timer.wake import Wake

monotonic_ns, sleep = time.monotonic_ns, time.sleep
MAX_EXPIRATION_MS = 2**63 - 1
"""The latest deadline, some 292 million years ahead: the largest signed 64-bit integer."""

MAX_CASCADE_UNDER_LOCK = 8
"""The number of entries that may cascade within one critical section."""

MAX_ACTIVE_BUCKETS = 8
"""The number of active dicts above which those without entries are dropped."""

LATENESS_BOUNDS_MS = (0.5, 1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000)

MAX_RUN_NS = 2_000_000
"""The time that the worker runs due tasks before it yields to other threads."""

YIELD_S = 50e-6
"""The time that it yields: enough to wake a thread that waits for the interpreter's lock."""


class Timer(ABC):
    """Runs tasks after a delay, driven by the caller of ``advance_clock``."""

    clock: Clock

    @abstractmethod
    def add(self, task: TimerTask) -> None:
        """Run ``task`` after its ``delay_ms``; a pending task is rescheduled."""

    @abstractmethod
    def advance_clock(self, timeout_ms: int) -> bool:
        """Run due tasks, waiting at most ``timeout_ms`` for one; return whether there were any."""

    def _is_inside(self) -> bool:
        """Whether this thread is in the middle of a step, in which a finalizer may come: natively
        none may."""
        return False

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.size} pending>"

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of pending tasks."""

    @abstractmethod
    def close(self) -> int:
        """Take no more tasks, drop the pending ones, and return how many they were."""


class _PureTimer:
    """The work for each task, in pure Python; ``NativeTimer`` does the same."""

    name: str
    on_earlier: Callable[[], object] | None
    _closed: bool
    _executor: TaskExecutor
    _own_executor: SingleThreadExecutor | None
    _sleepers: dict[int, Wake]

    def _start_wheel(
        self,
        tick_ms: int,
        wheel_size: int,
        now_ns: Callable[[], int],
        lateness: Histogram,
        call_type: type[CallLater],
    ) -> None:
        """Initialize an empty wheel, whose clock is ``now_ns``."""
        self._now_ns = now_ns
        self._call_type = call_type
        self._lock = ScopedLock()
        self._owns_lock: Callable[[], bool] = self._lock._is_owned
        self._was_driven_inside = False
        self._queue = DelayQueue(on_earlier=self._wake_driver)
        self._wheel = TimingWheel(tick_ms, wheel_size, now_ns() // NS_PER_MS, self._queue)
        self._immediate: Entries = {}
        self._numbers = count()
        self._active_buckets = {id(self._immediate): self._immediate}
        self._polled: dict[int, _PolledBucket] = {}
        self._due: dict[int, tuple[list[TimerTaskEntry], Entries]] = {}
        self.lateness = lateness
        self.failures = 0

    # Not on the path of each task: implemented by `SystemTimer`.

    if TYPE_CHECKING:

        def advance_clock(self, timeout_ms: int | timedelta = 0) -> bool: ...

    def _wake_driver(self) -> None:
        raise NotImplementedError

    def _submit_due(self) -> None:
        raise NotImplementedError

    def _run_here(self, error: Exception, function: Callable[..., object], *args: object) -> None:
        raise NotImplementedError

    def _log_failure(self, task: TimerTask, error: Exception) -> None:
        raise NotImplementedError

    # Adding.

    def add(self, task: TimerTask) -> None:
        """Run ``task`` once its ``delay_ms`` are over. O(m), m = number of levels.

        A task that waits already, here or on another timer, is taken off first. A delay of zero or
        less is due at once; one beyond the range of 64 bits is cut to it.

        Raises:
            TypeError: it is no task, its ``__init__`` did not call that of ``TimerTask``, or its
                delay is not an integer.
            TimerClosedError: the timer was closed.
        """
        try:
            delay_ms = task.delay_ms
            if type(delay_ms) is not int:
                delay_ms = checked_delay_ms(delay_ms)
            now_ns = self._now_ns()
            if now_ns < 0:
                raise negative_time_error(now_ns)
            # Rounded up: the millisecond that has begun must not count as a whole one. But without
            # a delay, it has begun.
            if delay_ms > 0:
                expiration_ms = delay_ms - (-now_ns // NS_PER_MS)
            else:
                expiration_ms = now_ns // NS_PER_MS
            if expiration_ms > MAX_EXPIRATION_MS:
                expiration_ms = MAX_EXPIRATION_MS
            entry = TimerTaskEntry(task, expiration_ms)
            if task._timer_entry is None and not self._closed:
                task._timer_entry = entry
                if self._wheel.add_if_queued(entry):
                    return
        except (AttributeError, TypeError):
            _check_task(task)  # only now: that it is one costs nothing to take for granted
            raise
        self._add_under_lock(task, entry)

    def _check_open(self) -> None:
        if self._closed:
            raise TimerClosedError(f"timer {self.name!r} was closed: it takes no task")

    def _add_under_lock(self, task: TimerTask, entry: TimerTaskEntry) -> None:
        with self._lock:
            if entry.bucket is not NOWHERE:
                # The entry came too late into a bucket that was just emptied, and may have been
                # found.
                if not entry.remove():
                    return
                entry = TimerTaskEntry(task, entry.expiration_ms)
            if self._closed:
                self._check_open()
            due = not self._wheel.add(entry)
            if due:
                number = entry.number = next(self._numbers)
                entry.bucket = self._immediate
                # Noted twice, as in _poll.
                self._due[id(entry)] = [entry], NOWHERE
                self._immediate[number] = entry
                self._due[id(entry)] = [entry], NOWHERE
            # From here on the new entry counts, and the old one, perhaps another timer's, is void.
            replaced, task._timer_entry = task._timer_entry, entry
            if replaced is not None and replaced is not entry:
                replaced.remove()
        if due:
            self._submit_due()
        if self._was_driven_inside:  # by a finalizer, or by ``on_earlier``
            self.advance_clock(0)

    def call_later(
        self, delay_ms: int | timedelta, function: Callable[..., object], *args: object
    ) -> TimerTask:
        """Call ``function(*args)`` after ``delay_ms``, and return the task, which can be cancelled.

        Raises:
            TypeError: the delay is neither an integer, in milliseconds, nor a timedelta.
            TimerClosedError: the timer was closed.
        """
        task = self._call_type(delay_ms, function, args)
        self.add(task)
        return task

    # Looking.

    @property
    def size(self) -> int:
        """The number of pending tasks: added, and neither cancelled nor begun.

        Exact. O(1); in pure Python O(buckets in use), as adding and cancelling cost nothing for it.
        """
        with self._lock:
            return sum(map(len, self._buckets()))

    @property
    def levels_in_use(self) -> int:
        """The number of wheels: one, and the overflow wheels made so far."""
        return len(self._wheel.levels())

    @property
    def buckets_occupied(self) -> int:
        """The number of buckets in the delay queue. O(1)."""
        return len(self._queue)

    def next_expiration_ms(self) -> int | None:
        """Return when the next bucket is due, or None: what a driver may sleep until. O(1)."""
        with self._lock:
            if self._has_backlog():
                return -(-self._time_ns() // NS_PER_MS)
            return self._queue.first_expiration_ms

    def _time_ns(self) -> int:
        now_ns = self._now_ns()
        if now_ns < 0:
            raise negative_time_error(now_ns)
        return now_ns

    def _buckets(self) -> list[Entries]:
        """Return all dicts with entries, each once. O(buckets in use)."""
        buckets = dict(self._active_buckets)
        buckets.update([(id(bucket.entries), bucket.entries) for bucket in self._queue])
        return list(buckets.values())

    def _has_backlog(self) -> bool:
        """Whether there are polled buckets or due tasks that a driver must process."""
        has_due = self._own_executor is None and len(self._due) > 0
        return has_due or len(self._polled) > 0

    def _levels(self) -> list[LevelState]:
        with self._lock:
            return self._wheel.states()

    def _queued(self) -> list[QueuedState]:
        with self._lock:
            return self._queue.states()

    # Driving. Each step may be interrupted, and is then repeated by the next call.

    def _is_inside(self) -> bool:
        self._was_driven_inside = self._owns_lock()
        return self._was_driven_inside

    def _has_due(self) -> bool:
        return bool(self._due)

    def _poll(self) -> bool:
        """Poll the first due bucket, and advance the wheels. O(m)."""
        now_ms = self._time_ns() // NS_PER_MS
        queue = self._queue
        if queue.first_due(now_ms) is None:
            return False
        with self._lock:
            queued = queue.first_due(now_ms)
            if queued is None:
                return False
            begin_ms, level, _, bucket = queued
            entries, cascaded = bucket.entries, bucket.cascaded
            key = id(entries)
            if len(self._active_buckets) > MAX_ACTIVE_BUCKETS:
                self._drop_empty_buckets()
            self._active_buckets[key] = entries
            if level == 1 and bucket.expiration_ms == begin_ms:
                # All are due. They are noted before the bucket is emptied, so that none is lost
                # by an interrupt, and after it: another driver may have run all but the last
                # that came in.
                self._due[key] = cascaded, entries
                bucket.flush()
                self._due[key] = cascaded, entries
            else:
                self._polled[key] = polled = _PolledBucket(cascaded, entries)
                bucket.flush()
                self._polled[key] = polled
            self._wheel.advance_clock(begin_ms)
            queue.remove(queued)
            if level > 1 and len(entries) + len(cascaded) <= MAX_CASCADE_UNDER_LOCK:
                self._cascade_few(_all_entries(cascaded, entries))
                self._polled.pop(key, None)
        return True

    def _cascade_few(self, entries: list[TimerTaskEntry]) -> None:
        """Cascade entries in the section in which their bucket was polled; under the lock."""
        add = self._wheel.add
        for entry in entries:
            if entry.task is not None and not add(entry):
                self._due[id(entry)] = [entry], NOWHERE

    def _drop_empty_buckets(self) -> None:
        for key, entries in dict(self._active_buckets).items():
            if not entries and entries is not self._immediate:
                self._active_buckets.pop(key, None)

    def _cascade_some(self) -> bool:
        """Let the entries of large buckets fall to finer ones; False: that was all."""
        for key, polled in dict(self._polled).items():
            if polled.lock.locked():
                continue  # another driver is at it
            with polled.lock:
                self._cascade(_all_entries(polled.cascaded, polled.entries))
                self._polled.pop(key, None)
        return False

    def _cascade(self, entries: list[TimerTaskEntry]) -> None:
        add_if_queued = self._wheel.add_if_queued
        for entry in entries:
            if entry.task is None or add_if_queued(entry):
                continue
            with self._lock:
                if not self._wheel.add(entry):
                    self._due[id(entry)] = [entry], NOWHERE

    def _submit_each_due(self) -> None:
        """Give all due tasks to the user's executor."""
        due = self._due
        while due:
            for key, (cascaded, entries) in dict(due).items():
                for entry in _all_entries(cascaded, entries):
                    try:
                        self._executor.submit(self._run, entry)
                    except Exception as error:
                        self._run_here(error, self._run, entry)
                due.pop(key, None)

    def _run_some_due(self) -> bool:
        """Run due tasks; False: that was all."""
        due = self._due
        run = self._run
        while due:
            for key, (cascaded, entries) in dict(due).items():
                for entry in [*cascaded, *entries.values()]:
                    run(entry)
                due.pop(key, None)
                if not entries:
                    self._active_buckets.pop(key, None)
        return False

    def _run(self, entry: TimerTaskEntry) -> None:
        task = entry.task
        if task is None:
            return
        number = entry.number
        if task._timer_entry is not entry:
            with self._lock:  # an add that is under way has ended
                if entry.cancelled:
                    entry.remove()
                    return
        late_ns = self._time_ns() - entry.expiration_ms * NS_PER_MS
        self.lateness.observe(late_ns if late_ns > 0 else 0)  # a coarse tick may be early
        try:
            # entry.bucket.pop(number).task.run(), or nothing if a cancel was faster: in one step of
            # the interpreter, so that no interrupt comes between: a task that is taken out is
            # begun.
            next(map(call, map(_GET_RUN, map(entry.bucket.pop, (number,), _CANCELLED))))
        except (RecursionError, MemoryError) as error:
            # There may be no room for any call, so nothing is called before it is put back.
            is_not_started = error.__traceback__ is None or error.__traceback__.tb_next is None
            if is_not_started or task._timer_may_run_again:
                entry.bucket[number] = entry
            if number in entry.bucket:  # the next driver runs it
                self._due[id(entry)] = [entry], NOWHERE
                raise
            self._record_failure(task, error)
        except Exception as error:
            if task._timer_may_run_again:
                entry.bucket[number] = entry  # first, in case that this is interrupted as well
            self._record_failure(task, error)
            if task._timer_may_run_again:
                with suppress(Exception):  # once more only: it may be here to stay
                    next(map(call, map(_GET_RUN, map(entry.bucket.pop, (number,), _CANCELLED))))
        except BaseException:
            if task._timer_may_run_again:
                entry.bucket[number] = entry
                self._due[id(entry)] = [entry], NOWHERE
            raise
        # Entry and task would otherwise keep each other alive.
        entry.task = None

    def _record_failure(self, task: TimerTask, error: Exception) -> None:
        with self._lock:
            self.failures += 1
        self._log_failure(task, error)

    # Ending.

    def _forget_all(self) -> None:
        """Take all tasks off, in a process where no other thread is."""
        for entries in self._buckets():
            entries.clear()

    def _drop_all(self) -> int:
        """Take all tasks off; return how many this call took. O(buckets + tasks)."""
        with self._lock:
            self._flush_all()
            self._queue.clear()
        dropped = sum(map(_drop_all, list(self._active_buckets.values())))
        self._polled.clear()
        self._due.clear()
        return dropped

    def _flush_all(self) -> None:
        for entries in self._buckets():
            self._active_buckets[id(entries)] = entries
        for level in self._wheel.levels():
            for bucket in level.buckets:
                bucket.flush()  # an add that goes without the lock sees that it came too late

    def _check(self) -> None:
        """Assert all invariants; exact while no thread is inside the timer. O(buckets + tasks)."""
        with self._lock:
            self._wheel._check()
            assert len(self._queue) <= self._wheel.wheel_size * self.levels_in_use
            for entries in self._buckets():
                assert not any(entry.cancelled for entry in entries.values())


if TYPE_CHECKING or not NATIVE:
    TimerBase = _PureTimer
else:
    from timer.native.timer import NativeTimer as TimerBase

    describe_as(TimerBase, _PureTimer)


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

    def __reduce__(self) -> NoReturn:
        raise not_copied_error(self)

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
        if self._is_inside():
            return False  # the driver further down the stack goes on, with the time of then
        has_run = False
        while True:
            # At first, these are the leftovers of an interrupt.
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

    # Driving. Each step may be interrupted, and is then taken again by the next call.

    def _wait_for_due(self, timeout_ms: int) -> bool:
        deadline_ns = self._now_ns() + timeout_ms * NS_PER_MS
        wake = Wake()
        try:
            # Registered first, then looked: a bucket that comes later wakes this thread.
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
                # A thread that waits for the interpreter's lock would else ask for it only after 5
                # ms.
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


def _check_task(task: object) -> None:
    """Raise the error of the task itself, if there is one."""
    if not isinstance(task, TimerTask):
        raise wrong_type_error(task) from None
    if not hasattr(task, "_timer_entry"):
        raise uninitialized_task_error(task) from None


class _PolledBucket:
    """The entries of a polled bucket, which cascade to finer buckets.

    Args:
        cascaded: entries that had cascaded into it.
        entries: entries that were added to it.
    """

    __slots__ = ("cascaded", "entries", "lock")

    def __init__(self, cascaded: list[TimerTaskEntry], entries: Entries) -> None:
        self.cascaded = cascaded
        self.entries = entries
        self.lock = ScopedLock(threading.Lock())
        """Held while a driver cascades the entries; always released."""


def _all_entries(cascaded: list[TimerTaskEntry], entries: Entries) -> list[TimerTaskEntry]:
    return [*cascaded, *entries.values()]


class _CancelledEntry:
    """Stands in for an entry cancelled concurrently, and for its task."""

    task: _CancelledEntry

    def run(self) -> None:
        """Do nothing."""


_CANCELLED: tuple[Any] = (_CancelledEntry(),)
_CANCELLED[0].task = _CANCELLED[0]
_GET_RUN = attrgetter("task.run")


def _drop_all(entries: Entries) -> int:
    """Empty ``entries``, and return how many this call took out."""
    dropped = 0
    for number in list(entries):
        entry = entries.pop(number, None)
        if entry is not None:
            entry.task = None
            dropped += 1
    return dropped
