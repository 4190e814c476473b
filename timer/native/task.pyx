# cython: language_level=3
"""A task that carries its place on a timer in itself.

Ground rules
------------
* All is done under the interpreter's lock, and nothing here calls Python between two steps: no
  other thread, signal or finalizer comes in between. What drops a reference, which may call a
  finalizer, does so last.
* A task that is pending is on one list of one timer, which owns a reference to it. Whoever takes it
  off that list decides its fate: ``cancel``, or the timer, as it begins the task, or ``close``.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF

from timer.native.links cimport append, unlink

from functools import partial

cdef extern from "Python.h":
    ctypedef struct PyTypeObject
    ctypedef object (*newfunc)(PyTypeObject* type, object args, PyObject* kwargs)
    ctypedef struct PyTypeObject:
        newfunc tp_new
    PyTypeObject PyBaseObject_Type


@cython.no_gc
cdef class NativeTask:
    """What `timer.TimerTask` is made of, in place of `timer.timer_task.PureTask`."""

    def __init__(self, delay_ms):
        put(&self.delay, delay_ms)
        self.is_whole = True

    def __dealloc__(self):
        Py_XDECREF(self.delay)
        Py_XDECREF(self.entry)

    @property
    def delay_ms(self):
        """Milliseconds from ``add`` to ``run``."""
        return None if self.delay is NULL else <object> self.delay

    @delay_ms.setter
    def delay_ms(self, delay_ms):
        put(&self.delay, delay_ms)

    def cancel(self):
        """Take the task off its timer. O(1), from any thread.

        Returns:
            True: it was pending, and will never run. False: it ran, is running, was cancelled
            before, or is on no timer.
        """
        if self.pending is NULL:
            return self._timer_entry is not None and self._timer_entry.remove()
        leave(self)
        return True

    @property
    def _timer_entry(self):
        """What a wheel in pure Python knows it by. Setting it does what ``__init__`` does."""
        return None if self.entry is NULL else <object> self.entry

    @_timer_entry.setter
    def _timer_entry(self, entry):
        self.is_whole = True
        put(&self.entry, entry)

    @property
    def _timer_waits(self):
        """Whether it is on a timer, and was not begun."""
        return self.pending is not NULL


cdef class NativeCall(NativeTask):
    """What `timer.timer_task.CallLater` is made of, in place of `timer.timer_task.PureCall`.

    Unlike other tasks it is known to the garbage collector: what it calls may own it.
    """

    def __init__(self, delay_ms, function, tuple args not None):
        put(&self.delay, delay_ms)
        self.is_whole = True
        self.function = function
        self.args = args

    @property
    def run(self):
        """Do the work. A timer that is native calls the function without asking for this."""
        return partial(self.function, *self.args) if self.args else self.function

    @run.setter
    def run(self, function):
        self.function = function
        self.args = ()


cdef object _new(PyTypeObject* type, object args, PyObject* kwargs):
    """Make a task as ``object`` does, which leaves attributes of classes that derive cheap.

    In Python 3.11 and 3.12 nothing else makes room for them in the task itself. What Cython would do
    here only allocates the task, and leaves each with a whole dict of its own.
    """
    return PyBaseObject_Type.tp_new(type, (), NULL)


(<PyTypeObject*> NativeTask).tp_new = _new


cdef Py_ssize_t _LINK_OFFSET = 0


cdef void _find_offset(NativeTask task) noexcept:
    global _LINK_OFFSET
    _LINK_OFFSET = <char*> &task.link - <char*> <PyObject*> task


_find_offset(NativeTask(0))


cdef void put(PyObject** place, object value) noexcept:
    """Let a field of a task refer to something else."""
    cdef PyObject* before = place[0]
    Py_INCREF(value)
    place[0] = <PyObject*> value
    Py_XDECREF(before)


cdef void enter(NativeTask task, Pending* pending, Link* root) noexcept:
    """Put a task that is on no list on one."""
    Py_INCREF(task)
    task.pending = pending
    task.is_handed_over = False
    pending.count += 1
    append(root, &task.link)


cdef void leave(NativeTask task) noexcept:
    """Take a task off its list."""
    unlink(&task.link)
    task.pending.count -= 1
    task.pending = NULL
    Py_DECREF(task)


cdef void* address_of(Link* link) noexcept nogil:
    return <char*> link - _LINK_OFFSET


cdef NativeTask task_of(Link* link):
    return <NativeTask> <PyObject*> address_of(link)
