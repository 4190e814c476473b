from libc.stdint cimport int64_t

from timer.native.links cimport Link


cdef struct Bucket:
    Link fallen  # those that fell from a coarser level; they come first
    Link added
    int64_t expiration_ms  # when it begins; IDLE_MS while it is not in the queue
    Py_ssize_t level
    Py_ssize_t index


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
    cdef readonly Py_ssize_t wheel_size
    cdef Bucket** queue
    cdef Py_ssize_t queued
    cdef Py_ssize_t queue_room

    cdef Placed place(self, Link* link, int64_t expiration_ms, bint falls) except FAILED
    cdef Bucket* first_due(self, int64_t now_ms) noexcept
    cdef void take_first(self) noexcept
    cdef void advance(self, int64_t time_ms) noexcept
    cdef int add_level(self, int64_t tick_ms, int64_t time_ms) except -1
    cdef int offer(self, Bucket* bucket, int64_t expiration_ms) except -1
