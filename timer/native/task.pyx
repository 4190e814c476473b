# cython: language_level=3
"""A task that carries its place on a timer in itself.

Ground rules
------------
* All is done under the interpreter's lock, and nothing here calls Python between two steps: no
  other thread, signal or finalizer comes in between. References, which may have finalizers, are
  dropped last. An object that is called, or calls anything, is owned by a variable meanwhile.
* A task that is pending is on one list of one timer, which owns a reference to it. The call that
  takes it off that list decides its fate: ``cancel``, the timer, as it begins the task, or ``close``.
* Public methods have the docstrings of those in pure Python (`timer.backend`).
"""

cimport cython
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.stdint cimport int64_t

from timer.native.collector cimport PyBaseObject_Type, PyTypeObject
from timer.native.links cimport append, unlink

from functools import partial

from timer.durations import checked_delay_ms
from timer.errors import uninitialized_error


@cython.no_gc
cdef class NativeTask:
    """The base of `timer.TimerTask`, in place of `timer.timer_task._PureTask`."""

    def __init__(self, delay_ms):
        set_delay(self, delay_ms if type(delay_ms) is int else checked_delay_ms(delay_ms))
        self.is_whole = True

    def __dealloc__(self):
        if not self.has_delay_ms:
            Py_XDECREF(self.delay.other)
        Py_XDECREF(self.entry)

    @property
    def delay_ms(self):
        """Milliseconds from ``add`` to ``run``."""
        if self.has_delay_ms:
            return self.delay.ms
        if self.delay.other is NULL:
            raise uninitialized_error(self)
        return <object> self.delay.other

    @delay_ms.setter
    def delay_ms(self, delay_ms):
        set_delay(self, delay_ms)

    def cancel(self):
        if self.pending is not NULL:
            leave(self)
            return True
        if not self.is_whole:
            raise uninitialized_error(self)
        entry = self._timer_entry
        return entry is not None and entry.remove()

    @property
    def _timer_entry(self):
        """Its entry on a wheel in pure Python. Setting it does what ``__init__`` does."""
        return None if self.entry is NULL else <object> self.entry

    @_timer_entry.setter
    def _timer_entry(self, entry):
        cdef PyObject* before = self.entry
        self.is_whole = True
        Py_INCREF(entry)
        self.entry = <PyObject*> entry
        Py_XDECREF(before)

    @property
    def _timer_waits(self):
        """Whether it is on a timer, and was not begun."""
        return self.pending is not NULL


cdef class NativeCall(NativeTask):
    """The base of `timer.timer_task.CallLater`, in place of `timer.timer_task._PureCall`.

    Unlike other tasks it is known to the garbage collector: its function may own it.
    """

    def __init__(self, delay_ms, function, tuple args not None):
        NativeTask.__init__(self, delay_ms)
        self.begin_with(function, args)

    @property
    def run(self):
        """Do the work. A timer that is native calls the function without asking for this."""
        return partial(self.function, *self.args) if self.args else self.function

    @run.setter
    def run(self, function):
        self.begin_with(function, ())

    cdef int begin_with(self, function, tuple args) except -1:
        before = self.function, self.args  # dropped last: that may run a finalizer
        self.function = function
        self.args = args
        return 0


cdef object _new(PyTypeObject* type, object args, PyObject* kwargs):
    """Make a task as ``object`` does, which leaves attributes of classes that derive cheap.

    In Python 3.11 and 3.12 nothing else makes room for them in the task itself. Cython's own code
    here would only allocate the task, and leave each with a whole dict of its own.
    """
    return PyBaseObject_Type.tp_new(type, (), NULL)


(<PyTypeObject*> NativeTask).tp_new = _new

cdef NativeTask _task = NativeTask(0)
assert object_of(&_task.link) is <PyObject*> _task


cdef int set_delay(NativeTask task, object delay_ms) except -1:
    """Note a delay of any kind; one that is set later, ``add`` checks."""
    cdef PyObject* before = NULL if task.has_delay_ms else task.delay.other
    cdef int64_t ms = 0
    cdef int is_other = True
    if type(delay_ms) is int:
        ms = PyLong_AsLongLongAndOverflow(delay_ms, &is_other)
    task.has_delay_ms = not is_other
    if is_other:
        Py_INCREF(delay_ms)
        task.delay.other = <PyObject*> delay_ms
    else:
        task.delay.ms = ms
    Py_XDECREF(before)
    return 0


cdef void enter(NativeTask task, Pending* pending, Link* root) noexcept:
    """Put a task that is on no list on one."""
    Py_INCREF(task)
    task.pending = pending
    pending.count += 1
    append(root, &task.link)


cdef void leave(NativeTask task) noexcept:
    """Take a task off its list."""
    unlink(&task.link)
    task.pending.count -= 1
    task.pending = NULL
    task.is_handed_over = False  # an executor that has it still must not begin it, if it comes again
    Py_DECREF(task)
