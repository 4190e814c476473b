from libc.stdint cimport int64_t


cdef class NativeHistogram:
    cdef readonly tuple _bounds_ms
    cdef int64_t* bounds_ns
    cdef int64_t* counts
    cdef Py_ssize_t size
    cdef int64_t sum_ns
    cdef object large_sum_ns

    cdef int count(self, int64_t value_ns) except -1
    cdef int count_any(self, value_ns) except -1
