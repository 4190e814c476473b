# cython: language_level=3, cdivision=True
"""What is on a timer: adding, the moves of the wheel, and running what is due.

Everything that is not done for each task is in Python, in `timer.system_timer`.

Ground rules
------------
* As in `task`: a method runs from its first to its last step under the interpreter's lock, but
  where it calls Python. It does that only where its own lists are in order: at the clock (before
  anything was changed), at ``run`` of a task (which was taken off its list before), at the
  executor, and at ``on_earlier`` (after all).
* Signals are handled by Python code, so an exception of a signal's handler comes out of one of
  these calls, and from nowhere else.
* The loops that may take long return every so often, to let other threads run.
* A timer owns a reference to each task on its lists: the garbage collector is told of them.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport INT64_MAX, int64_t

from timer.native.links cimport Link, append, is_empty, move_all, start_empty, unlink
from timer.native.task cimport NativeCall, NativeTask, Pending, address_of, enter, leave, put, task_of
from timer.native.wheel cimport (
    EXPIRED,
    PLACED_FIRST,
    Bucket,
    Level,
    NativeWheel,
    Placed,
)

from contextlib import suppress
from time import monotonic_ns

from timer.errors import TimerClosedError, checked_delay_ms, not_a_task, not_a_whole_task

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030D0000
    static int64_t timer_monotonic_ns(void) {
        PyTime_t now = 0;
        PyTime_MonotonicRaw(&now);
        return now;
    }
    #else
    #define timer_monotonic_ns() ((int64_t) _PyTime_GetMonotonicClock())
    #endif
    """
    int64_t timer_monotonic_ns() nogil

cdef extern from "Python.h":
    ctypedef int (*visitproc)(PyObject* told, void* arg) noexcept
    ctypedef int (*traverseproc)(PyObject* self, visitproc visit, void* arg) noexcept
    ctypedef int (*inquiry)(PyObject* self) noexcept
    ctypedef struct PyTypeObject
    ctypedef object (*newfunc)(PyTypeObject* type, object args, PyObject* kwargs)
    ctypedef struct PyTypeObject:
        newfunc tp_new
        traverseproc tp_traverse
        inquiry tp_clear
    int64_t PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1

cdef int64_t NS_PER_MS = 1_000_000
cdef int MANY = 256  # tasks that are run, or fall, before others may run


cdef class NativeTimerCore:
    """What `timer.SystemTimer` is made of, in place of `timer.timer_core.PureTimerCore`."""

    def __cinit__(self, *args, **kwargs):
        start_empty(&self.falling)
        start_empty(&self.due)
        start_empty(&self.handed_over)
        # Never None, not even in what was made by __new__ alone: no method looks.
        self.wheel = NativeWheel(1, 2, 0)
        self.lateness = NativeHistogram((1,))
        self.call_type = NativeCall
        self._sleepers = {}

    def __dealloc__(self):
        self.drop_all()

    def _start_wheel(
        self, tick_ms, wheel_size, now_ns, NativeHistogram lateness not None, call_type
    ):
        """Begin empty, on a clock that is read by ``now_ns``."""
        if not issubclass(call_type, NativeCall):
            raise TypeError("a native timer makes native tasks")
        self.drop_all()  # the links of a task must not outlive the wheel
        self._now_ns = now_ns
        self.call_type = call_type
        self.reads_system_clock = now_ns is monotonic_ns
        self.wheel = NativeWheel(tick_ms, wheel_size, self.now_ms(False))
        self.lateness = lateness
        self.failures = 0

    cdef int64_t now_ms(self, bint rounded_up) except -1:
        """Read the clock, in whole milliseconds."""
        cdef int64_t now_ns
        cdef int overflow = 0
        if self.reads_system_clock:
            now_ns = timer_monotonic_ns()
        else:
            read_ns = self._now_ns()
            now_ns = PyLong_AsLongLongAndOverflow(read_ns, &overflow)
            if overflow:
                return min((read_ns + (NS_PER_MS - 1 if rounded_up else 0)) // NS_PER_MS, INT64_MAX)
        if rounded_up and now_ns % NS_PER_MS:
            return now_ns // NS_PER_MS + 1
        return now_ns // NS_PER_MS

    # Adding.

    def add(self, task):
        """Run ``task`` once its ``delay_ms`` are over. O(m), m = number of levels.

        A task that waits already, here or on another timer, is taken off first. A delay of zero or
        less is due at once; one beyond the range of 64 bits is cut to it.

        Raises:
            TypeError: it is no task, its ``__init__`` did not call that of ``TimerTask``, or its
                delay is not an integer.
            TimerClosedError: the timer was closed.
        """
        if not isinstance(task, NativeTask):
            raise not_a_task(task)
        self.add_task(<NativeTask> task)

    def call_later(self, delay_ms, function, *args):
        """Call ``function(*args)`` after ``delay_ms``, and return the task, which can be cancelled.

        Raises:
            TypeError: the delay is not an integer.
            TimerClosedError: the timer was closed.
        """
        # The type is not called: that would look for its __init__, and pack the arguments.
        cdef PyTypeObject* call_type = <PyTypeObject*> self.call_type
        cdef NativeCall task = <NativeCall> call_type.tp_new(call_type, (), NULL)
        put(&task.delay, delay_ms)
        task.is_whole = True
        task.function = function
        task.args = args
        self.add_task(task)
        return task

    cdef int add_task(self, NativeTask task) except -1:
        cdef int overflow = 0
        cdef int64_t delay_ms, now_ms
        if not task.is_whole:
            raise not_a_whole_task(task)
        delay = None if task.delay is NULL else <object> task.delay
        if type(delay) is not int:
            delay = checked_delay_ms(delay)
        delay_ms = PyLong_AsLongLongAndOverflow(delay, &overflow)
        if overflow:
            delay_ms = INT64_MAX if overflow > 0 else 0
        elif delay_ms < 0:
            delay_ms = 0
        # Rounded up: the millisecond that has begun must not count as a whole one.
        now_ms = self.now_ms(True)
        if self._closed:
            raise TimerClosedError(f"timer {self.name!r} was closed: it takes no task")
        if task.pending is not NULL:
            leave(task)
        elif task.entry is not NULL and <object> task.entry is not None:
            task.cancel()
        task.expiration_ms = delay_ms + now_ms if delay_ms <= INT64_MAX - now_ms else INT64_MAX
        return self.place(task)

    cdef int place(self, NativeTask task) except -1:
        cdef Placed placed = self.wheel.place(&task.link, task.expiration_ms, False)
        if placed == EXPIRED:
            enter(task, &self.pending, &self.due)
            self._submit_due()
            return 0
        Py_INCREF(task)
        task.pending = &self.pending
        self.pending.count += 1
        if placed == PLACED_FIRST:
            self.tell_earlier()
        return 0

    cdef int tell_earlier(self) except -1:
        """Tell who drives, if anybody sleeps meanwhile, that a bucket comes before all others."""
        if self._sleepers or self.on_earlier is not None:
            self._wake_driver()
        return 0

    # Looking.

    @property
    def size(self):
        """How many tasks are pending: added, and neither cancelled nor begun.

        Exact. O(1); in pure Python O(buckets in use), as adding and cancelling cost nothing for it.
        """
        return self.pending.count

    @property
    def levels_in_use(self):
        """How many wheels there are: one, and the overflow wheels made so far."""
        return self.wheel.level_count

    @property
    def buckets_occupied(self):
        """How many buckets are in the delay queue. O(1)."""
        return self.wheel.queued

    def next_expiration_ms(self):
        """Return when the next bucket is due, or None: what a driver may sleep until. O(1)."""
        if not is_empty(&self.falling) or (self._own_executor is None and not is_empty(&self.due)):
            return self.now_ms(True)
        return self.wheel.queue[0].expiration_ms if self.wheel.queued else None

    def _levels(self):
        """All levels: their tick, their time, and of each bucket its expiration and its tasks."""
        cdef Py_ssize_t number, index
        cdef Level* level
        cdef Bucket* bucket
        levels = []
        for number in range(self.wheel.level_count):
            level = &self.wheel.levels[number]
            buckets = []
            for index in range(self.wheel.wheel_size):
                bucket = &level.buckets[index]
                tasks = _tasks(&bucket.fallen) + _tasks(&bucket.added)
                buckets.append((bucket.expiration_ms, tasks))
            levels.append((level.tick_ms, level.current_ms, buckets))
        return levels

    def _queued(self):
        """The buckets in the order in which they fall due: expiration, level and index."""
        cdef Py_ssize_t number
        cdef Bucket* bucket
        queued = []
        for number in range(self.wheel.queued):
            bucket = self.wheel.queue[number]
            queued.append((bucket.expiration_ms, bucket.level, bucket.index))
        return sorted(queued)

    # Driving.

    def _has_due(self):
        return not is_empty(&self.due)

    def _poll(self):
        """Take in hand what the first due bucket holds, and move the wheels. O(m)."""
        cdef int64_t begin_ms, now_ms = self.now_ms(False)
        cdef Bucket* bucket = self.wheel.first_due(now_ms)
        cdef Link* taken
        if bucket is NULL:
            return False
        begin_ms = bucket.expiration_ms
        taken = &self.due if bucket.level == 1 else &self.falling
        move_all(&bucket.fallen, taken)
        move_all(&bucket.added, taken)
        self.wheel.take_first()
        self.wheel.advance(begin_ms)
        return True

    def _let_some_fall(self):
        """Let some of what was taken from large buckets fall to where it belongs; False: all."""
        cdef int left = MANY
        cdef Link* link
        cdef Placed placed
        while not is_empty(&self.falling):
            if not left:
                return True
            left -= 1
            link = self.falling.next
            unlink(link)
            try:
                placed = self.wheel.place(link, task_of(link).expiration_ms, True)
            except MemoryError:
                append(&self.falling, link)
                raise
            if placed == EXPIRED:
                append(&self.due, link)
            elif placed == PLACED_FIRST:
                self.tell_earlier()
        return False

    def _run_some_due(self):
        """Run some of what is due; False: it was all."""
        cdef int left = MANY
        while not is_empty(&self.due):
            if not left:
                return True
            left -= 1
            now_ns = self.users_time()
            if not is_empty(&self.due):  # the user's clock may have changed that
                self.run(task_of(self.due.next), now_ns)
        return False

    def _hand_over_due(self):
        """Give all that is due to the user's executor."""
        cdef NativeTask task
        while not is_empty(&self.due):
            task = task_of(self.due.next)
            unlink(&task.link)
            append(&self.handed_over, &task.link)
            task.is_handed_over = True
            try:
                try:
                    self._executor.submit(self._run, task)
                except Exception as error:
                    self._run_here(error, self._run, task)
            except BaseException:
                if task.pending is &self.pending and task.is_handed_over:
                    leave(task)
                    enter(task, &self.pending, &self.due)
                raise

    def _run(self, NativeTask task not None):
        """Run what was handed over, unless it was cancelled since, or begun by another call."""
        now_ns = self.users_time()
        if task.pending is &self.pending and task.is_handed_over:
            self.run(task, now_ns)

    cdef object users_time(self):
        """Read a clock that is written in Python: before a task is chosen, since it may do all."""
        return None if self.reads_system_clock else self._now_ns()

    cdef int run(self, NativeTask task, object now_ns) except -1:
        """Begin a task, in one step with taking it off its list.

        Args:
            now_ns: the time; None says that it is the system clock's.
        """
        cdef int64_t late_ns
        cdef NativeCall call
        if now_ns is None:
            late_ns = timer_monotonic_ns() - task.expiration_ms * NS_PER_MS
            self.lateness.count(late_ns if late_ns > 0 else 0)  # a coarse tick may be early
        else:
            late = now_ns - (<object> task.expiration_ms) * 1_000_000
            self.lateness.observe(late if late > 0 else 0)
        leave(task)
        try:
            if type(task) is self.call_type:
                # Its function is what is begun, with no step of ours before it.
                call = <NativeCall> task
                call.function(*call.args)
            else:
                task.run()
        except (RecursionError, MemoryError) as error:
            traceback = error.__traceback__
            if traceback is None or traceback.tb_next is None or task._timer_may_run_again:
                self.put_back(task)
                raise  # whoever comes next runs it
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
            enter(task, &self.pending, &self.due)

    # Ending.

    def _forget_all(self):
        """Take all tasks off, in a process where no other thread is."""
        self.drop_all()

    def _drop_all(self):
        """Take all tasks off; return how many there were. O(buckets + tasks)."""
        return self.drop_all()

    cdef Py_ssize_t drop_all(self) except -1:
        cdef Py_ssize_t number, index
        cdef Bucket* bucket
        dropped = []
        self.drop_list(&self.falling, dropped)
        self.drop_list(&self.due, dropped)
        self.drop_list(&self.handed_over, dropped)
        for number in range(self.wheel.level_count):
            for index in range(self.wheel.wheel_size):
                bucket = &self.wheel.levels[number].buckets[index]
                self.drop_list(&bucket.fallen, dropped)
                self.drop_list(&bucket.added, dropped)
        while self.wheel.queued:
            self.wheel.take_first()
        return len(dropped)  # their references go last

    cdef object drop_list(self, Link* root, list dropped):
        cdef NativeTask task
        while not is_empty(root):
            task = task_of(root.next)
            dropped.append(task)
            leave(task)

    def _check(self):
        """Assert all invariants. O(buckets + tasks)."""
        cdef Py_ssize_t number, index, count = 0
        cdef Level* level
        cdef Bucket* bucket
        cdef NativeTask task
        self.wheel._check()
        for number in range(self.wheel.level_count):
            level = &self.wheel.levels[number]
            for index in range(self.wheel.wheel_size):
                bucket = &level.buckets[index]
                for task in _tasks(&bucket.fallen) + _tasks(&bucket.added):
                    count += 1
                    assert task.pending is &self.pending
                    late_ms = task.expiration_ms - bucket.expiration_ms
                    assert 0 <= late_ms < level.tick_ms, "a task lies outside its bucket"
        for task in _tasks(&self.falling) + _tasks(&self.due) + _tasks(&self.handed_over):
            count += 1
            assert task.pending is &self.pending
        assert count == self.pending.count, "what is pending is on one list"


cdef list _tasks(Link* root):
    cdef Link* link = root.next
    tasks = []
    while link is not root:
        tasks.append(task_of(link))
        link = link.next
    return tasks


# The garbage collector has to know of the tasks, which no field of the timer names.

cdef traverseproc _traverse_fields


cdef int _traverse_list(Link* root, visitproc visit, void* arg) noexcept:
    cdef Link* link = root.next
    cdef int told
    while link is not root:
        told = visit(<PyObject*> address_of(link), arg)
        if told:
            return told
        link = link.next
    return 0


cdef int _traverse(PyObject* self, visitproc visit, void* arg) noexcept:
    cdef NativeTimerCore core = <NativeTimerCore> self
    cdef NativeWheel wheel = core.wheel
    cdef Py_ssize_t number, index
    cdef Bucket* bucket
    cdef int told = _traverse_fields(self, visit, arg)
    told = told or _traverse_list(&core.falling, visit, arg)
    told = told or _traverse_list(&core.due, visit, arg)
    told = told or _traverse_list(&core.handed_over, visit, arg)
    for number in range(wheel.level_count):
        for index in range(wheel.wheel_size):
            bucket = &wheel.levels[number].buckets[index]
            told = told or _traverse_list(&bucket.fallen, visit, arg)
            told = told or _traverse_list(&bucket.added, visit, arg)
    return told


cdef int _clear(PyObject* self) noexcept:
    """Let go of all that may be part of a cycle; what the methods need stays."""
    cdef NativeTimerCore core = <NativeTimerCore> self
    core.drop_all()
    core._sleepers = core.on_earlier = core._now_ns = None
    return 0


cdef PyTypeObject* _type = <PyTypeObject*> NativeTimerCore
_traverse_fields = _type.tp_traverse
_type.tp_traverse, _type.tp_clear = _traverse, _clear
