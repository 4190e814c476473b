from libc.stdint cimport int64_t

from purgatory.core.native.books cimport CountedAs, NativeBooked, NativeBooks
from purgatory.core.native.chain cimport NativeChain


cdef class NativeOperation(NativeBooked):
    cdef public object _op_lock
    cdef public object _op_error
    cdef public object _op_verdict
    cdef public list _op_listeners
    cdef public object _op_retry
    cdef readonly NativeBooks _op_books
    cdef readonly int64_t _op_start_ns
    cdef readonly int64_t _op_wait_ns
    cdef unsigned long server  # the numbers of threads; 0: nobody
    cdef unsigned long settler
    cdef unsigned long settled_by
    cdef unsigned long submitter
    cdef public short _op_stage
    cdef public bint _op_check_due
    cdef public bint _op_expiry_due
    cdef bint is_refused

    cdef bint settle(self, object outcome, object error, bint going_on) except -1
    cdef int leave_timer(self) except -1
    cdef int leave_all(self) except -1
    cdef int finish(self, NativeChain chain) except -1
    cdef int finish_in_chain(self) except -1
    cdef CountedAs counted_as(self) noexcept
    cdef int call_back(self) except -1
    cdef bint is_noted(self) noexcept
    cdef bint serve(self) except -1
    cdef bint serve_noted(self) except -1
    cdef bint check_else(self, object f) except -1
    cdef bint check_twice(self, object f) except -1
    cdef bint call(self, object f) except -1
    cdef int break_off(self) except -1
    cdef int start_timeout(self, NativeBooks books) except -1


cdef bint submit(object submitted, NativeBooks books, tuple keys, dict thresholds) except -1
cdef int check_each(list operations) except -1
