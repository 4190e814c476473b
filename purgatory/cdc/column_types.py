"""The column types that all targets have, and the conversion of JSON values into them.

A `ColumnType` comes from a MySQL type name (in a schema change, or written by hand), from the
target's catalog, or from a column's first value.
"""

from __future__ import annotations

import base64
import binascii
import enum
import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from purgatory.cdc.quarantine import TOO_LARGE, WRONG_TYPE, InvalidChangeError

Value = int | float | str | bytes | bool | Decimal | None
"""A value for a database driver."""


class ColumnType(enum.Enum):
    """A column type that PostgreSQL and SQLite support."""

    BIGINT = "bigint"
    NUMERIC = "numeric"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    TEXT = "text"
    JSON = "json"
    BINARY = "binary"
    DATE = "date"
    DATETIME = "datetime"
    OTHER = "other"
    """The type of an existing table: values are sent as text, and the database checks them."""


_MYSQL: Mapping[str, ColumnType] = {
    **dict.fromkeys(
        ("tinyint", "smallint", "mediumint", "int", "integer", "bigint", "year", "serial"),
        ColumnType.BIGINT,
    ),
    **dict.fromkeys(("decimal", "numeric", "dec", "fixed", "bit"), ColumnType.NUMERIC),
    **dict.fromkeys(("float", "double", "real"), ColumnType.DOUBLE),
    **dict.fromkeys(("bool", "boolean"), ColumnType.BOOLEAN),
    **dict.fromkeys(
        ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "time"),
        ColumnType.TEXT,
    ),
    **dict.fromkeys(("geometry", "point", "linestring", "polygon", "uuid"), ColumnType.TEXT),
    "json": ColumnType.JSON,
    **dict.fromkeys(
        ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), ColumnType.BINARY
    ),
    "date": ColumnType.DATE,
    **dict.fromkeys(("datetime", "timestamp"), ColumnType.DATETIME),
}


def column_type_by_name(name: str, signed: bool = True) -> ColumnType | None:
    """The type for MySQL's `varchar(20)` or `bigint unsigned`; None if it is unknown.

    Args:
        signed: an unsigned `bigint` needs more than 64 bits.
    """
    name, _, rest = name.strip().lower().partition("(")
    name, *attributes = name.split() or [""]
    unsigned = not signed or "unsigned" in attributes or "unsigned" in rest
    if unsigned and name in ("bigint", "serial"):
        return ColumnType.NUMERIC
    return _MYSQL.get(name)


def infer_column_type(value: object) -> ColumnType | None:
    """The type of a column with this first value; None for null."""
    if value is None:
        return None
    if isinstance(value, bool):
        return ColumnType.BOOLEAN
    if isinstance(value, int):
        return ColumnType.BIGINT if -(2**63) <= value < 2**63 else ColumnType.NUMERIC
    if isinstance(value, Decimal):
        return ColumnType.NUMERIC
    return ColumnType.TEXT if isinstance(value, str) else ColumnType.JSON


_MOST_DIGITS = 131_072
"""Digits before or behind the point, as PostgreSQL's numeric has them before it."""


def _type_error(value: object, expected: str) -> InvalidChangeError:
    text = repr(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return InvalidChangeError(WRONG_TYPE, f"{text} is not {expected}")


def _to_integer(value: object) -> Value:
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    number = value
    if isinstance(number, str):
        try:
            number = Decimal(number.strip())
        except ArithmeticError:
            raise _type_error(value, "a whole number") from None
    if isinstance(number, Decimal):
        if not number.is_finite() or number.adjusted() > 30 or number != int(number):
            raise _type_error(value, "a whole number")
        number = int(number)
    if not isinstance(number, int):
        raise _type_error(value, "a whole number")
    if not -(2**63) <= number < 2**63:
        raise InvalidChangeError(TOO_LARGE, f"{number} needs more than 64 bits")
    return int(number)


def _to_decimal(value: object) -> Value:
    if isinstance(value, Decimal | int | str):
        try:
            number = Decimal(value)
        except ArithmeticError:
            raise _type_error(value, "a number") from None
        # Written out, a few characters would be gigabytes.
        if number.is_finite() and abs(number.adjusted()) > _MOST_DIGITS:
            raise InvalidChangeError(TOO_LARGE, f"{str(value)[:40]} has too many digits")
        if number.is_finite():
            return number
    raise _type_error(value, "a number")


def _double(value: object) -> Value:
    number = float(_to_decimal(value) or 0)
    if math.isinf(number):
        raise InvalidChangeError(TOO_LARGE, f"{str(value)[:40]} is no double")
    return number


def _boolean(value: object) -> Value:
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise _type_error(value, "true or false")


def _text(value: object) -> Value:
    if isinstance(value, str):
        # No database stores a lone surrogate: refuse it here, and not a whole batch.
        if not value.isascii():
            _check_unicode(value)
        return value
    return _json(value) if isinstance(value, dict | list | bool) else str(value)


def _check_unicode(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidChangeError(WRONG_TYPE, "a text with half a character (a surrogate)") from None


def _json(value: object) -> str:
    try:
        return _json_text(value)
    except RecursionError:
        raise InvalidChangeError(TOO_LARGE, "lists or objects too deep in each other") from None


def _json_text(value: object) -> str:
    # `json.dumps` has no way to write a Decimal with all its digits.
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list):
        return f"[{','.join(map(_json_text, value))}]"
    if isinstance(value, dict):
        fields = [f"{json.dumps(name)}:{_json_text(item)}" for name, item in value.items()]
        return f"{{{','.join(fields)}}}"
    return json.dumps(value)


def _binary(value: object) -> Value:
    if not isinstance(value, str):
        raise _type_error(value, "bytes in base 64")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise _type_error(value, "bytes in base 64") from None


_ISO_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:T(\d\d:\d\d:\d\d(?:\.\d+)?))?Z")


def _time(value: object) -> Value:
    if not isinstance(value, str):
        raise _type_error(value, "a date or a time as a text")
    if value.endswith("Z") and (match := _ISO_TIME.fullmatch(value)):
        return " ".join(filter(None, match.groups()))
    return _text(value)


CONVERTERS: Mapping[ColumnType, Callable[[Any], Value]] = {
    ColumnType.BIGINT: _to_integer,
    ColumnType.NUMERIC: _to_decimal,
    ColumnType.DOUBLE: _double,
    ColumnType.BOOLEAN: _boolean,
    ColumnType.TEXT: _text,
    ColumnType.JSON: _json,
    ColumnType.BINARY: _binary,
    ColumnType.DATE: _time,
    ColumnType.DATETIME: _time,
    ColumnType.OTHER: _text,
}
"""Converts a JSON value, except null, to a column's type; raises InvalidChangeError."""
