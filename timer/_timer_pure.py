"""What is on a timer, in pure Python: adding, the moves of the wheel, and running what is due.

Ground rules
------------
* One lock guards the moves of the wheel, its buckets and the delay queue. It is held for one
  insertion, one swap of a bucket's contents or the moves of a few entries: never while user code
  runs, and never while a large bucket cascades. It is reentrant, because a finalizer that the
  garbage collector runs in the middle may use the timer. ``cancel`` goes without it, and so does
  nearly every ``add`` (see ``timer_task`` and ``TimingWheel.add_if_queued``).
* Any thread may add, cancel, look and close. Any thread may drive the timer by ``advance_clock``;
  one usually does.
* What the bucket that is due holds goes from the wheel to ``_polled``, and one entry at a time to
  finer buckets or to ``_due``; that of a finest bucket goes to ``_due`` at once. Until its task
  begins, an entry stays in the dict to which it was added, which ``_active_buckets`` keeps: there
  it is counted, and can be cancelled.
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
from datetime import timedelta
from itertools import count
from operator import attrgetter, call
from typing import Any

from timer.clock import NS_PER_MS
from timer.delay_queue import DelayQueue
from timer.durations import checked_delay_ms
from timer.errors import (
    TimerClosedError,
    clock_below_0,
    not_a_task,
    not_a_whole_task,
)
from timer.executor import SingleThreadExecutor, TaskExecutor
from timer.histogram import Histogram
from timer.levels import LevelState, QueuedState
from timer.timer_task import NOWHERE, CallLater, Entries, TimerTask, TimerTaskEntry
from timer.timing_wheel import TimingWheel
from timer.wake import Wake

MAX_EXPIRATION_MS = 2**63 - 1
"""Where deadlines saturate, some 292 million years ahead: the largest signed 64-bit integer."""

MAX_CASCADE_UNDER_LOCK = 8
"""How many entries may cascade within one critical section."""

MAX_ACTIVE_BUCKETS = 8
"""How many dicts are active before those without entries are dropped."""


# Named as the public class that is made of it: type checkers name this one in their messages.
class SystemTimer:
    """What ``timer.SystemTimer`` is made of."""

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
        self._lock = threading.RLock()
        self._queue = DelayQueue(on_earlier=self._wake_driver)
        self._wheel = TimingWheel(tick_ms, wheel_size, now_ns() // NS_PER_MS, self._queue)
        self._immediate: Entries = {}
        self._numbers = count()
        self._active_buckets = {id(self._immediate): self._immediate}
        self._polled: dict[int, _PolledBucket] = {}
        self._due: dict[int, tuple[list[TimerTaskEntry], Entries]] = {}
        self.lateness = lateness
        self.failures = 0

    # Not on the path of each task: implemented by `timer.system_timer`.

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
                raise clock_below_0(now_ns)
            # Rounded up: the millisecond that has begun must not count as a whole one. But where
            # nothing is to be waited for, it has begun.
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
                # It came too late into a bucket that was just emptied, and may have been found.
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
        """How many tasks are pending: added, and neither cancelled nor begun.

        Exact. O(1); in pure Python O(buckets in use), as adding and cancelling cost nothing for it.
        """
        with self._lock:
            return sum(map(len, self._buckets()))

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
            if self._has_backlog():
                return -(-self._time_ns() // NS_PER_MS)
            return self._queue.first_expiration_ms

    def _time_ns(self) -> int:
        now_ns = self._now_ns()
        if now_ns < 0:
            raise clock_below_0(now_ns)
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
        """Let what was taken from large buckets fall to where it belongs; False: it was all."""
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
        """Give all that is due to the user's executor."""
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
        """Run what is due; False: it was all."""
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
            # the interpreter, so that no interrupt comes between. What is taken out is begun.
            next(map(call, map(_GET_RUN, map(entry.bucket.pop, (number,), _CANCELLED))))
        except (RecursionError, MemoryError) as error:
            # There may be no room for any call, so nothing is called before it is put back.
            is_not_started = error.__traceback__ is None or error.__traceback__.tb_next is None
            if is_not_started or task._timer_may_run_again:
                entry.bucket[number] = entry
            if number in entry.bucket:  # whoever comes next runs it
                self._due[id(entry)] = [entry], NOWHERE
                raise
            self._record_failure(task, error)
        except Exception as error:
            if task._timer_may_run_again:
                entry.bucket[number] = entry  # first, in case that this is broken off as well
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


def _check_task(task: object) -> None:
    """Raise what is wrong with the task itself, if anything is."""
    if not isinstance(task, TimerTask):
        raise not_a_task(task) from None
    if not hasattr(task, "_timer_entry"):
        raise not_a_whole_task(task) from None


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
        self.lock = threading.Lock()
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
