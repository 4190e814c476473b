# cython: language_level=3, cdivision=True
"""The tasks on a timer: adding, the moves of the wheel, and running due tasks.

Everything that is not done for each task is in Python, in `timer.system_timer`.

Ground rules
------------
* As in `task`: a method runs from its first to its last step under the interpreter's lock, but
  where it calls Python, which it does only where its own lists are in order: at the clock (before
  anything was changed), at ``run`` of a task (which was taken off its list before), at the
  executor, and at ``on_earlier`` (after all).
* To make any object that the collector keeps track of, a list too, is to call Python: on 3.11 the
  collector comes right there, and runs finalizers. Hence lists are searched without making any
  object: the results go into a list that was made before, as they are or as whole numbers, of which
  the collector knows nothing. No pointer is read before such a call and used after
  it, but into a wheel that a variable owns: ``__init__`` may put another one in its place.
* Signals are handled by Python code, so an exception of a signal's handler comes out of one of
  these calls, and from nowhere else.
* The loops that may take long return every so often, to let other threads run.
* A timer owns a reference to each task on its lists: the garbage collector is told of them.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport INT64_MAX, int64_t

from timer.native.collector cimport PyTypeObject, traverseproc, visitproc
from timer.native.heap cimport NOWHERE, remove
from timer.native.histogram cimport NativeHistogram
from timer.native.links cimport Link, append, is_empty, move_all, start_empty, unlink
from timer.native.system_time cimport system_time_ns
from timer.native.task cimport (
    NativeCall,
    NativeTask,
    Pending,
    enter,
    leave,
    object_of,
    set_delay,
    task_of,
)
from timer.native.wheel cimport EXPIRED, PLACED_FIRST, Bucket, Level, NativeWheel, Placed
from timer.native.whole_numbers cimport within_64_bits

import operator
from contextlib import suppress
from operator import attrgetter

from timer.durations import checked_delay_ms
from timer.errors import (
    TimerClosedError,
    negative_time_error,
    uninitialized_error,
    wrong_type_error,
    uninitialized_task_error,
)
from timer.machine_time import time
from timer.snapshot import IDLE_MS, check_levels

cdef object monotonic_ns = time.monotonic_ns
cdef int64_t IDLE = IDLE_MS
cdef int MANY = 256  # tasks that are run, or fall, before others may run


cdef enum:
    NS_PER_MS = 1_000_000  # a constant, by which no machine divides


cdef enum:  # the lists of tasks that a timer has in hand, off the wheel
    CASCADING  # from large buckets, to fall to finer ones
    DUE
    SUBMITTED  # given to an executor of the user's, which has yet to begin them
    HANDS


cdef class NativeTimer:
    """The base of `timer.SystemTimer`, in place of `_PureTimer`."""

    cdef Pending pending
    cdef NativeWheel wheel
    cdef Link in_hand[HANDS]
    cdef public object _now_ns
    cdef bint reads_system_clock
    cdef bint is_started  # whether __init__ was called
    cdef public bint _closed
    cdef public dict _sleepers
    cdef object call_type  # of the tasks that call_later makes; it derives from NativeCall
    cdef public object on_earlier
    cdef readonly NativeHistogram lateness
    cdef readonly Py_ssize_t failures

    def __cinit__(self, *args, **kwargs):
        cdef Py_ssize_t hand
        for hand in range(HANDS):
            start_empty(&self.in_hand[hand])
        # Never None, not even in what was made by __new__ alone: no method looks.
        self.wheel = NativeWheel(1, 2, 0)
        self.lateness = NativeHistogram((1,))
        self.call_type = NativeCall
        self._sleepers = {}

    def __dealloc__(self):
        self.take_all()

    def _start_wheel(
        self, tick_ms, wheel_size, now_ns, NativeHistogram lateness not None, call_type
    ):
        """Begin empty, on a clock that is read by ``now_ns``."""
        if not issubclass(call_type, NativeCall):
            raise TypeError("a native timer makes native tasks")
        cdef NativeWheel wheel
        cdef list dropped
        self._now_ns = now_ns
        self.call_type = call_type
        self.lateness = lateness
        self.reads_system_clock = now_ns is monotonic_ns
        wheel = NativeWheel(tick_ms, wheel_size, self.now_ms(False))
        # In one step: the links of a task must not outlive the wheel.
        dropped = self.take_all()
        self.wheel = wheel
        self.failures = 0
        self.is_started = True

    cdef int64_t now_ms(self, bint rounded_up) except -1:
        """Read the clock, in whole milliseconds."""
        cdef int64_t now_ns
        if not self.reads_system_clock:
            # Python's whole numbers: nanoseconds may be beyond 64 bits.
            read_ns = self.users_time() + (NS_PER_MS - 1 if rounded_up else 0)
            return within_64_bits(read_ns // 1_000_000)
        now_ns = system_time_ns()
        return now_ns // NS_PER_MS + (rounded_up and now_ns % NS_PER_MS > 0)

    cdef object users_time(self):
        """Read a clock that is written in Python: before anything is chosen, since it may do all.

        Returns:
            An int of no class that derives from it: to count with it calls nothing.
        """
        if not self.is_started and self._now_ns is None:
            raise uninitialized_error(self)
        read = self._now_ns  # owned meanwhile: the clock may have another one put in its place
        now_ns = read()
        if type(now_ns) is not int:
            now_ns = int(operator.index(now_ns))
        if now_ns < 0:
            raise negative_time_error(now_ns)
        return now_ns

    # Adding.

    def add(self, task):
        if not isinstance(task, NativeTask):
            raise wrong_type_error(task)
        add_task(self, <NativeTask> task)

    def call_later(self, delay_ms, function, *args):
        # The type is not called: that would look for its __init__, and pack the arguments.
        call_type = self.call_type
        cdef NativeCall task = <NativeCall> (<PyTypeObject*> call_type).tp_new(
            <PyTypeObject*> call_type, (), NULL
        )
        set_delay(task, delay_ms if type(delay_ms) is int else checked_delay_ms(delay_ms))
        task.is_whole = True
        task.function = function
        task.args = args
        add_task(self, task)
        return task

    cdef int tell_earlier(self) except -1:
        """Wake the driver, if it sleeps: a bucket comes before all others."""
        if self._sleepers or self.on_earlier is not None:
            self._wake_driver()
        return 0

    # Looking.

    @property
    def size(self):
        """The number of pending tasks: added, and neither cancelled nor begun.

        Exact. O(1); in pure Python O(buckets in use), as adding and cancelling cost nothing for it.
        """
        if not self.is_started:
            raise uninitialized_error(self)
        return self.pending.count

    @property
    def levels_in_use(self):
        """The number of wheels: one, and the overflow wheels made so far."""
        return self.wheel.level_count

    @property
    def buckets_occupied(self):
        """The number of buckets in the delay queue. O(1)."""
        return self.wheel.queue.size

    def next_expiration_ms(self):
        """Return when the next bucket is due, or None: what a driver may sleep until. O(1)."""
        if not self.is_started:
            raise uninitialized_error(self)
        if not is_empty(&self.in_hand[CASCADING]) or (self._own_executor is None and not is_empty(&self.in_hand[DUE])):
            return self.now_ms(True)
        return self.wheel.queue.ranked[0].number if self.wheel.queue.size else None

    def _levels(self):
        """All levels: their tick, their time, and of each bucket its expiration and its tasks."""
        cdef Py_ssize_t number, index
        cdef Level* level
        cdef Bucket* bucket
        cdef NativeWheel wheel
        cdef list seen = []
        wheel = self.wheel
        # All of one moment.
        for number in range(wheel.level_count):
            level = &wheel.levels[number]
            seen.append(level.tick_ms)
            seen.append(level.current_ms)
            for index in range(wheel.wheel_size):
                bucket = &level.buckets[index]
                seen.append(IDLE if bucket.ranked.place == NOWHERE else bucket.ranked.number)
                add_tasks(&bucket.cascaded, seen)
                add_tasks(&bucket.added, seen)
                seen.append(None)
        levels = []
        found = iter(seen)
        for tick_ms in found:
            current_ms = next(found)
            buckets = []
            for _ in range(wheel.wheel_size):
                expiration_ms = next(found)
                tasks = []
                while (task := next(found)) is not None:
                    tasks.append(task)
                buckets.append((expiration_ms, tasks))
            levels.append((tick_ms, current_ms, buckets))
        return levels

    def _queued(self):
        """The buckets in the order in which they fall due: expiration, level and index."""
        return sorted(self._heap())

    def _heap(self):
        cdef Py_ssize_t place
        cdef NativeWheel wheel
        cdef list seen = []
        wheel = self.wheel
        for place in range(wheel.queue.size):  # all of one moment
            seen.append(wheel.queue.ranked[place].number)
            seen.append(wheel.queue.ranked[place].order)
        return [
            (seen[place], seen[place + 1] // wheel.wheel_size + 1, seen[place + 1] % wheel.wheel_size)
            for place in range(0, len(seen), 2)
        ]

    # Driving.

    def _has_due(self):
        return not is_empty(&self.in_hand[DUE])

    def _poll(self):
        """Take the tasks of the first due bucket in hand, and move the wheels. O(m)."""
        cdef int64_t now_ms = self.now_ms(False)
        cdef Bucket* bucket = self.wheel.first_due(now_ms)
        cdef Link* taken
        if bucket is NULL:
            return False
        taken = &self.in_hand[DUE if bucket.ranked.order < self.wheel.wheel_size else CASCADING]
        move_all(&bucket.cascaded, taken)
        move_all(&bucket.added, taken)
        remove(&self.wheel.queue, &bucket.ranked)
        self.wheel.advance(bucket.ranked.number)
        return True

    def _cascade_some(self):
        """Let some tasks of large buckets fall to finer ones; False: that was all."""
        cdef int left = MANY
        cdef Link* link
        cdef Placed placed
        while not is_empty(&self.in_hand[CASCADING]):
            if not left:
                return True
            left -= 1
            link = self.in_hand[CASCADING].next
            unlink(link)
            try:
                placed = self.wheel.place(link, task_of(link)._timer_expiration_ms, True)
            except MemoryError:
                append(&self.in_hand[CASCADING], link)
                raise
            if placed == EXPIRED:
                append(&self.in_hand[DUE], link)
            elif placed == PLACED_FIRST:
                self.tell_earlier()
        return False

    def _run_some_due(self):
        """Run some due tasks; False: that was all."""
        cdef int left = MANY
        while not is_empty(&self.in_hand[DUE]):
            if not left:
                return True
            left -= 1
            now_ns = None if self.reads_system_clock else self.users_time()
            if not is_empty(&self.in_hand[DUE]):  # the user's clock may have changed that
                self.run(task_of(self.in_hand[DUE].next), now_ns)
        return False

    def _submit_each_due(self):
        """Give all that is due to the user's executor."""
        cdef NativeTask task
        while not is_empty(&self.in_hand[DUE]):
            task = task_of(self.in_hand[DUE].next)
            unlink(&task.link)
            append(&self.in_hand[SUBMITTED], &task.link)
            task.is_handed_over = True
            try:
                try:
                    self._executor.submit(self._run, task)
                except Exception as error:
                    self._run_here(error, self._run, task)
            except BaseException:
                if task.pending is &self.pending and task.is_handed_over:
                    leave(task)
                    enter(task, &self.pending, &self.in_hand[DUE])
                raise

    def _run(self, NativeTask task not None):
        """Run a task that was handed over, unless it was cancelled or begun since."""
        now_ns = None if self.reads_system_clock else self.users_time()
        if task.pending is &self.pending and task.is_handed_over:
            self.run(task, now_ns)

    cdef int run(self, NativeTask task, object now_ns) except -1:
        """Begin a task, in one step with taking it off its list.

        Args:
            now_ns: the time, an int; None says that it is the system clock's.
        """
        cdef int64_t late_ns
        if now_ns is None:
            late_ns = system_time_ns() - task._timer_expiration_ms * NS_PER_MS
            self.lateness.count(late_ns if late_ns > 0 else 0)  # a coarse tick may be early
        else:
            late = now_ns - (<object> task._timer_expiration_ms) * 1_000_000
            self.lateness.count_any(late if late > 0 else 0)
        leave(task)  # nothing was called since it was chosen
        try:
            if type(task) is self.call_type:
                # Its function is what is begun, with no step of ours before it.
                function = (<NativeCall> task).function  # owned while they are in use
                args = (<NativeCall> task).args
                function(*args)
            else:
                task.run()
        except (RecursionError, MemoryError) as error:
            traceback = error.__traceback__
            if traceback is None or traceback.tb_next is None or task._timer_may_run_again:
                self.put_back(task)
                raise  # the next driver runs it
            self.note_failure(task, error)
        except Exception as error:
            if not task._timer_may_run_again:
                self.note_failure(task, error)
            else:
                self.put_back(task)  # first, in case that this is broken off as well
                self.note_failure(task, error)
                if task.pending is &self.pending:
                    leave(task)
                    with suppress(Exception):  # once more only: it may be here to stay
                        task.run()
        except BaseException:
            if task._timer_may_run_again:
                self.put_back(task)
            raise
        return 0

    cdef int note_failure(self, NativeTask task, Exception error) except -1:
        self.failures += 1
        self._log_failure(task, error)
        return 0

    cdef void put_back(self, NativeTask task) noexcept:
        if task.pending is NULL and not self._closed:
            enter(task, &self.pending, &self.in_hand[DUE])

    # Ending.

    def _forget_all(self):
        """Take all tasks off, in a process where no other thread is."""
        self.take_all()

    def _drop_all(self):
        """Take all tasks off; return how many there were. O(buckets + tasks)."""
        return len(self.take_all())  # their references go last

    cdef Py_ssize_t list_count(self) noexcept:
        return HANDS + 2 * self.wheel.level_count * self.wheel.wheel_size

    cdef Link* list_at(self, Py_ssize_t number) noexcept:
        """Return one of all lists of tasks by its number."""
        cdef Bucket* bucket
        if number < HANDS:
            return &self.in_hand[number]
        number -= HANDS
        bucket = self.wheel.bucket_at(number // 2)
        return &bucket.added if number % 2 else &bucket.cascaded

    cdef list take_all(self):
        cdef NativeTask task
        cdef Py_ssize_t number
        cdef Link* root
        cdef list dropped = []
        for number in range(self.list_count()):
            root = self.list_at(number)
            while not is_empty(root):
                task = task_of(root.next)
                dropped.append(task)
                leave(task)
        while self.wheel.queue.size:
            remove(&self.wheel.queue, self.wheel.queue.ranked[0])
        return dropped

    def _check(self):
        """Assert all invariants. O(buckets + tasks)."""
        cdef Py_ssize_t number
        cdef NativeTask task
        cdef list on_lists = []
        heap = self._heap()
        assert all([heap[place] > heap[(place - 1) // 2] for place in range(1, len(heap))])
        due_at = attrgetter("_timer_expiration_ms")
        check_levels(self._levels(), self._queued(), self.wheel.wheel_size, due_at)
        for number in range(self.list_count()):
            add_tasks(self.list_at(number), on_lists)
        assert len(on_lists) == self.pending.count, "what is pending is on one list"
        for task in on_lists:
            assert task.pending is &self.pending


cdef int add_task(object timer, NativeTask task) except -1:
    """Put a task on a native timer."""
    cdef NativeTimer core = <NativeTimer> timer
    cdef int64_t delay_ms, now_ms
    cdef Placed placed
    if not task.is_whole:
        raise uninitialized_task_error(task)
    if task.has_delay_ms:
        delay_ms = task.delay.ms
    else:
        delay_ms = within_64_bits(checked_delay_ms(task.delay_ms))
    if delay_ms < 0:
        delay_ms = 0
    # Rounded up: the millisecond that has begun must not count as a whole one. But without a delay,
    # it has begun.
    now_ms = core.now_ms(delay_ms > 0)
    if not core.is_started:
        raise uninitialized_error(core)
    if not core._closed and task.pending is NULL and task.entry is not NULL:
        if <object> task.entry is not None:
            task.cancel()  # of a wheel in pure Python: this may call anything
    if core._closed:
        raise TimerClosedError(f"timer {core.name!r} was closed: it takes no task")
    # From here on nothing calls Python until it is placed.
    if task.pending is not NULL:
        leave(task)
    task._timer_expiration_ms = delay_ms + now_ms if delay_ms <= INT64_MAX - now_ms else INT64_MAX
    placed = core.wheel.place(&task.link, task._timer_expiration_ms, False)
    if placed == EXPIRED:
        enter(task, &core.pending, &core.in_hand[DUE])
        core._submit_due()
        return 0
    Py_INCREF(task)
    task.pending = &core.pending
    core.pending.count += 1
    if placed == PLACED_FIRST:
        core.tell_earlier()
    return 0


cdef int add_tasks(Link* root, list tasks) except -1:
    """Add what is on a list to ``tasks``; nothing here calls Python."""
    cdef Link* link = root.next
    while link is not root:
        tasks.append(task_of(link))
        link = link.next
    return 0


# The garbage collector has to know of the tasks, which no field of the timer names.

cdef traverseproc _traverse_fields


cdef int _traverse(PyObject* self, visitproc visit, void* arg) noexcept:
    cdef NativeTimer core = <NativeTimer> self
    cdef Py_ssize_t number
    cdef Link* root
    cdef Link* link
    cdef int told = _traverse_fields(self, visit, arg)
    for number in range(core.list_count()):
        root = core.list_at(number)
        link = root.next
        while link is not root and not told:
            told = visit(object_of(link), arg)
            link = link.next
    return told


cdef int _clear(PyObject* self) noexcept:
    """Let go of all that may be part of a cycle; the methods' own needs stay."""
    cdef NativeTimer core = <NativeTimer> self
    core.take_all()
    core._sleepers = core.on_earlier = core._now_ns = None
    return 0


cdef PyTypeObject* _type = <PyTypeObject*> NativeTimer
_traverse_fields = _type.tp_traverse
_type.tp_traverse, _type.tp_clear = _traverse, _clear
