from libc.stdint cimport int64_t

from purgatory.core.native.watchers cimport NativeLock, NativeWatched, NativeWatcherList
from timer.native.links cimport Link


cdef enum CountedAs:
    IMMEDIATE
    COMPLETED
    EXPIRED
    CANCELLED
    FAILED
    REJECTED


cdef class NativeCounters:
    cdef public int64_t rejected
    cdef public int64_t checks
    cdef public int64_t missed_wakeups
    cdef public dict callback_errors
    cdef readonly dict by_outcome
    cdef list histograms  # the same, by number


cdef class NativeState:
    cdef public object name
    cdef public object timer
    cdef public bint expires
    cdef public object on_completed
    cdef public object max_pending
    cdef public object now_ns
    cdef public object reaper
    cdef public bint is_closed
    cdef public object closing_error
    cdef public object gave_up_error
    cdef readonly NativeWatcherList watchers
    cdef readonly NativeLock lock
    cdef public object still_checked
    cdef public list interrupted
    cdef public set admitted
    cdef public dict values
    cdef readonly NativeCounters counters
    cdef public int64_t reaper_look_ns
    cdef public int64_t full_log_ns
    cdef readonly Py_ssize_t pending_count
    cdef object native_timer  # None: another one, whose methods are called by their names
    cdef bint reads_system_clock
    cdef Link pending
    cdef Link completing

    cdef int64_t now(self) except? -1
    cdef int add_pending(self, NativeWatched operation) except -1
    cdef object detach(self, NativeWatched operation)
    cdef int count_done(self, NativeWatched operation, CountedAs counted_as, int64_t wait_ns) except -1
    cdef void forget(self, NativeWatched operation) noexcept
    cdef int drop_all(self) except -1
