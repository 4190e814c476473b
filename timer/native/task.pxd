from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from timer.native.links cimport Link


cdef struct Pending:
    Py_ssize_t count  # how many tasks are on one timer


cdef union Delay:
    int64_t ms
    PyObject* other  # as it was given; NULL: none was


cdef class NativeTask:
    cdef Link link  # the first field: `object_of` relies on that
    cdef Pending* pending  # of its timer; NULL while it is on none
    cdef readonly int64_t _timer_expiration_ms
    # Its references. No `object`s: those would have to be filled in where a task is made.
    cdef Delay delay
    cdef PyObject* entry
    cdef char has_delay_ms  # whether its delay is an int of 64 bits, as nearly all are
    cdef char is_handed_over  # whether an executor of the user's has it
    cdef char is_whole  # whether __init__ was called
    cdef char is_from_submitter  # of operations, as the next: here is room that would be padding
    cdef short stage
    cdef object __weakref__


cdef class NativeCall(NativeTask):
    cdef object function
    cdef tuple args

    cdef int begin_with(self, function, tuple args) except -1


cdef int set_delay(NativeTask task, object delay_ms) except -1
cdef void enter(NativeTask task, Pending* pending, Link* root) noexcept
cdef void leave(NativeTask task) noexcept


cdef inline PyObject* object_of(Link* link) noexcept nogil:
    return <PyObject*> (<char*> link - sizeof(PyObject))


cdef inline NativeTask task_of(Link* link):
    return <NativeTask> object_of(link)
