"""Whole numbers of any size, as those that the machine counts with."""

from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t


cdef inline int64_t within_64_bits(object number) except? -1:
    """Return a whole number, cut to 64 bits."""
    cdef int overflow = 0
    cdef int64_t cut = PyLong_AsLongLongAndOverflow(number, &overflow)
    if overflow:
        return INT64_MAX if overflow > 0 else INT64_MIN
    return cut
