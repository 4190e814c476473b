"""The scan of records: what it accepts, and that native code and pure Python find the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.core.backend import NATIVE
from purgatory.kafka.log import record_scan
from purgatory.kafka.log.record_scan import _scan, scan, scan_records


def _varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    written = bytearray()
    while zigzag > 0x7F:
        written.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*written, zigzag])


def _field(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def record(
    number: int = 0,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    headers: tuple[tuple[bytes | None, bytes | None], ...] = (),
    delta_ms: int = 0,
    behind: bytes = b"",
) -> bytes:
    """Return a record, with bytes behind its fields."""
    pairs = b"".join(_field(name) + _field(said) for name, said in headers)
    fields = _field(key) + _field(value) + _varint(len(headers)) + pairs
    return _field(b"\0" + _varint(delta_ms) + _varint(number) + fields + behind)


@pytest.mark.parametrize(
    ("data", "count", "fault"),
    [
        (b"", 1, "ends within"),
        (b"\x02", 1, "ends within"),
        (record(), 2, "ends within"),
        (record()[:-1], 1, "ends within"),
        (record() + record(1), 1, "bytes after the last"),
        (record(behind=b"zz"), 1, "where the record does"),
        (b"\x40" + record()[1:], 1, "where the record does"),
        (record(headers=((None, b"v"),)), 1, "no key"),
        (record()[:-1] + b"\x01", 1, "number of headers"),
        (record()[:-1] + b"\x02", 1, "number of headers"),
        (b"\xff" * 5 + b"\0", 1, "too long"),
        (b"\x0c\0" + b"\xff" * 10 + b"\0", 1, "too long"),
    ],
)
def test_malformed_records_are_refused(data: bytes, count: int, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        scan_records(data, 0, count)


def test_nulls_empty_fields_and_headers_are_accepted() -> None:
    data = b"".join(
        [
            record(0, None, None),
            record(1, b"", b"x" * 300, ((b"", None), (b"h" * 70, b"")), delta_ms=-5),
            record(2, delta_ms=2**40),
        ]
    )
    assert scan_records(b"head" + data, 4, 3) == (2**40, True)


def test_largest_time_and_the_numbering_are_found() -> None:
    assert scan_records(record(0, delta_ms=-9) + record(1, delta_ms=-7), 0, 2) == (-7, True)
    assert scan_records(record(0) + record(2), 0, 2) == (0, False)
    assert scan_records(record(-1), 0, 1) == (0, False)


def test_lengths_of_records_may_go_unchecked() -> None:
    data = b"\x40" + record()[1:]
    assert scan_records(data, 0, 1, checks_lengths=False) == (0, True)


@pytest.mark.skipif(not NATIVE, reason="the native parts are not in use")
def test_native_scan_is_in_use() -> None:
    assert scan is not _scan


_records = st.lists(
    st.builds(
        record,
        st.integers(-2, 3),
        st.none() | st.binary(max_size=90),
        st.none() | st.binary(max_size=200),
        st.lists(
            st.tuples(st.none() | st.binary(max_size=3), st.none() | st.binary(max_size=3)),
            max_size=2,
        ).map(tuple),
        st.integers(-(2**63), 2**63 - 1),
        st.just(b"") | st.binary(max_size=2),
    ),
    max_size=4,
).map(b"".join)


@given(
    _records | st.binary(max_size=40),
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=2),
    st.integers(0, 3),
    st.integers(0, 5),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_native_and_pure_scans_find_the_same(
    data: bytes, changes: list[tuple[int, int]], begin: int, count: int, checks: bool
) -> None:
    changed = bytearray(data)
    for at, byte in changes:
        if at < len(changed):
            changed[at] = byte
    found = bytes(changed)
    begin = min(begin, len(found))
    assert record_scan.scan(found, begin, count, checks) == _scan(found, begin, count, checks)
