"""The scan of a batch's records: whether each is whole, without making an object of any.

A leader scans all records of a produce, so native code does it, if it was built. Both accept what
Kafka's `DefaultRecord` accepts: numbers of five bytes (a time's delta: of ten), and lengths below
0 for null, but not that of a header's key.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

from purgatory.core.backend import NATIVE

NO_FAULT, CUT, LONG_NUMBER, WRONG_LENGTH, NO_HEADERS, NO_HEADER_KEY, MORE_BYTES = range(7)
_FAULTS = (
    "",
    "a record ends within a number or a field",
    "a number in a record is too long",
    "a record's fields don't end where the record does",
    "a record has a wrong number of headers",
    "a record's header has no key",
    "there are bytes after the last record",
)
_INT_BYTES, _LONG_BYTES = 5, 10


def scan_records(
    data: bytes, begin: int, count: int, checks_lengths: bool = True
) -> tuple[int, bool]:
    """Check records. O(records), or O(headers).

    Args:
        data: the records, uncompressed.
        begin: the position of the first one.
        count: how many there must be.
        checks_lengths: whether the length of each record has to be that of its fields.

    Returns:
        The largest delta of a record's time from the batch's first one, in milliseconds; and
        whether the records' offsets are numbered from 0 on.

    Raises:
        ValueError: the records are none.
    """
    fault, latest_delta_ms, is_sequential = scan(data, begin, count, checks_lengths)
    if fault:
        raise ValueError(_FAULTS[fault])
    return latest_delta_ms, is_sequential


def _scan(data: bytes, begin: int, count: int, checks_lengths: bool) -> tuple[int, int, bool]:
    """Return a fault's number, the largest delta of a time, and whether offsets are numbered."""
    latest_delta_ms, is_sequential, at = 0, True, begin
    try:
        for number in range(count):
            length, begins = _number(data, at)
            if begins >= len(data):
                raise _FaultError(CUT)
            delta_ms, at = _number(data, begins + 1, _LONG_BYTES)  # behind the attributes, a byte
            if not number or delta_ms > latest_delta_ms:
                latest_delta_ms = delta_ms
            offset, at = _number(data, at)
            if offset != number:
                is_sequential = False
            for _ in ("key", "value"):
                field, at = _number(data, at)
                if field > 0:
                    at += field
            headers, at = _number(data, at)  # it can't be read behind a field that is cut
            if headers:
                at = _after_headers(data, headers, at)
            if checks_lengths and at - begins != length:
                raise _FaultError(WRONG_LENGTH)
    except IndexError:
        return CUT, latest_delta_ms, is_sequential
    except _FaultError as error:
        return error.number, latest_delta_ms, is_sequential
    return NO_FAULT if at == len(data) else MORE_BYTES, latest_delta_ms, is_sequential


class _FaultError(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _after_headers(data: bytes, headers: int, at: int) -> int:
    if not 0 <= headers <= len(data) - at:
        raise _FaultError(NO_HEADERS)
    for _ in range(headers):
        length, at = _number(data, at)
        if length < 0:
            raise _FaultError(NO_HEADER_KEY)
        length, at = _number(data, at + length)
        if length > 0:
            at += length
    if at > len(data):
        raise _FaultError(CUT)
    return at


def _number(data: bytes, at: int, most_bytes: int = _INT_BYTES) -> tuple[int, int]:
    """Return a zigzag number, and where it ends.

    Raises:
        IndexError: it ends behind the data.
    """
    byte = data[at]
    if byte < 0x80:  # as most are
        return (byte >> 1) ^ -(byte & 1), at + 1
    found, shift = byte & 0x7F, 7
    for next_at in range(at + 1, at + most_bytes):
        byte = data[next_at]
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            found &= 0xFFFFFFFF if most_bytes == _INT_BYTES else 0xFFFFFFFFFFFFFFFF
            return (found >> 1) ^ -(found & 1), next_at + 1
        shift += 7
    raise _FaultError(LONG_NUMBER)


scan = _scan
if NATIVE:
    with suppress(ImportError):  # the others may have been built before this part was there
        scan = import_module("purgatory.kafka.native.record_scan").scan
