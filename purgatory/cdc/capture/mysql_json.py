"""MySQL's binary JSON, as the server prints it: mysql-replication returns Python's dates for some.

A value is a type, and its content within a container or at an offset in it. The types are integers,
doubles, strings, literals, objects and arrays with offsets of two or four bytes ("small", "large"),
and opaque values of other types of columns: decimals, dates and times, and bytes, which the server
prints as ``base64:type252:...``.
"""

from __future__ import annotations

import base64
import struct
from decimal import Decimal
from typing import Any

from pymysqlreplication.constants import FIELD_TYPE

_LITERALS = {0: None, 1: True, 2: False}
_NUMBERS = {0x05: "<h", 0x06: "<H", 0x07: "<i", 0x08: "<I", 0x09: "<q", 0x0A: "<Q", 0x0B: "<d"}
_OBJECTS, _ARRAYS = (0x00, 0x01), (0x02, 0x03)
_LITERAL, _STRING, _OPAQUE = 0x04, 0x0C, 0x0F
_INLINE = ({_LITERAL, 0x05, 0x06}, {_LITERAL, 0x05, 0x06, 0x07, 0x08})
"""The types whose content is in the place of its offset: in small containers, and in large ones."""
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def decode_json(data: bytes) -> Any:
    """Decode the content of a JSON column. O(length).

    Raises:
        ValueError: the content is cut off, has an unknown type, or contains itself.
    """
    try:
        # The server takes an empty value, which some failed statements leave, for null.
        return _value(data[0], data, 1) if data else None
    except (LookupError, RecursionError, struct.error) as error:
        raise ValueError(f"it is cut off or garbage ({error!r})") from error


def _value(kind: int, data: bytes, at: int) -> Any:
    if kind in _NUMBERS:
        return struct.unpack_from(_NUMBERS[kind], data, at)[0]
    if kind == _LITERAL:
        return _LITERALS[data[at]]
    if kind == _STRING:
        return _sized(data, at).decode()
    if kind == _OPAQUE:
        return _opaque(data[at], _sized(data, at + 1))
    if kind in (*_OBJECTS, *_ARRAYS):
        return _container(kind, data, at)
    raise ValueError(f"the JSON type {kind} is unknown")


def _sized(data: bytes, at: int) -> bytes:
    """Bytes behind their length, which has seven bits in each byte."""
    size = shift = 0
    while True:
        byte = data[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return _slice(data, at, size)


def _slice(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise ValueError(f"{size} bytes at {at} of {len(data)}")
    return data[at : at + size]


def _container(kind: int, data: bytes, start: int) -> Any:
    is_large = kind in (_OBJECTS[1], _ARRAYS[1])
    width = 4 if is_large else 2

    def number(at: int, size: int) -> int:
        return int.from_bytes(_slice(data, at, size), "little")

    count = number(start, width)
    at = start + 2 * width
    names = []
    if kind in _OBJECTS:
        for _ in range(count):
            begin = start + number(at, width)
            names.append(_slice(data, begin, number(at + width, 2)).decode())
            at += width + 2
    values = []
    for _ in range(count):
        inner = data[at]
        place = at + 1 if inner in _INLINE[is_large] else start + number(at + 1, width)
        values.append(_value(inner, data, place))
        at += 1 + width
    return dict(zip(names, values, strict=True)) if kind in _OBJECTS else values


def _opaque(kind: int, data: bytes) -> Any:
    match kind:
        case FIELD_TYPE.NEWDECIMAL:
            return _decimal(data)
        case FIELD_TYPE.DATE | FIELD_TYPE.DATETIME | FIELD_TYPE.TIMESTAMP:
            return _date_text(int.from_bytes(data, "little", signed=True), kind)
        case FIELD_TYPE.TIME:
            return _time_text(int.from_bytes(data, "little", signed=True))
    return f"base64:type{kind}:{base64.b64encode(data).decode('ascii')}"


def _date_text(packed: int, kind: int) -> str:
    fields, microsecond = packed >> 24, packed & 0xFFFFFF
    months, day = fields >> 22, fields >> 17 & 0x1F
    text = f"{months // 13:04}-{months % 13:02}-{day:02}"
    if kind == FIELD_TYPE.DATE:
        return text
    return f"{text} {_clock(fields >> 12 & 0x1F, fields, microsecond)}"


def _time_text(packed: int) -> str:
    sign = "-" if packed < 0 else ""
    fields, microsecond = abs(packed) >> 24, abs(packed) & 0xFFFFFF
    return sign + _clock(fields >> 12 & 0x3FF, fields, microsecond)


def _clock(hours: int, fields: int, microsecond: int) -> str:
    return f"{hours:02}:{fields >> 6 & 0x3F:02}:{fields & 0x3F:02}.{microsecond:06}"


def _decimal(data: bytes) -> Decimal:
    """A decimal behind its number of digits and those of its fraction.

    Nine digits take four bytes. The first bit is the sign, and negative numbers are inverted.
    """
    digits, scale = data[0], data[1]
    is_negative = not data[2] & 0x80
    content = bytes([data[2] ^ 0x80]) + data[3:]
    if is_negative:
        content = bytes(byte ^ 0xFF for byte in content)
    whole, fraction = divmod(digits - scale, 9), divmod(scale, 9)
    sizes = [whole[1], *[9] * whole[0], *[9] * fraction[0], fraction[1]]
    text, at = "", 0
    for size in sizes:
        width = _DIGIT_BYTES[size]
        if width:
            text += f"{int.from_bytes(content[at : at + width], 'big'):0{size}}"
            at += width
    # Not by arithmetic, which would round to the context's precision.
    return Decimal((int(is_negative), tuple(map(int, text)), -scale))
