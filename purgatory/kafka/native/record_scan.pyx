# cython: language_level=3
"""The scan of a batch's records, as `purgatory.kafka.log.record_scan` explains it."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

# The same numbers as in `purgatory.kafka.log.record_scan`.
cdef enum:
    NONE = 0
    CUT = 1
    LONG_NUMBER = 2
    WRONG_LENGTH = 3
    NO_HEADERS = 4
    NO_HEADER_KEY = 5
    MORE_BYTES = 6


cdef struct Cursor:
    const uint8_t *at
    const uint8_t *end


cdef inline int read_number(Cursor *cursor, int most_bytes, uint64_t *found) noexcept nogil:
    """Read a number of at most so many bytes, before the zigzag is undone."""
    cdef int shift = 0
    cdef uint8_t byte
    found[0] = 0
    while shift < 7 * most_bytes:
        if cursor.at >= cursor.end:
            return CUT
        byte = cursor.at[0]
        cursor.at += 1
        found[0] |= <uint64_t> (byte & 0x7F) << shift
        if not byte & 0x80:
            return NONE
        shift += 7
    return LONG_NUMBER


cdef inline int read_int(Cursor *cursor, int32_t *found) noexcept nogil:
    cdef uint64_t number
    cdef int fault = read_number(cursor, 5, &number)
    cdef uint32_t low = <uint32_t> number
    found[0] = <int32_t> ((low >> 1) ^ (~(low & 1) + 1))
    return fault


cdef inline int read_long(Cursor *cursor, int64_t *found) noexcept nogil:
    cdef uint64_t number
    cdef int fault = read_number(cursor, 10, &number)
    found[0] = <int64_t> ((number >> 1) ^ (~(number & 1) + 1))
    return fault


cdef inline int skip_bytes(Cursor *cursor, int32_t *length) noexcept nogil:
    """Skip a field; a negative length is that of null."""
    cdef int fault = read_int(cursor, length)
    if fault:
        return fault
    if length[0] > 0:
        if length[0] > cursor.end - cursor.at:
            return CUT
        cursor.at += length[0]
    return NONE


cdef inline int skip_headers(Cursor *cursor) noexcept nogil:
    cdef int32_t count, length
    cdef int fault = read_int(cursor, &count)
    if fault:
        return fault
    if count < 0 or count > cursor.end - cursor.at:
        return NO_HEADERS
    while count > 0:
        count -= 1
        fault = skip_bytes(cursor, &length)
        if fault:
            return fault
        if length < 0:
            return NO_HEADER_KEY
        fault = skip_bytes(cursor, &length)
        if fault:
            return fault
    return NONE


cdef int scan_all(
    Cursor *cursor, int64_t count, bint checks_lengths, int64_t *latest, bint *is_sequential
) noexcept nogil:
    cdef const uint8_t *begin
    cdef int64_t number, delta
    cdef int32_t length, offset, field
    cdef int fault
    for number in range(count):
        fault = read_int(cursor, &length)
        if fault:
            return fault
        begin = cursor.at
        if cursor.at >= cursor.end:
            return CUT
        cursor.at += 1  # the attributes
        fault = read_long(cursor, &delta)
        if fault:
            return fault
        if number == 0 or delta > latest[0]:
            latest[0] = delta
        fault = read_int(cursor, &offset)
        if fault:
            return fault
        if offset != number:
            is_sequential[0] = False
        fault = skip_bytes(cursor, &field)  # the key
        if fault:
            return fault
        fault = skip_bytes(cursor, &field)  # the value
        if fault:
            return fault
        fault = skip_headers(cursor)
        if fault:
            return fault
        if checks_lengths and cursor.at - begin != length:
            return WRONG_LENGTH
    return MORE_BYTES if cursor.at != cursor.end else NONE


def scan(bytes data not None, Py_ssize_t begin, int64_t count, bint checks_lengths):
    """As `purgatory.kafka.log.record_scan._scan`."""
    cdef Cursor cursor
    cdef int64_t latest = 0
    cdef bint is_sequential = True
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    if begin < 0 or begin > size:
        raise ValueError("the records begin outside of the batch")
    cursor.at = <const uint8_t *> PyBytes_AS_STRING(data) + begin
    cursor.end = <const uint8_t *> PyBytes_AS_STRING(data) + size
    cdef int fault = scan_all(&cursor, count, checks_lengths, &latest, &is_sequential)
    return fault, latest, is_sequential
