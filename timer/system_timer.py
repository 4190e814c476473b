"""The timer: a layered timing wheel, a clock, a lock, and an executor for what has expired.

Ground rules
------------
* One lock guards the moves of the wheel, its buckets and the delay queue. It is held for one
  insertion, one swap of a bucket's contents or the moves of a few entries: never while user code
  runs, and never while a large bucket cascades. It is reentrant, because a finalizer that the
  garbage collector runs in the middle may use the timer. ``cancel`` goes without it, and so does
  nearly every ``add`` (see ``timer_task`` and ``TimingWheel.add_if_queued``).
* Any thread may add, cancel, look and close. Any thread may drive the timer by ``advance_clock``;
  one usually does.
* What the bucket that is due holds goes from the wheel to ``_taken``, and one entry at a time to
  finer buckets or to ``_due``; that of a finest bucket goes to ``_due`` at once. Until its task
  begins, an entry stays at home in the dict to which it was added, which is kept in ``_in_hand``:
  there it is counted, and can be cancelled.
* *An exception may come between any two steps* (a signal's handler that raises), and leaves no lock
  held and no task lost. Locks are taken by ``with`` only, and no loop is written within one: from
  Python 3.12 on, an exception at its backward jump would leave the lock held. Every step puts an
  entry in its next place before it takes it out of the one before, so what was broken off is found
  by the next call of ``advance_clock``, which goes on; what stands in two places is passed over the
  second time.
* A dict that others change is copied by ``dict(x)`` or ``list(x)`` before it is iterated over. The
  garbage collector, and so a finalizer or another thread, may come in the middle of
  ``list(x.items())``, and on Python 3.11 of ``x.copy()``, which then may be of no use.
* A task is taken out of its home and begun in one step of the interpreter, on the executor's
  thread. It can be cancelled until then. Whether what breaks its ``run`` off came before its first
  step can't be told: a task that may run again is put back, any other counts as run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from operator import attrgetter, call
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
from timer.timer_task import NOWHERE, CallLater, Entries, TimerTask, TimerTaskEntry
from timer.timing_wheel import TimingWheel
from timer.wake import Wake

MAX_EXPIRATION_MS = 2**63 - 1
"""Where deadlines saturate, some 292 million years ahead: the largest signed 64-bit integer."""

FEW_TO_FALL = 8
"""How many entries may fall to finer buckets within one section."""

MANY_IN_HAND = 8
"""How many dicts are in hand before those are let go of whose tasks have all begun."""

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
        self._one_at_a_time = isinstance(self._executor, (InlineExecutor, SingleThreadExecutor))
        self._closed = False
        forking.protect(self)

    def _start_empty(self) -> None:
        self._lock = threading.RLock()
        self._sleepers: dict[int, Wake] = {}
        self._queue = DelayQueue(on_earlier=self._wake_driver)
        self._wheel = TimingWheel(self._tick_ms, self._wheel_size, self.clock.now_ms(), self._queue)
        self._due_at_once: Entries = {}
        self._numbers = count()
        self._in_hand = {id(self._due_at_once): self._due_at_once}
        self._taken: dict[int, _Taken] = {}
        self._due: dict[int, tuple[list[TimerTaskEntry], Entries]] = {}
        self.lateness = Histogram(LATENESS_BOUNDS_MS)
        self.failures = 0

    def _wake_driver(self) -> None:
        if self._sleepers:
            self._wake_sleepers()
        if self.on_earlier is not None:
            self.on_earlier()

    def _wake_sleepers(self) -> None:
        for wake in list(self._sleepers.values()):
            wake.set()

    def _after_fork(self) -> None:
        """In the child: forget the parent's tasks, with a lock that its threads may hold."""
        for entries in self._homes():
            entries.clear()  # a cancel in the child finds nothing
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
        entry = TimerTaskEntry(task, expiration_ms)
        if task._timer_entry is None and not self._closed:
            task._timer_entry = entry
            if self._wheel.add_if_queued(entry):
                return
        self._add_under_lock(task, entry)

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
        was_due = False
        while True:
            # At first, this is what an interrupt broke off.
            if self._taken:
                self._let_taken_fall()
            if self._due:
                self._submit_due()
            if not self._poll() and (
                was_due or timeout_ms <= 0 or not self._wait_for_due(timeout_ms)
            ):
                return was_due
            was_due = True

    @property
    def size(self) -> int:
        """How many tasks are pending: added, and neither cancelled nor begun.

        Exact, and counted when asked for, so that adding and cancelling cost nothing: O(buckets in
        use), whatever the number of tasks.
        """
        with self._lock:
            return sum(map(len, self._homes()))

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
            if self._is_behind():
                return -(-self._now_ns() // NS_PER_MS)
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
        with self._lock:
            self._closed = True
            self._take_all()
            self._queue.clear()
        self._wake_sleepers()
        dropped = sum(map(_drop_all, list(self._in_hand.values())))
        self._taken.clear()
        self._due.clear()
        if self._own_executor is not None:
            self._own_executor.shutdown(timeout_s)
        if dropped:
            log_safely("timer", "info", "timer_closed", timer=self.name, dropped_tasks=dropped)
        return dropped

    def _check_open(self) -> None:
        if self._closed:
            raise TimerClosedError(f"timer {self.name!r} was closed: it takes no task")

    def _homes(self) -> list[Entries]:
        """Return all dicts that entries are at home in, each once. O(buckets in use)."""
        homes = dict(self._in_hand)
        homes.update([(id(bucket.entries), bucket.entries) for bucket in self._queue])
        return list(homes.values())

    def _take_all(self) -> None:
        for entries in self._homes():
            self._in_hand[id(entries)] = entries
        for level in self._wheel.levels():
            for bucket in level.buckets:
                bucket.empty()  # an add that goes without the lock sees that it came too late

    def _is_behind(self) -> bool:
        """Whether something is left that only a driver can go on with."""
        left_due = self._own_executor is None and len(self._due) > 0
        return left_due or len(self._taken) > 0

    def _add_under_lock(self, task: TimerTask, entry: TimerTaskEntry) -> None:
        with self._lock:
            if entry.home is not NOWHERE:
                # It came too late into a bucket that was just emptied, and may have been found.
                if not entry.remove():
                    return
                entry = TimerTaskEntry(task, entry.expiration_ms)
            if self._closed:
                self._check_open()
            due = not self._wheel.add(entry)
            if due:
                number = entry.number = next(self._numbers)
                entry.home = self._due_at_once
                # Noted twice, as in _poll.
                self._due[id(entry)] = [entry], NOWHERE
                self._due_at_once[number] = entry
                self._due[id(entry)] = [entry], NOWHERE
            # From here on the new entry counts, and the old one, perhaps another timer's, is void.
            replaced, task._timer_entry = task._timer_entry, entry
            if replaced is not None and replaced is not entry:
                replaced.remove()
        if due:
            self._submit_due()

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

    def _poll(self) -> bool:
        """Take in hand what the first due bucket holds, and move the wheels. O(m)."""
        now_ms = self._now_ns() // NS_PER_MS
        queue = self._queue
        if queue.first_due(now_ms) is None:
            return False
        with self._lock:
            queued = queue.first_due(now_ms)
            if queued is None:
                return False
            begin_ms, level, _, bucket = queued
            entries, fallen = bucket.entries, bucket.fallen
            key = id(entries)
            if len(self._in_hand) > MANY_IN_HAND:
                self._let_go_of_empty()
            self._in_hand[key] = entries
            if level == 1 and bucket.expiration_ms == begin_ms:
                # All are due. They are noted before the bucket is emptied, so that none is lost
                # by an interrupt, and after it: another driver may have run all but the last
                # that came in.
                self._due[key] = fallen, entries
                bucket.empty()
                self._due[key] = fallen, entries
            else:
                self._taken[key] = taken = _Taken(fallen, entries)
                bucket.empty()
                self._taken[key] = taken
            self._wheel.advance_clock(begin_ms)
            queue.remove(queued)
            if level > 1 and len(entries) + len(fallen) <= FEW_TO_FALL:
                self._let_few_fall(_held(fallen, entries))
                self._taken.pop(key, None)
        return True

    def _let_few_fall(self, entries: list[TimerTaskEntry]) -> None:
        """Let them fall in the section in which their bucket was taken; under the lock."""
        add = self._wheel.add
        for entry in entries:
            if entry.task is not None and not add(entry):
                self._due[id(entry)] = [entry], NOWHERE

    def _let_go_of_empty(self) -> None:
        for key, entries in dict(self._in_hand).items():
            if not entries and entries is not self._due_at_once:
                self._in_hand.pop(key, None)

    def _let_taken_fall(self) -> None:
        """Let all that was taken from large buckets fall to where it belongs."""
        for key, taken in dict(self._taken).items():
            if taken.turn.locked():
                continue  # another driver is at it
            with taken.turn:
                self._let_fall(_held(taken.fallen, taken.entries))
                self._taken.pop(key, None)

    def _let_fall(self, entries: list[TimerTaskEntry]) -> None:
        add_if_queued = self._wheel.add_if_queued
        for entry in entries:
            if entry.task is None or add_if_queued(entry):
                continue
            with self._lock:
                if not self._wheel.add(entry):
                    self._due[id(entry)] = [entry], NOWHERE

    def _submit_due(self) -> None:
        due = self._due
        if self._one_at_a_time:
            try:
                self._executor.submit(self._run_due)  # one call will do for all
            except Exception as error:
                self._run_here(error, self._run_due)
            return
        while due:
            for key, (fallen, entries) in dict(due).items():
                for entry in _held(fallen, entries):
                    try:
                        self._executor.submit(self._run, entry)
                    except Exception as error:
                        self._run_here(error, self._run, entry)
                due.pop(key, None)

    def _run_here(
        self, error: Exception, function: Callable[..., object], *args: TimerTaskEntry
    ) -> None:
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

    def _run_all_due(self) -> None:
        due = self._due
        run = self._run
        while due:
            for key, (fallen, entries) in dict(due).items():
                for entry in [*fallen, *entries.values()]:
                    run(entry)
                due.pop(key, None)
                if not entries:
                    self._in_hand.pop(key, None)

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
        late_ns = self._now_ns() - entry.expiration_ms * NS_PER_MS
        self.lateness.observe(late_ns if late_ns > 0 else 0)  # a coarse tick may be early
        try:
            # entry.home.pop(number).task.run(), or nothing if a cancel was faster: in one step of
            # the interpreter, so that no interrupt comes between. What is taken out is begun.
            next(map(call, map(_RUN_OF, map(entry.home.pop, (number,), _NOBODY))))
        except (RecursionError, MemoryError) as error:
            # There may be no room for any call, so nothing is called before it is put back.
            not_begun = error.__traceback__ is None or error.__traceback__.tb_next is None
            if not_begun or task._timer_may_run_again:
                entry.home[number] = entry
            if number in entry.home:  # whoever comes next runs it
                self._due[id(entry)] = [entry], NOWHERE
                raise
            self._note_failure(task, error)
        except Exception as error:
            if task._timer_may_run_again:
                entry.home[number] = entry  # first, in case that this is broken off as well
            self._note_failure(task, error)
            if task._timer_may_run_again:
                with suppress(Exception):  # once more only: it may be here to stay
                    next(map(call, map(_RUN_OF, map(entry.home.pop, (number,), _NOBODY))))
        except BaseException:
            if task._timer_may_run_again:
                entry.home[number] = entry
                self._due[id(entry)] = [entry], NOWHERE
            raise
        # Entry and task would otherwise keep each other alive.
        entry.task = None

    def _note_failure(self, task: TimerTask, error: Exception) -> None:
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
            for home in self._homes():
                assert not any(entry.cancelled for entry in home.values())


class _Taken:
    """What a bucket held whose tasks have finer buckets to fall to.

    Args:
        fallen: those that had fallen into it.
        entries: those at home in it.
    """

    __slots__ = ("entries", "fallen", "turn")

    def __init__(self, fallen: list[TimerTaskEntry], entries: Entries) -> None:
        self.fallen = fallen
        self.entries = entries
        self.turn = threading.Lock()
        """Locked while a driver is at it; whatever ends that, ends it unlocked."""


def _held(fallen: list[TimerTaskEntry], entries: Entries) -> list[TimerTaskEntry]:
    return [*fallen, *entries.values()]


class _Nobody:
    """Stands for an entry that was cancelled at the last moment, and for its task."""

    task: _Nobody

    def run(self) -> None:
        """Do nothing."""


_NOBODY: tuple[Any] = (_Nobody(),)
_NOBODY[0].task = _NOBODY[0]
_RUN_OF = attrgetter("task.run")


def _drop_all(entries: Entries) -> int:
    """Empty ``entries``, and return how many this call took out."""
    dropped = 0
    for number in list(entries):
        entry = entries.pop(number, None)
        if entry is not None:
            entry.task = None
            dropped += 1
    return dropped


def _check_at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {value!r} ({type(value).__name__})")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value!r}")
