from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from timer.native.links cimport Link


cdef struct Pending:
    Py_ssize_t count  # how many tasks are on one timer


cdef class NativeTask:
    cdef Link link
    cdef Pending* pending  # of its timer; NULL while it is on none
    cdef int64_t expiration_ms
    cdef bint is_handed_over  # whether an executor of the user's has it
    cdef bint is_whole  # whether __init__ was called
    # What it refers to. No `object`s: those would have to be filled in where a task is made.
    cdef PyObject* delay
    cdef PyObject* entry
    cdef object __weakref__


cdef class NativeCall(NativeTask):
    cdef object function
    cdef tuple args


cdef void put(PyObject** place, object value) noexcept
cdef void enter(NativeTask task, Pending* pending, Link* root) noexcept
cdef void leave(NativeTask task) noexcept
cdef NativeTask task_of(Link* link)
cdef void* address_of(Link* link) noexcept nogil
