"""The fields of records of Kafka's internal topics, written and read; and schemas of them.

Ground rules: no state.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Protocol
from uuid import UUID


class Field(Protocol):
    """One kind of field, written and read; reading returns the value, and the position after it."""

    def write(self, value: Any) -> bytes: ...
    def read(self, data: bytes, at: int) -> tuple[Any, int]: ...


class Number:
    """A number of fixed length."""

    def __init__(self, layout: str) -> None:
        self.layout = layout
        self._struct = struct.Struct(f">{layout}")

    def write(self, value: Any) -> bytes:
        return self._struct.pack(value)

    def read(self, data: bytes, at: int) -> tuple[Any, int]:
        return self._struct.unpack_from(data, at)[0], at + self._struct.size


class Uuid:
    """An id of 16 bytes."""

    def write(self, value: UUID) -> bytes:
        return value.bytes

    def read(self, data: bytes, at: int) -> tuple[UUID, int]:
        return UUID(bytes=data[at : at + 16]), at + 16


class PlainLength:
    """A length as a number, -1 for null, as in versions that are not flexible."""

    def __init__(self, layout: str) -> None:
        self._number = Number(layout)

    def write(self, value: int | None) -> bytes:
        return self._number.write(-1 if value is None else value)

    def read(self, data: bytes, at: int) -> tuple[int | None, int]:
        length, at = self._number.read(data, at)
        return (None if length < 0 else length), at


class CompactLength:
    """A length plus 1 as a varint, 0 for null, as in flexible versions."""

    def write(self, value: int | None) -> bytes:
        return write_varint(0 if value is None else value + 1)

    def read(self, data: bytes, at: int) -> tuple[int | None, int]:
        number, at = read_varint(data, at)
        return (number - 1 if number else None), at


def write_varint(number: int) -> bytes:
    """Return a number from 0 on, seven bits to a byte, the lowest first."""
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number written by `write_varint`, and the position after it."""
    number = shift = 0
    while data[at] & 0x80:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return number | data[at] << shift, at + 1


class String:
    """Text; None for null."""

    def __init__(self, length: PlainLength | CompactLength) -> None:
        self._length = length

    def write(self, value: str | None) -> bytes:
        if value is None:
            return self._length.write(None)
        data = value.encode()
        return self._length.write(len(data)) + data

    def read(self, data: bytes, at: int) -> tuple[str | None, int]:
        length, at = self._length.read(data, at)
        return (None, at) if length is None else (data[at : at + length].decode(), at + length)


class Bytes:
    """Bytes; None for null."""

    def __init__(self, length: PlainLength | CompactLength) -> None:
        self._length = length

    def write(self, value: bytes | None) -> bytes:
        return self._length.write(None if value is None else len(value)) + (value or b"")

    def read(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        length, at = self._length.read(data, at)
        return (None, at) if length is None else (data[at : at + length], at + length)


class Array:
    """Elements of one kind; None for null."""

    def __init__(self, length: PlainLength | CompactLength, of: Field) -> None:
        self._length = length
        self._of = of

    def write(self, value: Sequence[Any] | None) -> bytes:
        if value is None:
            return self._length.write(None)
        return self._length.write(len(value)) + b"".join(map(self._of.write, value))

    def read(self, data: bytes, at: int) -> tuple[list[Any] | None, int]:
        length, at = self._length.read(data, at)
        if length is None:
            return None, at
        elements = []
        for _ in range(length):
            element, at = self._of.read(data, at)
            elements.append(element)
        return elements, at


class Nullable:
    """A value behind a 1 as a varint; None is 0: so are nullable structures in tagged fields."""

    def __init__(self, of: Field) -> None:
        self._of = of

    def write(self, value: Any) -> bytes:
        return write_varint(0) if value is None else write_varint(1) + self._of.write(value)

    def read(self, data: bytes, at: int) -> tuple[Any, int]:
        is_present, at = read_varint(data, at)
        return self._of.read(data, at) if is_present else (None, at)


class NullableStruct:
    """A structure behind a byte, which is 1; null is the byte -1."""

    def __init__(self, of: Field) -> None:
        self._of = of

    def write(self, value: Any) -> bytes:
        return INT8.write(-1) if value is None else INT8.write(1) + self._of.write(value)

    def read(self, data: bytes, at: int) -> tuple[Any, int]:
        is_present, at = INT8.read(data, at)
        return self._of.read(data, at) if is_present > 0 else (None, at)


class Schema:
    """Fields one after the other; in flexible versions, tagged fields at the end.

    Args:
        fields: in their order.
        flexible: whether tagged fields follow.
        tags: the known tagged fields by name, in the order of their numbers. Others are skipped.
    """

    def __init__(
        self, *fields: Field, flexible: bool = False, tags: Mapping[str, Field] | None = None
    ) -> None:
        # Consecutive numbers are packed together.
        self._steps: list[tuple[struct.Struct | Field, int]] = []
        for numbers, run in groupby(fields, lambda field: isinstance(field, Number)):
            if numbers:
                layout = "".join(field.layout for field in run if isinstance(field, Number))
                self._steps.append((struct.Struct(f">{layout}"), len(layout)))
            else:
                self._steps += [(field, 1) for field in run]
        self._flexible = flexible
        self._tags = tags or {}

    def write(self, value: Sequence[Any], tags: Mapping[str, Any] | None = None) -> bytes:
        parts, start = [], 0
        for step, count in self._steps:
            end = start + count
            if isinstance(step, struct.Struct):
                parts.append(step.pack(*value[start:end]))
            else:
                parts.append(step.write(value[start]))
            start = end
        assert start == len(value), "a field without a place would be lost"
        if self._flexible:
            parts.append(write_varint(len(tags or ())))
            for number, (name, field) in enumerate(self._tags.items()):
                if tags and name in tags:
                    data = field.write(tags[name])
                    parts += write_varint(number), write_varint(len(data)), data
        return b"".join(parts)

    def read(self, data: bytes, at: int) -> tuple[list[Any], int]:
        values, _, at = self.read_with_tags(data, at)
        return values, at

    def read_with_tags(self, data: bytes, at: int) -> tuple[list[Any], dict[str, Any], int]:
        """Return the fields, the present tagged fields, and the position after them."""
        values: list[Any] = []
        for step, _ in self._steps:
            if isinstance(step, struct.Struct):
                values += step.unpack_from(data, at)
                at += step.size
            else:
                value, at = step.read(data, at)
                values.append(value)
        tags = {}
        if self._flexible:
            known = list(self._tags.items())
            count, at = read_varint(data, at)
            for _ in range(count):
                number, at = read_varint(data, at)
                size, at = read_varint(data, at)
                if number < len(known):
                    name, field = known[number]
                    tags[name] = field.read(data, at)[0]
                at += size
        return values, tags, at


class Tagged:
    """Fields, and the tagged ones behind them: a pair of both."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def write(self, value: tuple[Sequence[Any], Mapping[str, Any]]) -> bytes:
        return self._schema.write(*value)

    def read(self, data: bytes, at: int) -> tuple[tuple[list[Any], dict[str, Any]], int]:
        values, tags, at = self._schema.read_with_tags(data, at)
        return (values, tags), at


INT8, INT16, INT32, INT64, UINT16 = map(Number, "bhiqH")
UUID16 = Uuid()
SHORT_LENGTH, INT_LENGTH, COMPACT = PlainLength("h"), PlainLength("i"), CompactLength()
PLAIN_STRING, STRING = String(SHORT_LENGTH), String(COMPACT)
