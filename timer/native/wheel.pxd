from libc.stdint cimport int64_t

from timer.native.heap cimport Heap, Ranked
from timer.native.links cimport Link


cdef struct Bucket:
    Ranked ranked  # by when it begins, and then by its level and its place there; the first field
    Link cascaded  # those that fell from a coarser level; they come first
    Link added


cdef struct Level:
    int64_t tick_ms
    int64_t current_ms
    int64_t last_ms  # the last millisecond that it covers
    Bucket* buckets


cdef enum Placed:
    FAILED = -1
    EXPIRED
    PLACED
    PLACED_FIRST  # before all others


cdef class NativeWheel:
    cdef Level* levels
    cdef Py_ssize_t level_count
    cdef Py_ssize_t wheel_size
    cdef Heap queue

    cdef Bucket* bucket_at(self, Py_ssize_t number) noexcept
    cdef Placed place(self, Link* link, int64_t expiration_ms, bint cascades) except FAILED
    cdef Bucket* first_due(self, int64_t now_ms) noexcept
    cdef void advance(self, int64_t time_ms) noexcept
    cdef int add_level(self, int64_t tick_ms, int64_t time_ms) except -1
    cdef void move(self, Level* level, int64_t time_ms) noexcept
