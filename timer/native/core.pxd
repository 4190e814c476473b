from libc.stdint cimport int64_t

from timer.native.histogram cimport NativeHistogram
from timer.native.links cimport Link
from timer.native.task cimport NativeTask, Pending
from timer.native.wheel cimport NativeWheel


cdef class NativeTimerCore:
    cdef Pending pending
    cdef NativeWheel wheel
    cdef Link falling  # what large buckets held, and is to fall to finer ones
    cdef Link due
    cdef Link handed_over  # what an executor of the user's has, and has yet to begin
    cdef public object _now_ns
    cdef bint reads_system_clock
    cdef public bint _closed
    cdef public dict _sleepers
    cdef object call_type  # of the tasks that call_later makes; it derives from NativeCall
    cdef public object on_earlier
    cdef readonly NativeHistogram lateness
    cdef readonly Py_ssize_t failures

    cdef int64_t now_ms(self, bint rounded_up) except -1
    cdef int add_task(self, NativeTask task) except -1
    cdef int place(self, NativeTask task) except -1
    cdef int tell_earlier(self) except -1
    cdef object users_time(self)
    cdef int run(self, NativeTask task, object now_ns) except -1
    cdef int note_failure(self, NativeTask task, Exception error) except -1
    cdef void put_back(self, NativeTask task) noexcept
    cdef Py_ssize_t drop_all(self) except -1
    cdef object drop_list(self, Link* root, list dropped)
