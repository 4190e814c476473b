"""A column's values as they stand in JSON, the same from the binlog and from a query.

Whole numbers, decimals and floats are numbers (a decimal with all its digits), dates and times are
texts as the database prints them (timestamps in UTC), bytes are base64, BIT is a whole number, an
enum is its label, a set its labels with commas between, MySQL's JSON is nested. A date that is zero
or not complete is null: no other database has it.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pymysqlreplication.constants import FIELD_TYPE

from purgatory.changes.capture.charsets import BINARY, charset_of_collation, decode_text
from purgatory.changes.capture.decoder_repairs import decompressed

_TEXTS = {FIELD_TYPE.STRING, FIELD_TYPE.VAR_STRING, FIELD_TYPE.VARCHAR, FIELD_TYPE.BLOB}
_STAMPS = {FIELD_TYPE.TIMESTAMP, FIELD_TYPE.TIMESTAMP2}
_DATETIMES = {FIELD_TYPE.DATETIME, FIELD_TYPE.DATETIME2, *_STAMPS}
_TIMES = {FIELD_TYPE.TIME, FIELD_TYPE.TIME2}
_NO_DATE = re.compile(r"0000-|\d{4}-00-|\d{4}-\d{2}-00")
_EPOCH = datetime.datetime(1970, 1, 1)

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class BinlogColumn:
    """A column as the binlog describes it, and what makes JSON of its values."""

    name: str
    convert: Convert


def binlog_column(column: Any) -> BinlogColumn:
    """Take over a column's description from mysql-replication.

    Its texts come as bytes from then on: their character set is looked at here.
    """
    charset = charset_of_collation(column.collation_name)
    if column.type in _TEXTS:
        column.character_set_name = BINARY
        width = column.max_length if column.type == FIELD_TYPE.STRING else 0
        convert = _text_converter(charset, width)
        if column.is_compressed:
            return BinlogColumn(column.name, lambda raw: convert(decompressed(raw or b"")))
        return BinlogColumn(column.name, convert)
    if column.type == FIELD_TYPE.SET:
        labels = [_label(label, charset) for label in column.set_values]
        by_raw = dict(zip(column.set_values, range(len(labels)), strict=True))
        return BinlogColumn(
            column.name,
            lambda chosen: ",".join(labels[i] for i in sorted(by_raw[raw] for raw in chosen)),
        )
    if column.type == FIELD_TYPE.ENUM:
        return BinlogColumn(column.name, lambda raw: _label(raw, charset))
    return BinlogColumn(column.name, _plain_converter(column))


def _plain_converter(column: Any) -> Convert:
    fsp = getattr(column, "fsp", 0)
    if column.type in _DATETIMES:
        return lambda value: _datetime_text(value, fsp, column.type in _STAMPS)
    if column.type in _TIMES:
        return lambda value: _time_text(value, fsp)
    match column.type:
        case FIELD_TYPE.FLOAT:
            return shortest_float
        case FIELD_TYPE.BIT:
            return lambda value: int(value, 2)
        case FIELD_TYPE.YEAR:
            return lambda value: 0 if value == 1900 else value
        case FIELD_TYPE.DATE:
            return lambda value: value.isoformat()
        case FIELD_TYPE.GEOMETRY:
            return _base64
        case _:
            return lambda value: value


def _text_converter(charset: str, width: int) -> Convert:
    if charset == BINARY:
        # The binlog leaves out the zeros at the end of a BINARY.
        return lambda raw: _base64((raw or b"").ljust(width, b"\0"))
    # Without bytes there is nothing that Python looks up a codec for: then it is a text already.
    return lambda raw: decode_text(raw, charset) if raw else ""


def _label(raw: str, charset: str) -> str:
    data = raw.encode("utf-8", "surrogateescape")
    return decode_text(data, "utf8mb4" if charset == BINARY else charset)


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _datetime_text(value: datetime.datetime, fsp: int, is_stamp: bool) -> str | None:
    if is_stamp and value == _EPOCH:
        return None
    text = f"{value.year:04}-{value:%m-%d %H:%M:%S}"
    return f"{text}.{value.microsecond:06}"[: len(text) + 1 + fsp] if fsp else text


def _time_text(value: datetime.timedelta, fsp: int) -> str:
    sign = "-" if value < datetime.timedelta(0) else ""
    value = abs(value)
    minutes, seconds = divmod(value.days * 86400 + value.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{sign}{hours:02}:{minutes:02}:{seconds:02}"
    return f"{text}.{value.microseconds:06}"[: len(text) + 1 + fsp] if fsp else text


def shortest_float(value: float) -> float:
    """Return the number with the fewest digits that is the same in 32 bits."""
    packed = struct.pack("<f", value)
    for digits in range(6, 9):
        shorter = float(f"{value:.{digits}g}")
        try:
            if struct.pack("<f", shorter) == packed:
                return shorter
        except OverflowError:
            continue
    return float(f"{value:.9g}")


def query_converter(data_type: str) -> Convert:
    """Return what makes JSON of a value that a query returned without conversion.

    Args:
        data_type: as ``information_schema`` has it, as in ``varchar``.
    """
    match data_type:
        case "tinyint" | "smallint" | "mediumint" | "int" | "bigint" | "year":
            return int
        case "decimal":
            return Decimal
        case "float":
            return lambda text: shortest_float(float(text))
        case "double":
            return float
        case "date" | "datetime" | "timestamp":
            return lambda text: None if _NO_DATE.match(text) else text
        case "bit":
            return lambda raw: int.from_bytes(raw, "big")
        case "json":
            return lambda text: json.loads(text, parse_float=Decimal)
        case _:
            return lambda value: _base64(value) if isinstance(value, bytes) else value
