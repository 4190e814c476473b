"""Debezium's types: each value as Maxwell would write it, and the column's type."""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.cdc import InvalidChangeError
from purgatory.cdc.column_types import ColumnType
from purgatory.cdc.debezium.schema_types import NAMES, Column, columns_of, date_text

_TIME = "io.debezium.time."
_CONNECT = "org.apache.kafka.connect.data."
_DATA = "io.debezium.data."


def column(plain: str, name: str | None = None, **fields: Any) -> Column:
    """The column of a schema of one field."""
    field = {"type": plain, "optional": True, "name": name, "field": "a", **fields}
    return columns_of({"fields": [{"field": "after", "type": "struct", "fields": [field]}]})["a"]


def in_base_64(*numbers: int) -> str:
    return base64.b64encode(bytes(numbers)).decode()


CASES = [
    ("int32", _TIME + "Date", 19782, "2024-02-29", "date"),
    ("int32", _CONNECT + "Date", -1, "1969-12-31", "date"),
    ("int64", _TIME + "Timestamp", 1709210096000, "2024-02-29 12:34:56", "datetime"),
    ("int64", _TIME + "Timestamp", -1, "1969-12-31 23:59:59.999", "datetime"),
    ("int64", _CONNECT + "Timestamp", 1709210096120, "2024-02-29 12:34:56.120", "datetime"),
    ("int64", _TIME + "MicroTimestamp", 1709210096123456, "2024-02-29 12:34:56.123456", "datetime"),
    ("int64", _TIME + "MicroTimestamp", 9223372036825200000, "infinity", "datetime"),
    ("int64", _TIME + "MicroTimestamp", -9223372036832400000, "-infinity", "datetime"),
    ("int64", _TIME + "NanoTimestamp", 123456000, "1970-01-01 00:00:00.123456", "datetime"),
    ("int64", _TIME + "NanoTimestamp", 123456789, "1970-01-01 00:00:00.123456789", "datetime"),
    ("int32", _TIME + "Time", 45296789, "12:34:56.789", "text"),
    ("int32", _CONNECT + "Time", 0, "00:00:00", "text"),
    ("int64", _TIME + "MicroTime", -363723000000, "-101:02:03", "text"),
    ("int64", _TIME + "NanoTime", 45296000001000, "12:34:56.000001", "text"),
    ("string", _TIME + "ZonedTimestamp", "2024-02-29T12:34:56Z", "2024-02-29 12:34:56", "datetime"),
    ("string", _TIME + "ZonedTimestamp", "2024-03-01T01:00:00+02:00", "2024-02-29 23:00:00",
     "datetime"),
    ("string", _TIME + "ZonedTimestamp", "+10000-01-01T00:00:00Z", "10000-01-01 00:00:00",
     "datetime"),
    ("string", _TIME + "ZonedTime", "12:34:56Z", "12:34:56Z", "text"),
    ("string", _TIME + "IsoDate", "2024-02-29Z", "2024-02-29", "date"),
    ("string", _TIME + "IsoTimestamp", "-0043-03-15T01:02:03Z", "0044-03-15 01:02:03 BC",
     "datetime"),
    ("string", _TIME + "IsoTime", "12:34:56Z", "12:34:56", "text"),
    ("string", _TIME + "Interval", "P1Y2M3DT4H5M6S", "P1Y2M3DT4H5M6S", "text"),
    ("int64", _TIME + "MicroDuration", 3_600_000_000, 3_600_000_000, "bigint"),
    ("int32", _TIME + "Year", 2024, 2024, "bigint"),
    ("bytes", _DATA + "Bits", in_base_64(5, 1), 261, "numeric"),
    ("string", _DATA + "Json", '{"a": [1, 2.50]}', {"a": [1, Decimal("2.50")]}, "json"),
    ("string", _DATA + "Enum", "b\\,c", "b,c", "text"),
    ("string", _DATA + "EnumSet", "x,y", "x,y", "text"),
    ("string", _DATA + "Uuid", "a0eebc99", "a0eebc99", "text"),
    ("string", _DATA + "Xml", "<a/>", "<a/>", "text"),
    ("struct", _DATA + "VariableScaleDecimal", {"scale": 2, "value": in_base_64(0xFF)},
     Decimal("-0.01"), "numeric"),
    ("int16", None, -5, -5, "bigint"),
    ("double", None, Decimal("2.25"), Decimal("2.25"), "double"),
    ("boolean", None, True, True, "boolean"),
    ("string", None, "text", "text", "text"),
    ("bytes", None, "AP8Q", "AP8Q", "binary"),
]  # fmt: skip


@pytest.mark.parametrize(("plain", "name", "value", "expected", "kind"), CASES)
def test_value_is_converted_by_its_schema(
    plain: str, name: str | None, value: Any, expected: Any, kind: str
) -> None:
    found = column(plain, name)
    assert (found.convert(value), found.kind) == (expected, ColumnType(kind))


def test_cases_have_each_named_type() -> None:
    assert {name for _, name, *_ in CASES if name} | {_CONNECT + "Decimal"} == set(NAMES)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=10))
def test_decimal_keeps_all_digits(number: Decimal) -> None:
    unscaled = int(number.scaleb(10)) if abs(number) < 10**10 else int(str(number).replace(".", ""))
    length = unscaled.bit_length() // 8 + 1
    value = base64.b64encode(unscaled.to_bytes(length, "big", signed=True)).decode()
    found = column("bytes", _CONNECT + "Decimal", parameters={"scale": "10"})
    assert found.convert(value) == number
    assert found.kind is ColumnType.NUMERIC


def test_elements_of_arrays_are_converted() -> None:
    found = column("array", items={"type": "int32", "name": _TIME + "Date", "optional": True})
    assert found.convert([0, None]) == ["1970-01-01", None]
    assert found.kind is ColumnType.JSON


def test_unsigned_numbers_need_the_type_of_the_source() -> None:
    assert column("int64").convert(-1) == -1
    parameters = {"__debezium.source.column.type": "BIGINT UNSIGNED"}
    assert column("int64", parameters=parameters).convert(-1) == 2**64 - 1


@pytest.mark.parametrize(
    ("plain", "name", "value", "said"),
    [
        ("struct", _DATA + "geometry.Point", {"x": 1.0, "y": 1.0}, "geometry.Point has no type"),
        ("struct", None, {}, "struct has no type"),
        ("int32", _TIME + "Date", "2024-02-29", "not a whole number"),
        ("int32", _TIME + "Date", True, "not a whole number"),
        ("int64", _TIME + "MicroTime", None, "not a whole number"),
        ("bytes", _DATA + "Bits", "?", "not bytes in base 64"),
        ("bytes", _CONNECT + "Decimal", 7, "not bytes in base 64"),
        ("struct", _DATA + "VariableScaleDecimal", 7, "not a number with its scale"),
        ("string", _DATA + "Json", "{", "not JSON"),
        ("string", _DATA + "Json", 7, "not JSON as a text"),
        ("string", _TIME + "ZonedTimestamp", 7, "not a date or a time as a text"),
        ("string", _TIME + "ZonedTimestamp", "9999-99-99T00:00:00+02:00", "not a time"),
    ],
)
def test_value_of_another_type_is_refused(
    plain: str, name: str | None, value: Any, said: str
) -> None:
    with pytest.raises(InvalidChangeError, match=said):
        column(plain, name).convert(value)


@pytest.mark.parametrize("schema", [None, 7, {}, {"fields": 7}, {"fields": [{}]}, {"fields": [7]}])
def test_value_that_is_no_schema_is_refused(schema: object) -> None:
    with pytest.raises(InvalidChangeError, match="no schema"):
        columns_of(schema)


@given(st.dates())
def test_days_are_dates_as_python_has_them(date: Any) -> None:
    assert date_text(date.toordinal() - 719_163) == date.isoformat()


def test_days_reach_any_year() -> None:
    assert date_text(2_932_897) == "10000-01-01"
    assert date_text(-719_163) == "0001-12-31 BC"
    assert date_text(-735_160) == "0044-03-15 BC"
    assert date_text(2**31) == "infinity"


def test_default_tells_that_old_rows_may_not_be_null() -> None:
    assert column("int32").is_known_in_old_rows
    assert not column("int32", default=5).is_known_in_old_rows
    assert not column("int32", optional=False).is_known_in_old_rows
