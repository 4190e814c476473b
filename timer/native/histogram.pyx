# cython: language_level=3
"""Counts of durations by bucket, as `timer.histogram` explains them.

Ground rules: as in `task`: a duration is counted in one step, under the interpreter's lock.
"""

from libc.stdint cimport INT64_MAX, int64_t
from libc.stdlib cimport calloc, free

from timer.native.whole_numbers cimport within_64_bits

from operator import index as whole_number

from timer.errors import uninitialized_error

cdef int64_t LARGE = INT64_MAX // 4


cdef class NativeHistogram:
    """The base of `timer.Histogram`, in place of `timer.histogram._PureHistogram`."""

    def __init__(self, bounds_ms):
        cdef Py_ssize_t index
        cdef tuple all_ms = tuple(bounds_ms)
        cdef Py_ssize_t size = len(all_ms)
        cdef int64_t* bounds_ns = <int64_t*> calloc(size + 1, sizeof(int64_t))
        cdef int64_t* counts = <int64_t*> calloc(size + 1, sizeof(int64_t))
        try:
            if bounds_ns is NULL or counts is NULL:
                raise MemoryError
            for index in range(size):  # numbers of any kind: they may call anything
                bounds_ns[index] = within_64_bits(int(all_ms[index] * 1_000_000))
        except BaseException:
            free(bounds_ns)
            free(counts)
            raise
        self.bounds_ns, bounds_ns = bounds_ns, self.bounds_ns
        self.counts, counts = counts, self.counts
        self.size = size
        self.sum_ns = 0
        free(bounds_ns)
        free(counts)
        self.large_sum_ns = 0
        self._bounds_ms = all_ms

    def __dealloc__(self):
        free(self.bounds_ns)
        free(self.counts)

    def observe(self, value_ns):
        self.count_any(value_ns if type(value_ns) is int else int(whole_number(value_ns)))

    cdef int count_any(self, value_ns) except -1:
        """Count an int of any size, and of no class that derives from it."""
        cdef int64_t cut_ns = within_64_bits(value_ns)
        if cut_ns != value_ns:
            self.large_sum_ns += value_ns - cut_ns
        self.count(cut_ns)
        return 0

    cdef int count(self, int64_t value_ns) except -1:
        cdef Py_ssize_t index = 0
        if self.counts is NULL:
            raise uninitialized_error(self)
        while index < self.size and value_ns > self.bounds_ns[index]:
            index += 1
        self.counts[index] += 1
        if -LARGE < value_ns < LARGE and -LARGE < self.sum_ns < LARGE:
            self.sum_ns += value_ns
        else:
            self.large_sum_ns += value_ns
        return 0

    def counted(self):
        cdef Py_ssize_t index
        if self.counts is NULL:
            raise uninitialized_error(self)
        # Whole numbers in a list are nothing that the collector looks at: it does not come here.
        counts = []
        for index in range(self.size + 1):
            counts.append(self.counts[index])
        sum_ns = self.large_sum_ns + self.sum_ns
        return tuple(counts), sum_ns
