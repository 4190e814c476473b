"""Columns in Debezium's schemas: their types, and their values as Maxwell would write them.

    {"type": "int32", "optional": true, "name": "io.debezium.time.Date", "field": "made"}

Without schemas, values are what they look like, and types are unknown.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from purgatory.cdc.change import decode_json
from purgatory.cdc.column_types import ColumnType
from purgatory.cdc.quarantine import MALFORMED, WRONG_TYPE, InvalidChangeError

Converter = Callable[[Any], Any]

_PLACEHOLDER = "__debezium_unavailable_value"
_PLACEHOLDERS: tuple[object, ...] = (
    _PLACEHOLDER,
    base64.b64encode(_PLACEHOLDER.encode()).decode(),
    [_PLACEHOLDER],
    list(_PLACEHOLDER.encode()),
    {_PLACEHOLDER: _PLACEHOLDER},
)
"""Debezium's values of a column that PostgreSQL stores apart (TOAST), unchanged by a change."""

_US = 1_000_000
_INFINITY, _MINUS_INFINITY = 9_223_372_036_825_200_000, -9_223_372_036_832_400_000
"""The values that PostgreSQL's driver has for infinity."""
_MOST_DAYS = 2**31
_ISO = re.compile(
    r"([+-]?\d{4,})-(\d\d-\d\d)(?:T(\d\d:\d\d(?::\d\d(?:\.\d+)?)?))?(Z|[+-]\d\d:\d\d(?::\d\d)?)?"
)


class Column(NamedTuple):
    """A column of a row, as the schema has it.

    Args:
        kind: None if it is only known from values.
        convert: a value, except null.
        is_known_in_old_rows: whether it is null in rows written before it was added.
    """

    name: str
    kind: ColumnType | None
    convert: Converter
    is_known_in_old_rows: bool


def is_unavailable(value: object) -> bool:
    """Whether Debezium does not know a value, as the change left it as it is."""
    return value in _PLACEHOLDERS


def columns_of(schema: object) -> dict[str, Column]:
    """The columns of a row, by the schema of the envelope or of the key.

    Raises:
        InvalidChangeError: it is no schema.
    """
    try:
        fields: Any = schema["fields"]  # type: ignore[index]
        for field in fields:
            if field.get("field") == "after":
                fields = field["fields"]
                break
        columns = [_column(field) for field in fields]
    except (TypeError, KeyError, AttributeError, ValueError):
        raise InvalidChangeError(MALFORMED, f"no schema: {str(schema)[:60]!r}") from None
    return {column.name: column for column in columns}


def _column(schema: Mapping[str, Any]) -> Column:
    kind, convert = _type(schema)
    is_null = schema.get("optional") is True and schema.get("default") is None
    return Column(str(schema["field"]), kind, convert, is_null)


def _type(schema: Mapping[str, Any]) -> tuple[ColumnType | None, Converter]:
    name, plain = str(schema.get("name") or ""), str(schema["type"])
    parameters = schema.get("parameters") or {}
    if name == "org.apache.kafka.connect.data.Decimal":
        scale = int(parameters.get("scale", 0))
        return ColumnType.NUMERIC, lambda value: decimal_of(value, scale)
    if name in _NAMED:
        return _NAMED[name]
    source_type = str(parameters.get("__debezium.source.column.type", "")).upper()
    if plain == "int64" and source_type.startswith("BIGINT UNSIGNED"):
        return ColumnType.NUMERIC, lambda value: value % 2**64
    if plain == "array":
        _, convert = _type(schema["items"])
        return ColumnType.JSON, lambda values: _list(values, convert)
    if plain in _PLAIN:
        return _PLAIN[plain], _same
    return None, lambda value: _refuse(name or plain)


def _same(value: Any) -> Any:
    return value


def _refuse(name: str) -> Any:
    raise InvalidChangeError(
        WRONG_TYPE,
        f"{name} has no type in the target: leave the column out (column.exclude.list)",
    )


def _wrong(value: object, expected: str) -> InvalidChangeError:
    return InvalidChangeError(WRONG_TYPE, f"{str(value)[:60]!r} is not {expected}")


def _list(values: object, convert: Converter) -> list[Any]:
    if not isinstance(values, list):
        raise _wrong(values, "a list")
    return [None if value is None else convert(value) for value in values]


def _integer(value: object) -> int:
    if type(value) is not int:
        raise _wrong(value, "a whole number")
    return value


def _bytes(value: object) -> bytes:
    try:
        return base64.b64decode(value, validate=True)  # type: ignore[arg-type]
    except (binascii.Error, ValueError, TypeError):
        raise _wrong(value, "bytes in base 64") from None


def decimal_of(value: object, scale: int) -> Decimal:
    """A number of bytes in base 64, with ``scale`` digits behind the point."""
    number = int.from_bytes(_bytes(value), "big", signed=True)
    digits = str(abs(number))
    # A sum or a product would round to 28 digits.
    return Decimal((int(number < 0), tuple(map(int, digits)), -scale))


def _variable_decimal(value: object) -> Decimal:
    if not isinstance(value, dict):
        raise _wrong(value, "a number with its scale")
    return decimal_of(value.get("value"), _integer(value.get("scale")))


def _bits(value: object) -> int:
    return int.from_bytes(_bytes(value), "little")


def _enum(value: object) -> Any:
    # Debezium's lists of allowed values escape commas, and so do some values.
    return value.replace("\\,", ",") if isinstance(value, str) else value


def _json(value: object) -> Any:
    if not isinstance(value, str):
        raise _wrong(value, "JSON as a text")
    try:
        return decode_json(value)
    except (ValueError, ArithmeticError, RecursionError):
        raise _wrong(value, "JSON") from None


def date_text(days: int) -> str:
    """The date so many days after 1970-01-01, of any year; those before Christ end with BC."""
    if abs(days) >= _MOST_DAYS:
        return "infinity" if days > 0 else "-infinity"
    cycles, day = divmod(days + 719_468, 146_097)
    moved = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    of_year = day - (365 * moved + moved // 4 - moved // 100)
    month = (5 * of_year + 2) // 153
    number = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return _year(cycles * 400 + moved + (month <= 2), f"{month:02}-{number:02}")


def _year(year: int, rest: str) -> str:
    return f"{year:04}-{rest}" if year > 0 else f"{1 - year:04}-{rest} BC"


def timestamp_text(number: int, per_second: int) -> str:
    """The time so many parts of a second after 1970-01-01 00:00:00."""
    if number >= _INFINITY:
        return "infinity"
    if number <= _MINUS_INFINITY:
        return "-infinity"
    days, rest = divmod(number, 86_400 * per_second)
    date, before_christ, _ = date_text(days).partition(" BC")
    return f"{date} {time_text(rest, per_second)}{before_christ}"


def time_text(number: int, per_second: int) -> str:
    """Hours, maybe above 24 or negative, minutes, and seconds, with a fraction if there is one."""
    seconds, fraction = divmod(abs(number), per_second)
    minutes, second = divmod(seconds, 60)
    text = f"{'-' * (number < 0)}{minutes // 60:02}:{minutes % 60:02}:{second:02}"
    if not fraction:
        return text
    digits = len(str(per_second)) - 1
    if digits > 6 and fraction % 1000 == 0:
        fraction, digits = fraction // 1000, 6
    return f"{text}.{fraction:0{digits}}"


def iso_text(value: object) -> str:
    """A date or a time as ISO 8601 writes it, in UTC and as the other texts are."""
    if not isinstance(value, str):
        raise _wrong(value, "a date or a time as a text")
    match = _ISO.fullmatch(value)
    if match is None:
        return value
    year, month, time, zone = match.groups()
    if time is None:
        return _year(int(year), month)
    if zone not in (None, "Z", "+00:00"):
        try:
            moment = datetime.datetime.fromisoformat(value).astimezone(datetime.UTC)
        except (ValueError, OverflowError):
            raise _wrong(value, "a time") from None
        return moment.replace(tzinfo=None).isoformat(" ")
    date, before_christ, _ = _year(int(year), month).partition(" BC")
    time = time if time.count(":") == 2 else f"{time}:00"
    return f"{date} {time}{before_christ}"


def _iso_time(value: object) -> Any:
    return value.removesuffix("Z") if isinstance(value, str) else value


def _times(per_second: int) -> Converter:
    return lambda value: time_text(_integer(value), per_second)


def _timestamps(per_second: int) -> Converter:
    return lambda value: timestamp_text(_integer(value), per_second)


_PLAIN: Mapping[str, ColumnType] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), ColumnType.BIGINT),
    **dict.fromkeys(("float", "float32", "double", "float64"), ColumnType.DOUBLE),
    "boolean": ColumnType.BOOLEAN,
    "string": ColumnType.TEXT,
    "bytes": ColumnType.BINARY,
    "map": ColumnType.JSON,
}
_DATES = (ColumnType.DATE, lambda value: date_text(_integer(value)))
_NAMED: Mapping[str, tuple[ColumnType, Converter]] = {
    "io.debezium.time.Date": _DATES,
    "io.debezium.time.Timestamp": (ColumnType.DATETIME, _timestamps(1000)),
    "io.debezium.time.MicroTimestamp": (ColumnType.DATETIME, _timestamps(_US)),
    "io.debezium.time.NanoTimestamp": (ColumnType.DATETIME, _timestamps(1000 * _US)),
    "io.debezium.time.Time": (ColumnType.TEXT, _times(1000)),
    "io.debezium.time.MicroTime": (ColumnType.TEXT, _times(_US)),
    "io.debezium.time.NanoTime": (ColumnType.TEXT, _times(1000 * _US)),
    "io.debezium.time.ZonedTimestamp": (ColumnType.DATETIME, iso_text),
    "io.debezium.time.ZonedTime": (ColumnType.TEXT, _same),
    "io.debezium.time.IsoDate": (ColumnType.DATE, iso_text),
    "io.debezium.time.IsoTimestamp": (ColumnType.DATETIME, iso_text),
    "io.debezium.time.IsoTime": (ColumnType.TEXT, _iso_time),
    "io.debezium.time.Interval": (ColumnType.TEXT, _same),
    "io.debezium.time.MicroDuration": (ColumnType.BIGINT, _same),
    "io.debezium.time.Year": (ColumnType.BIGINT, _same),
    "org.apache.kafka.connect.data.Date": _DATES,
    "org.apache.kafka.connect.data.Time": (ColumnType.TEXT, _times(1000)),
    "org.apache.kafka.connect.data.Timestamp": (ColumnType.DATETIME, _timestamps(1000)),
    "io.debezium.data.VariableScaleDecimal": (ColumnType.NUMERIC, _variable_decimal),
    "io.debezium.data.Bits": (ColumnType.NUMERIC, _bits),
    "io.debezium.data.Json": (ColumnType.JSON, _json),
    "io.debezium.data.Enum": (ColumnType.TEXT, _enum),
    "io.debezium.data.EnumSet": (ColumnType.TEXT, _same),
    "io.debezium.data.Uuid": (ColumnType.TEXT, _same),
    "io.debezium.data.Xml": (ColumnType.TEXT, _same),
}
NAMES: Sequence[str] = (*_NAMED, "org.apache.kafka.connect.data.Decimal")
"""The names of schemas with a type in the target."""
