"""Whole numbers of any size, as those that the machine counts with."""

from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.number cimport PyNumber_And, PyNumber_Rshift
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t


cdef inline int64_t within_64_bits(object number) except? -1:
    """Return a whole number, cut to 64 bits."""
    cdef int overflow = 0
    cdef int64_t cut = PyLong_AsLongLongAndOverflow(number, &overflow)
    if overflow:
        return INT64_MAX if overflow > 0 else INT64_MIN
    return cut


cdef inline int in_two_words(object number, int64_t* high, int64_t* low) except -1:
    """Put down a whole number as two, so that pairs of them are ordered as the numbers are.

    ``high`` is 0 for what has 64 bits. It is cut, and so says too little, for what has 127 or more.
    """
    cdef int overflow = 0
    low[0] = PyLong_AsLongLongAndOverflow(number, &overflow)
    high[0] = 0
    if overflow:
        high[0] = within_64_bits(PyNumber_Rshift(number, 63))
        low[0] = within_64_bits(PyNumber_And(number, INT64_MAX))
    return 0


cdef inline bint is_cut(int64_t high) noexcept:
    """Whether a number with this ``high`` may have been cut."""
    return high == INT64_MAX or high == INT64_MIN
