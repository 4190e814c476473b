# cython: language_level=3
"""Counts of durations by bucket, as `timer.histogram` explains them.

Ground rules: as in `task`: what is counted is counted in one step, under the interpreter's lock.
"""

from libc.stdint cimport INT64_MAX, int64_t
from libc.stdlib cimport calloc, free

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
            self.bounds_ns[index] = min(int(self._bounds_ms[index] * 1_000_000), INT64_MAX)

    def __dealloc__(self):
        free(self.bounds_ns)
        free(self.counts)

    def observe(self, value_ns):
        """Count a duration of ``value_ns`` nanoseconds. O(log buckets)."""
        if -LARGE < value_ns < LARGE:
            self.count(value_ns)
        else:
            self.large_sum_ns += value_ns - (LARGE if value_ns > 0 else -LARGE)
            self.count(LARGE if value_ns > 0 else -LARGE)

    cdef void count(self, int64_t value_ns) noexcept:
        """Count one whose size is at most a quarter of what 64 bits hold."""
        cdef Py_ssize_t index = 0
        if self.counts is NULL:
            return  # made by __new__ alone
        while index < self.size and value_ns > self.bounds_ns[index]:
            index += 1
        self.counts[index] += 1
        self.sum_ns += value_ns
        if not -LARGE < self.sum_ns < LARGE:
            self.large_sum_ns += self.sum_ns
            self.sum_ns = 0

    def _counted(self):
        """The counts, and the sum in nanoseconds."""
        cdef Py_ssize_t index
        if self.counts is NULL:
            return (), 0
        return (
            tuple([self.counts[index] for index in range(self.size + 1)]),
            self.large_sum_ns + self.sum_ns,
        )
