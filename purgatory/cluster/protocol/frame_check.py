"""The check of a request's lengths, before the codec decodes it.

The codec reserves memory for as many elements as an array claims to have, and a claim of two
thousand million ends the process. Each length is therefore compared with the rest of the frame
first, and the elements of all arrays are counted. Input that Kafka ignores and the codec would
refuse is mended: unknown tagged fields and bytes behind the fields are removed, any length below 0
is null, and bytes that are no UTF-8 become U+FFFD, as in Java.

Ground rules
------------
* No state but caches of what each class of `kio` is made of.
* Offsets only ever grow, and each array's count is bounded by the remaining bytes, so that a check
  takes O(bytes) at most.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from kio.static.constants import EntityType

from purgatory.cluster.errors import BadRequestError

MAX_ELEMENTS = 200_000
"""The most elements that all arrays of a request may have together."""

_FIXED_SIZES: Mapping[str, int] = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}
_MAX_VARINT_BYTES = 5
_MAX_STRING_BYTES = 2**15 - 1
"""Kafka's limit of strings, which is that of records and of responses of older versions."""
_NO_ENTITY = 0xFF


class _FrameReader:
    """The progress of the check of one request."""

    __slots__ = ("cuts", "data", "elements", "end", "max_elements")

    def __init__(self, data: bytes, max_elements: int) -> None:
        self.max_elements = max_elements
        self.data = data
        self.end = len(data)
        self.elements = 0
        # (begin, end, what stands there instead), in order
        self.cuts: list[tuple[int, int, bytes]] = []

    def check_text(self, begin: int, at: int, end: int, compact: bool) -> None:
        """Have a text that is no UTF-8 read as Java does: its length is at ``begin``."""
        try:
            self.data[at:end].decode()
        except UnicodeDecodeError:
            text = self.data[at:end].decode("utf-8", "replace").encode()
            _check_string(len(text))
            length = _varint(len(text) + 1) if compact else len(text).to_bytes(2, "big")
            self.cuts.append((begin, end, length + text))

    def count(self, elements: int, at: int) -> None:
        """Record an array, or refuse it."""
        self.elements += elements
        if elements > self.end - at or self.elements > self.max_elements:
            raise BadRequestError(
                f"an array of {elements} elements, where {max(0, self.end - at)} bytes are left; "
                f"all arrays of a request together may have {self.max_elements}"
            )


_Step = Callable[[_FrameReader, int], int]
"""Goes over one field from an offset on, and returns where it ends."""


def check_frame(
    frame: bytes,
    header_class: Any,
    body_class: Any,
    max_elements: int = MAX_ELEMENTS,
) -> bytes:
    """Check the lengths in a frame, and return it as the codec reads it.

    Args:
        frame: one request, without its length.
        header_class, body_class: `kio`'s.
        max_elements: so many may all arrays have together.

    Raises:
        BadRequestError: a length lies.
    """
    reader = _FrameReader(frame, max_elements)
    try:
        at = _entity_step(body_class)(reader, _entity_step(header_class)(reader, 0))
    except IndexError:
        raise BadRequestError(f"its {len(frame)} bytes end within a number") from None
    if at > len(frame):
        raise BadRequestError(f"its fields take {at} bytes, and it has {len(frame)}")
    frame = frame[:at]
    if not reader.cuts:
        return frame
    parts, kept = [], 0
    for begin, end, instead in reader.cuts:
        parts += [frame[kept:begin], instead]
        kept = end
    return b"".join([*parts, frame[kept:]])


@cache
def _entity_step(entity_class: Any) -> _Step:
    flexible = entity_class.__flexible__
    # A header's client id is a string of the old kind in each version, so that all can read it.
    compact = flexible and entity_class.__type__ is not EntityType.header
    hints = typing.get_type_hints(entity_class)
    known: set[int] = set()
    steps: list[tuple[int, _Step]] = []
    skipped = 0
    for field in fields(entity_class):
        if "tag" in field.metadata:
            known.add(field.metadata["tag"])
            continue
        step = _field_step(hints[field.name], field.metadata.get("kafka_type"), compact)
        if isinstance(step, int):
            skipped += step
        else:
            steps.append((skipped, step))
            skipped = 0
    if flexible:
        steps.append((skipped, _tags_step(frozenset(known))))
        skipped = 0
    return _sequence(steps, skipped)


def _sequence(steps: Sequence[tuple[int, _Step]], last_bytes: int) -> _Step:
    """Return what goes over fields: for each step so many bytes that are always the same, first."""

    def read(reader: _FrameReader, at: int) -> int:
        for skipped, step in steps:
            at = step(reader, at + skipped)
        return at + last_bytes

    return read


def _field_step(hint: Any, kafka_type: str | None, compact: bool) -> _Step | int:
    """Return what goes over a field; the number of its bytes, where that is always the same."""
    may_be_null = isinstance(hint, types.UnionType)
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        item = _field_step(typing.get_args(hint)[0], kafka_type, compact)
        return _array_step(item, compact, may_be_null)
    if is_dataclass(hint):
        nested: Any = hint
        return _nullable_step(_entity_step(nested)) if may_be_null else _entity_step(nested)
    assert kafka_type is not None, "only entities have none"
    if kafka_type in _FIXED_SIZES:
        return _FIXED_SIZES[kafka_type]
    return _text_step(compact) if kafka_type == "string" else _bytes_step(compact)


def _nullable_step(entity: _Step) -> _Step:
    """Return what goes over an entity with a byte before it that says whether it is there."""

    def step(reader: _FrameReader, at: int) -> int:
        return at + 1 if reader.data[at] == _NO_ENTITY else entity(reader, at + 1)

    return step


def _bytes_step(compact: bool) -> _Step:
    def step(reader: _FrameReader, at: int) -> int:
        length, at = _length(reader, at, compact, 4)
        return _end(reader, length, at)

    return step


def _text_step(compact: bool) -> _Step:
    def step(reader: _FrameReader, at: int) -> int:
        data, begin = reader.data, at
        byte = data[at]
        # The most usual lengths, without a call.
        if compact and byte < 0x80:
            length, at = byte - 1, at + 1  # 0 is null
        elif byte == 0 and not compact:
            length, at = data[at + 1], at + 2
        else:
            length, at = _length(reader, at, compact, 2)
        end = at + length
        if end > reader.end or length > _MAX_STRING_BYTES:
            end = _end(reader, length, at)
            _check_string(length)
        elif length < 0:
            return at
        if not data[at:end].isascii():
            reader.check_text(begin, at, end, compact)
        return end

    return step


def _end(reader: _FrameReader, length: int, at: int) -> int:
    if length > reader.end - at:
        raise BadRequestError(
            f"a field of {length} bytes, where {max(0, reader.end - at)} are left"
        )
    return at + max(0, length)


def _check_string(length: int) -> None:
    if length > _MAX_STRING_BYTES:
        raise BadRequestError(
            f"a string of {length} bytes: it may have {_MAX_STRING_BYTES}, in all versions"
        )


def _array_step(item: _Step | int, compact: bool, may_be_null: bool) -> _Step:
    def step(reader: _FrameReader, at: int) -> int:
        byte = reader.data[at]
        if compact and byte < 0x80:  # as above
            count, at = byte - 1, at + 1
        else:
            count, at = _length(reader, at, compact, 4)
        if count < 0:
            if not may_be_null:
                raise BadRequestError("null in the place of an array")
            return at
        if count:
            reader.count(count, at)
        if isinstance(item, int):
            return at + item * count
        for _ in range(count):
            at = item(reader, at)
        return at

    return step


def _tags_step(known: frozenset[int]) -> _Step:
    def step(reader: _FrameReader, at: int) -> int:
        begin = at
        if reader.data[at] == 0:
            return at + 1
        count, at = read_varint(reader.data, at)
        reader.count(count, at)
        kept = []
        for _ in range(count):
            tag_begin = at
            tag, at = read_varint(reader.data, at)
            size, at = read_varint(reader.data, at)
            at += size
            if tag in known:
                kept.append(reader.data[tag_begin:at])
        if len(kept) < count:
            # Those that are kept are at most as many as tags are known: one byte holds that.
            if len(kept) > len(known):
                raise BadRequestError("a tagged field that comes twice")
            reader.cuts.append((begin, at, bytes([len(kept)]) + b"".join(kept)))
        return at

    return step


def _length(reader: _FrameReader, at: int, compact: bool, length_bytes: int) -> tuple[int, int]:
    """Return a length, below 0 for null, and where what it measures begins."""
    if compact:
        number, at = read_varint(reader.data, at)
        return number - 1, at
    end = at + length_bytes
    length = int.from_bytes(reader.data[at:end], "big", signed=True)
    if length < -1:
        reader.cuts.append((at, end, b"\xff" * length_bytes))
    return length, end


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number without a sign, and where it ends."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    number = 0
    for place in range(_MAX_VARINT_BYTES):
        byte = data[at + place]
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, at + place + 1
    raise BadRequestError("a number of more than 5 bytes")
