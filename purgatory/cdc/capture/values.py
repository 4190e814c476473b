"""Column values as JSON, the same from the binlog and from a query.

Integers, decimals and floats are numbers (a decimal with all its digits); dates and times are
strings as the database prints them (timestamps in UTC); bytes are base64; BIT is an integer; an
enum is its label, a set its labels separated by commas; MySQL's JSON is nested. A zero, incomplete
or impossible date is null, because no other database has it.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pymysqlreplication.constants import FIELD_TYPE

from purgatory.cdc.capture.charsets import (
    BINARY,
    charset_name,
    collation_charset,
    decode_text,
    letters,
)
from purgatory.cdc.capture.errors import CaptureError

_CHARSETS_WITH_QUOTE_BYTES = {"big5", "cp932", "gbk", "sjis"}
_SERVER_STATEMENT = re.compile(r"CREATE (OR REPLACE )?TABLE (IF NOT EXISTS )?`.*` \(\n  `")


def decode_statement(raw: bytes, collation: int) -> str:
    """Decode a statement in the binlog.

    Args:
        collation: the number of a collation of its session's character_set_client.

    Raises:
        CaptureError: the character set is unknown, or the bytes are invalid in it.
    """
    try:
        charset = charset_name(collation)
    except CaptureError:
        if raw.isascii():
            return raw.decode("ascii")
        raise
    if raw.isascii() and charset != "swe7":
        return raw.decode("ascii")
    # In a binary session, the server takes names as UTF-8.
    text = decode_text(raw, "utf8mb4" if charset == BINARY else charset)
    if charset == "swe7" and not text.isascii():
        # The backquote is a letter there, but quotes names all the same.
        raise CaptureError("a swe7 text with letters that are signs of SQL")
    if (
        charset in _CHARSETS_WITH_QUOTE_BYTES
        and any(letter[1:] == b"`" for letter in letters(raw, charset))
    ) or (charset == "gb18030" and any(c.encode(charset)[1:] == b"`" for c in set(text))):
        # Between backquotes, the server reads such a letter in another way.
        raise CaptureError(f"a {charset} text with letters whose second byte is a backquote")
    if not charset.startswith("utf8") and _SERVER_STATEMENT.match(text) and _is_utf8(raw):
        raise CaptureError(f"it may be in {charset}, or in UTF-8, as the server writes it itself")
    return text


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


_TEXTS = {FIELD_TYPE.STRING, FIELD_TYPE.VAR_STRING, FIELD_TYPE.VARCHAR, FIELD_TYPE.BLOB}
_DATETIMES = {FIELD_TYPE.DATETIME, FIELD_TYPE.DATETIME2}
_TIMES = {FIELD_TYPE.TIME, FIELD_TYPE.TIME2}
_EPOCH = datetime.datetime(1970, 1, 1)

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class BinlogColumn:
    """A column in the binlog's metadata, and the conversion of its values to JSON."""

    name: str
    convert: Convert


def binlog_column(column: Any) -> BinlogColumn:
    """Convert mysql-replication's description of a column.

    Makes the library return its strings as bytes: they are decoded here.
    """
    charset = collation_charset(column.collation_name)
    if column.type in _TEXTS:
        column.character_set_name = BINARY
        width = column.max_length if column.type == FIELD_TYPE.STRING else 0
        convert = _text_converter(charset, width)
        if column.is_compressed:
            return BinlogColumn(column.name, lambda raw: convert(decompress(raw or b"")))
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
    return BinlogColumn(column.name, _passthrough_converter(column))


def _passthrough_converter(column: Any) -> Convert:
    fsp = getattr(column, "fsp", 0)
    is_stamp = column.is_timestamp or column.type == FIELD_TYPE.TIMESTAMP
    if is_stamp or column.type in _DATETIMES:
        return lambda value: _datetime_text(value, fsp, is_stamp)
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
        # The binlog omits trailing zeros of BINARY.
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
    """The number with the fewest digits that is the same 32-bit float."""
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
    """The conversion of a query's unconverted values to JSON.

    Args:
        data_type: as in ``information_schema``: ``varchar``.
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
            return lambda text: text if _is_date(text[:10]) else None
        case "bit":
            return lambda raw: int.from_bytes(raw, "big")
        case "json":
            return lambda text: json.loads(text, parse_float=Decimal)
        case _:
            return lambda value: _base64(value) if isinstance(value, bytes) else value


def _is_date(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def decompress(raw: bytes) -> bytes:
    """The content of a value of a COMPRESSED column.

    Its first byte is 0 if the rest is not compressed. Otherwise it is 128 (zlib), plus the number
    of bytes of the length that follows, plus 8 if the data has no zlib header.

    Raises:
        CaptureError: it was compressed by another method.
    """
    if not raw or not raw[0]:
        return raw[1:]
    try:
        if raw[0] & 0xF0 != 0x80:
            raise zlib.error(f"method {raw[0] >> 4}")
        wbits = -zlib.MAX_WBITS if raw[0] & 8 else zlib.MAX_WBITS
        return zlib.decompress(raw[1 + (raw[0] & 7) :], wbits)
    except zlib.error as error:
        raise CaptureError(f"a COMPRESSED value can't be read: {error}") from None
