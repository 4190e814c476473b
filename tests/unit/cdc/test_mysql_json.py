"""MySQL's binary JSON: values laid out by hand as the format has them, cut off, and garbage."""

from __future__ import annotations

import struct
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymysqlreplication.constants import FIELD_TYPE

from purgatory.cdc.capture.mysql_json import decode_json

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _INT16, _LITERAL, _STRING, _OPAQUE = (
    *(b"\x00", b"\x01", b"\x02", b"\x05", b"\x04", b"\x0c", b"\x0f"),
)


def _packed(months: int, day: int, hours: int, minutes: int, seconds: int, micros: int) -> bytes:
    fields = months << 22 | day << 17 | hours << 12 | minutes << 6 | seconds
    return struct.pack("<q", fields << 24 | micros)


def _opaque(kind: int, content: bytes) -> bytes:
    return _OPAQUE + bytes([kind, len(content)]) + content


OBJECT = _SMALL_OBJECT + struct.pack("<HHHHBh", 1, 12, 11, 1, 5, 1) + b"a"
"""{"a": 1}: the number and the size, the name's offset and length, the value in its place."""
VALUES: dict[str, tuple[bytes, Any]] = {
    "nothing": (b"", None),
    "null": (_LITERAL + b"\x00", None),
    "true": (_LITERAL + b"\x01", True),
    "integer": (_INT16 + struct.pack("<h", -7), -7),
    "double": (b"\x0b" + struct.pack("<d", 0.1), 0.1),
    "string": (_STRING + b"\x03" + "né".encode(), "né"),
    "long string": (_STRING + b"\xc8\x01" + b"x" * 200, "x" * 200),
    "object": (OBJECT, {"a": 1}),
    "large object": (
        _LARGE_OBJECT + struct.pack("<IIIHBi", 1, 20, 19, 1, 7, -70_000) + b"a",
        {"a": -70_000},
    ),
    "array of an object": (
        _SMALL_ARRAY + struct.pack("<HHBH", 1, 19, 0, 7) + OBJECT[1:],
        [{"a": 1}],
    ),
    "date": (_opaque(FIELD_TYPE.DATE, _packed(2024 * 13 + 2, 29, 0, 0, 0, 0)), "2024-02-29"),
    "datetime": (
        _opaque(FIELD_TYPE.DATETIME, _packed(2024 * 13 + 2, 29, 12, 34, 56, 500_000)),
        "2024-02-29 12:34:56.500000",
    ),
    "negative time": (
        _opaque(FIELD_TYPE.TIME, struct.pack("<q", -((838 << 12 | 59 << 6 | 58) << 24))),
        "-838:59:58.000000",
    ),
    "decimal": (
        _opaque(FIELD_TYPE.NEWDECIMAL, bytes([5, 2, 0x80, 123, 45])),
        Decimal("123.45"),
    ),
    "negative decimal": (
        _opaque(FIELD_TYPE.NEWDECIMAL, bytes([5, 2, 0x7F, 0xFF ^ 123, 0xFF ^ 45])),
        Decimal("-123.45"),
    ),
    "bytes": (_opaque(252, b"\x00\xff"), "base64:type252:AP8="),
}


@pytest.mark.parametrize(("data", "value"), VALUES.values(), ids=VALUES)
def test_value_is_as_the_server_prints_it(data: bytes, value: Any) -> None:
    assert decode_json(data) == value


@pytest.mark.parametrize(
    "data", [data for data, _ in VALUES.values() if data], ids=list(VALUES)[1:]
)
def test_value_that_is_cut_off_is_refused(data: bytes) -> None:
    for end in range(1, len(data)):
        with pytest.raises(ValueError, match=r"."):
            decode_json(data[:end])


def test_container_of_itself_and_endless_names_are_refused() -> None:
    itself = _SMALL_ARRAY + struct.pack("<HHBH", 1, 7, 2, 0)
    endless = _LARGE_OBJECT + struct.pack("<II", 2**32 - 1, 2**32 - 1)
    for data in (itself, endless):
        with pytest.raises(ValueError, match=r"cut off|bytes at"):
            decode_json(data)


@given(st.binary(max_size=60))
def test_garbage_is_a_value_or_a_value_error(data: bytes) -> None:
    with suppress(ValueError):
        decode_json(data)
