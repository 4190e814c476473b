# cython: language_level=3
"""Counts of durations by bucket, as `timer.histogram` explains them.

Ground rules: as in `task`: what is counted is counted in one step, under the interpreter's lock.
"""

from libc.stdint cimport INT64_MAX, int64_t
from libc.stdlib cimport calloc, free

from timer.native.whole_numbers cimport within_64_bits

cdef int64_t LARGE = INT64_MAX // 4


cdef class NativeHistogram:
    """What `timer.Histogram` is made of, in place of `timer.histogram.PureHistogram`."""

    def __init__(self, bounds_ms):
        cdef Py_ssize_t index
        free(self.bounds_ns)
        free(self.counts)
        self.bounds_ns = self.counts = NULL
        self._bounds_ms = tuple(bounds_ms)
        self.large_sum_ns = 0
        self.size = len(self._bounds_ms)
        self.bounds_ns = <int64_t*> calloc(self.size, sizeof(int64_t))
        self.counts = <int64_t*> calloc(self.size + 1, sizeof(int64_t))
        if self.bounds_ns is NULL or self.counts is NULL:
            raise MemoryError
        for index in range(self.size):
            self.bounds_ns[index] = within_64_bits(int(self._bounds_ms[index] * 1_000_000))

    def __dealloc__(self):
        free(self.bounds_ns)
        free(self.counts)

    def observe(self, value_ns):
        cdef int64_t cut_ns = within_64_bits(value_ns)
        if cut_ns != value_ns:
            self.large_sum_ns += value_ns - cut_ns
        self.count(cut_ns)

    cdef int count(self, int64_t value_ns) except -1:
        cdef Py_ssize_t index = 0
        if self.counts is NULL:
            return 0  # made by __new__ alone
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
            return (), 0
        return (
            tuple([self.counts[index] for index in range(self.size + 1)]),
            self.large_sum_ns + self.sum_ns,
        )
