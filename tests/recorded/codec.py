"""Kafka's wire format, read off the schemas of Kafka's own messages.

The product's codec has no part in it: a field that both would read wrongly in the same way can't
hide here. Messages are dictionaries by the schemas' names; an absent field has its default.
A tagged field of a response is marked by `~` after its name, since its absence says something.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from tests.recorded.schemas import Schema, load_schemas

Message = dict[str, Any]

_API_VERSIONS = 18
"""Its responses have the oldest header, since clients don't know the broker's versions yet."""

_NUMBERS: Mapping[str, str] = {
    "int8": ">b",
    "int16": ">h",
    "int32": ">i",
    "int64": ">q",
    "uint16": ">H",
    "uint32": ">I",
    "float64": ">d",
}


class CodecError(ValueError):
    """Bytes that are no message of the schema, or a message that isn't of the schema."""


class Versions(NamedTuple):
    """The versions of a message that have a field or a property; none if the last is before."""

    first: int
    last: int

    def has(self, version: int) -> bool:
        """Whether a version is among them."""
        return self.first <= version <= self.last

    @classmethod
    def parse(cls, text: str | None) -> Versions:
        """Read what schemas write: ``none``, ``3``, ``3+`` or ``3-5``."""
        if text is None or text == "none":
            return cls(1, 0)
        if text.endswith("+"):
            return cls(int(text[:-1]), 2**15 - 1)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))


class Field:
    """One field of a schema, or an array of them."""

    def __init__(self, schema: Schema, shared: Mapping[str, Sequence[Schema]], flexible: Versions):
        kind: str = schema["type"]
        self.name: str = schema["name"]
        self.is_array = kind.startswith("[]")
        self.kind = kind.removeprefix("[]")
        self.versions = Versions.parse(schema.get("versions"))
        self.nullable = Versions.parse(schema.get("nullableVersions"))
        self.tag: int | None = schema.get("tag")
        self.tagged = Versions.parse(schema.get("taggedVersions"))
        own = schema.get("flexibleVersions")
        self.flexible = flexible if own is None else Versions.parse(own)
        self.fields: Sequence[Field] | None = None
        if self.kind[0].isupper():
            parts = schema.get("fields") or shared[self.kind]
            self.fields = [Field(part, shared, self.flexible) for part in parts]
        self.default = self._default(schema.get("default"))

    def is_tagged(self, version: int) -> bool:
        """Whether the field stands behind the others, with its tag."""
        return self.tag is not None and self.tagged.has(version)

    def _default(self, text: Any) -> Any:
        if text == "null":
            return None
        if self.is_array:
            return []
        if self.fields is not None:
            return {}
        if self.kind == "bool":
            return text in ("true", True)
        if self.kind == "float64":
            return float(text or 0)
        if self.kind in _NUMBERS:
            return int(str(text), 0) if text else 0
        others = {"string": text or "", "bytes": b"", "records": None, "uuid": UUID(int=0)}
        return others[self.kind]


class MessageSchema:
    """A request, a response, or another message that has bytes of its own."""

    def __init__(self, schema: Schema) -> None:
        self.name: str = schema["name"]
        self.flexible = Versions.parse(schema.get("flexibleVersions"))
        self.versions = Versions.parse(schema["validVersions"])
        shared = {part["name"]: part["fields"] for part in schema.get("commonStructs", ())}
        self.fields = [Field(part, shared, self.flexible) for part in schema["fields"]]


@cache
def _messages() -> Mapping[str, MessageSchema]:
    return {schema["name"]: MessageSchema(schema) for schema in load_schemas()}


@cache
def api_keys() -> Mapping[str, int]:
    """The keys of all APIs by name."""
    return {
        schema["name"].removesuffix("Request"): schema["apiKey"]
        for schema in load_schemas()
        if schema.get("type") == "request"
    }


def versions_of(api: str, first: int = 0, last: int = 2**15) -> range:
    """Return the versions of an API that Kafka's schemas have, between two."""
    valid = _messages()[f"{api}Request"].versions
    return range(max(valid.first, first), min(valid.last, last) + 1)


# Writing.


def _write_unsigned(out: bytearray, number: int) -> None:
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def _write_length(out: bytearray, length: int | None, flexible: bool, short: bool = False) -> None:
    if flexible:
        _write_unsigned(out, 0 if length is None else length + 1)
    else:
        out += struct.pack(">h" if short else ">i", -1 if length is None else length)


def _write_one(out: bytearray, field: Field, version: int, value: Any, flexible: bool) -> None:
    if field.kind in _NUMBERS:
        out += struct.pack(_NUMBERS[field.kind], value)
    elif field.kind == "bool":
        out.append(bool(value))
    elif field.kind == "uuid":
        out += value.bytes
    elif field.kind == "string":
        text = None if value is None else value.encode(errors="surrogateescape")
        _write_length(out, None if text is None else len(text), flexible, short=True)
        out += text or b""
    elif field.fields is None:
        _write_length(out, None if value is None else len(value), flexible)
        out += value or b""
    else:
        _write_fields(out, field.fields, version, value, flexible)


def _write_field(out: bytearray, field: Field, version: int, value: Any) -> None:
    flexible = field.flexible.has(version)
    if field.is_array:
        _write_length(out, None if value is None else len(value), flexible)
        for one in value or ():
            _write_one(out, field, version, one, flexible)
        return
    if field.fields is not None and field.nullable.has(version):
        out += b"\xff" if value is None else b"\x01"
        if value is None:
            return
    _write_one(out, field, version, value, flexible)


def _write_fields(
    out: bytearray, fields: Sequence[Field], version: int, message: Message, flexible: bool
) -> None:
    unknown = set(message) - {field.name for field in fields}
    if unknown:
        raise CodecError(f"unknown fields {unknown} beside {[field.name for field in fields]}")
    tagged: list[tuple[int, Field]] = []
    for field in fields:
        if not field.versions.has(version):
            continue
        if not field.is_tagged(version):
            _write_field(out, field, version, message.get(field.name, field.default))
        elif message.get(field.name, field.default) != field.default:
            assert field.tag is not None
            tagged.append((field.tag, field))
    if flexible:
        _write_unsigned(out, len(tagged))
        for tag, field in sorted(tagged, key=lambda pair: pair[0]):
            part = bytearray()
            _write_field(part, field, version, message[field.name])
            _write_unsigned(out, tag)
            _write_unsigned(out, len(part))
            out += part


# Reading.


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.place = 0

    @property
    def left(self) -> int:
        return len(self._data) - self.place

    def number(self, layout: str) -> Any:
        part = self.take(struct.calcsize(layout))
        return struct.unpack(layout, part)[0]

    def take(self, length: int) -> bytes:
        if not 0 <= length <= self.left:
            raise CodecError(f"{length} bytes where {self.left} are left")
        self.place += length
        return self._data[self.place - length : self.place]

    def unsigned(self) -> int:
        number = shift = 0
        while True:
            (byte,) = self.take(1)
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    def length(self, flexible: bool, short: bool = False) -> int:
        return self.unsigned() - 1 if flexible else int(self.number(">h" if short else ">i"))


def _read_one(reader: _Reader, field: Field, version: int, flexible: bool) -> Any:
    if field.kind in _NUMBERS:
        return reader.number(_NUMBERS[field.kind])
    if field.kind == "bool":
        return reader.take(1) != b"\0"
    if field.kind == "uuid":
        return UUID(bytes=reader.take(16))
    if field.fields is not None:
        return _read_fields(reader, field.fields, version, flexible)
    is_text = field.kind == "string"
    length = reader.length(flexible, short=is_text)
    if length < 0:
        return None
    return reader.take(length).decode() if is_text else reader.take(length)


def _read_field(reader: _Reader, field: Field, version: int) -> Any:
    flexible = field.flexible.has(version)
    if field.is_array:
        count = reader.length(flexible)
        if count < 0:
            return None
        return [_read_one(reader, field, version, flexible) for _ in range(count)]
    if field.fields is not None and field.nullable.has(version) and reader.number(">b") < 0:
        return None
    return _read_one(reader, field, version, flexible)


def _read_fields(reader: _Reader, fields: Sequence[Field], version: int, flexible: bool) -> Message:
    message: Message = {}
    tagged: dict[int, Field] = {}
    for field in fields:
        if not field.versions.has(version):
            continue
        if field.is_tagged(version):
            assert field.tag is not None
            tagged[field.tag] = field
        else:
            message[field.name] = _read_field(reader, field, version)
    if flexible:
        for _ in range(reader.unsigned()):
            tag, length = reader.unsigned(), reader.unsigned()
            end = reader.place + length
            known = tagged.get(tag)
            if known is None:
                message[f"?tag{tag}"] = reader.take(length).hex()
            else:
                message[known.name + "~"] = _read_field(reader, known, version)
            if reader.place != end:
                raise CodecError(f"tag {tag} has another length than its field")
    return message


# Whole messages.


def request_bytes(
    api: str, version: int, body: Message, correlation: int, client_id: str | None
) -> bytes:
    """Return a request with its header, without the length before it."""
    schema = _messages()[f"{api}Request"]
    flexible = schema.flexible.has(version)
    out = bytearray(struct.pack(">hhi", api_keys()[api], version, correlation))
    name = None if client_id is None else client_id.encode()
    _write_length(out, None if name is None else len(name), flexible=False, short=True)
    out += name or b""
    if flexible:
        out += b"\0"  # no tagged fields in the header
    _write_fields(out, schema.fields, version, body, flexible)
    return bytes(out)


def read_response(api: str, version: int, data: bytes) -> tuple[int, Message]:
    """Return the correlation id and the body of a response.

    Raises:
        CodecError: the bytes are no response of this version.
    """
    schema = _messages()[f"{api}Response"]
    flexible = schema.flexible.has(version)
    reader = _Reader(data)
    correlation = reader.number(">i")
    if flexible and api_keys()[api] != _API_VERSIONS:
        for _ in range(reader.unsigned()):
            reader.unsigned()
            reader.take(reader.unsigned())
    message = _read_fields(reader, schema.fields, version, flexible)
    if reader.left:
        message["?trailing"] = reader.left
    return correlation, message


def message_bytes(name: str, version: int, message: Message) -> bytes:
    """Return another message, such as a ``ConsumerProtocolSubscription``, behind its version."""
    schema = _messages()[name]
    out = bytearray(struct.pack(">h", version))
    _write_fields(out, schema.fields, version, message, schema.flexible.has(version))
    return bytes(out)
