"""Requests and responses as bytes: Kafka's protocol, by the codec `kio`, and Produce by
`fixed_layouts`.

A frame is four bytes of length, a header that names the API, its version and the request's number,
and a body. Versions that `cluster.api.registry` lacks are refused; unknown tagged fields and bytes
behind the body are ignored, as in Kafka. Responses are plain values by name: fields that a version
lacks are omitted, and times are numbers of milliseconds.

Ground rules
------------
* No state but caches: of the fields of each class of `kio`, and of durations.
"""

from __future__ import annotations

import io
import struct
import types
import typing
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Any
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as WireError
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer
from kio.static.protocol import Entity

from purgatory.cluster.errors import BadRequestError, UnsupportedVersionError
from purgatory.cluster.protocol.fixed_layouts import PRODUCE, FixedLayout, ProduceBody, read_produce
from purgatory.cluster.protocol.frame_check import check_frame

_METADATA, API_VERSIONS = 3, 18
Versions = tuple[int, int]
"""The oldest and the newest version of an API."""

_START = struct.Struct(">hhi")
_RESPONSE_HEADER = struct.Struct(">ii")
_MILLISECOND = timedelta(milliseconds=1)
_MAX_MESSAGE_CHARACTERS = 1_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


ResponseBody = Mapping[str, Any] | FixedLayout | Entity | bytes
"""The body of a response: its fields by their names in `kio`, with lists of mappings for arrays and
without those that the version lacks; or an entity of `kio`; or the bytes that another broker sent.
"""


@dataclass(slots=True)
class Request:
    """One request, decoded."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: Any

    @property
    def api_name(self) -> str:
        """The name of the API, such as "produce"."""
        return api_key_map.get(self.api_key) or f"api_{self.api_key}"


def decode_request(frame: bytes, supported: Mapping[int, Versions]) -> Request:
    """Decode one frame, without its length.

    Args:
        frame: the bytes.
        supported: the APIs by key, with the oldest and the newest version of each.

    Raises:
        BadRequestError: the frame is no request: too short, of an unknown API, with wrong lengths.
        UnsupportedVersionError: the version of a known API is not supported.
    """
    if len(frame) < _START.size:
        raise BadRequestError(f"a request of {len(frame)} bytes is shorter than a header")
    api_key, api_version, correlation_id = _START.unpack_from(frame)
    versions = supported.get(api_key)
    if versions is None:
        raise BadRequestError(
            f"API {api_key} ({api_key_map.get(api_key, 'unknown')}) is not served"
        )
    if not versions[0] <= api_version <= versions[1]:
        raise UnsupportedVersionError(api_key, api_version, correlation_id)
    if api_key == PRODUCE:
        usual = read_produce(api_version, frame)
        if usual is not None:
            return Request(api_key, api_version, correlation_id, *usual)
    request_class, read_header, read_body = readers(load_request_schema, api_key, api_version)
    try:
        frame = check_frame(frame, request_class.__header_schema__, request_class)
        header, header_bytes = read_header(frame, 0)
        body, body_bytes = read_body(frame, header_bytes)
    except BadRequestError as error:
        raise BadRequestError(f"{api_key_map[api_key]} v{api_version}: {error}") from None
    except Exception as error:  # any error of the codec: the frame is invalid
        name = f"{api_key_map[api_key]} v{api_version}"
        raise BadRequestError(f"{name} can't be decoded: {error!r}") from error
    if header_bytes + body_bytes != len(frame):
        raise BadRequestError(
            f"{api_key_map[api_key]} v{api_version} has {len(frame)} bytes, "
            f"and its fields {header_bytes + body_bytes}"
        )
    if (api_key, api_version) == (_METADATA, 0) and not body.topics:
        body = replace(body, topics=None)  # "all", as later versions have it
    return Request(api_key, api_version, correlation_id, header.client_id, body)


def encode_request(request: Request) -> bytes:
    """Encode a request as a frame, with its length."""
    request_class = load_request_schema(request.api_key, request.api_version)
    body = request_entity(request)
    header_class = request_class.__header_schema__
    values = {
        "request_api_key": request.api_key,
        "request_api_version": request.api_version,
        "correlation_id": request.correlation_id,
        "client_id": request.client_id,
    }
    buffer = io.BytesIO()
    entity_writer(header_class)(buffer, build(header_class, values))
    entity_writer(request_class)(buffer, body)
    frame = buffer.getvalue()
    return len(frame).to_bytes(4, "big") + frame


def encode_response(
    api_key: int, api_version: int, correlation_id: int, response: ResponseBody
) -> bytes:
    """Encode a response as a frame, with its length.

    Args:
        api_key, api_version, correlation_id: those of the request.
        response: the body.
    """
    flexible = _writer(api_key, api_version)[2]
    # A client doesn't know the headers of responses before it has read that to ApiVersions.
    tags = b"\0" if flexible and api_key != API_VERSIONS else b""
    body = encode_body(api_key, api_version, response)
    start = _RESPONSE_HEADER.pack(4 + len(tags) + len(body), correlation_id)
    return b"".join((start, tags, body))


def encode_body(api_key: int, api_version: int, response: ResponseBody) -> bytes:
    """Encode the body of a response."""
    if isinstance(response, FixedLayout):
        return response.encode(api_version)
    if isinstance(response, bytes):
        return response
    response_class, write, _ = _writer(api_key, api_version)
    buffer = io.BytesIO()
    write(buffer, build(response_class, response))
    return buffer.getvalue()


def response_entity(request: Request, response: ResponseBody) -> Any:
    """Return the body of a response as an entity of `kio`."""
    response_class = load_response_schema(request.api_key, request.api_version)
    if isinstance(response, bytes):
        return entity_reader(response_class)(response, 0)[0]
    if isinstance(response, FixedLayout):
        return build(response_class, response.fields())
    return build(response_class, response)


def request_entity(request: Request) -> Any:
    """Return the body of a request as an entity of `kio`."""
    if not isinstance(request.body, ProduceBody):
        return request.body
    request_class = load_request_schema(request.api_key, request.api_version)
    values = {**asdict(request.body), "timeout": milliseconds(request.body.timeout)}
    return build(request_class, values)


def decode_response(request: Request, frame: bytes) -> Any:
    """Return the body of an encoded response, with its length, as an entity of `kio`."""
    flexible = _writer(request.api_key, request.api_version)[2]
    tag_bytes = 1 if flexible and request.api_key != API_VERSIONS else 0
    return response_entity(request, frame[_RESPONSE_HEADER.size + tag_bytes :])


def build(entity_class: Any, values: Any) -> Any:
    """Make an entity of `kio` from a mapping of plain values, ignoring unknown fields.

    An entity stays as it is.

    Raises:
        KeyError: a field without a default is missing.
    """
    if isinstance(values, entity_class):
        return values
    arguments = {}
    for name, convert, required in _plan(entity_class):
        if name in values:
            value = values[name]
            arguments[name] = value if convert is None else convert(value)
        elif required:
            raise KeyError(f"{entity_class.__qualname__}.{name}")
    return entity_class(**arguments)


@lru_cache(maxsize=256)  # clients send the same few again and again
def milliseconds(duration: timedelta) -> int:
    """Return a duration of the codec in milliseconds."""
    return duration // _MILLISECOND


@cache
def readers(
    load_schema: Callable[[int, int], Any], api_key: int, api_version: int
) -> tuple[Any, Callable[..., Any], Callable[..., Any]]:
    """Return the class of a request or a response, and the readers of its header and its body."""
    message_class = load_schema(api_key, api_version)
    read_header = entity_reader(message_class.__header_schema__)
    return message_class, read_header, entity_reader(message_class)


@cache
def _writer(api_key: int, api_version: int) -> tuple[type[Any], Callable[..., None], bool]:
    response_class = load_response_schema(api_key, api_version)
    return response_class, entity_writer(response_class), response_class.__flexible__


@cache
def _plan(entity_class: Any) -> list[tuple[str, Callable[[Any], Any] | None, bool]]:
    hints = _hints(entity_class)
    return [
        (
            field.name,
            _shortened
            if field.name.endswith("error_message")
            else _converter(hints[field.name], field.metadata.get("kafka_type")),
            field.default is MISSING and field.default_factory is MISSING,
        )
        for field in fields(entity_class)
    ]


def _converter(hint: Any, kafka_type: str | None) -> Callable[[Any], Any] | None:
    if kafka_type == "error_code":
        return WireError
    if kafka_type in ("timedelta_i32", "timedelta_i64"):
        return lambda value: timedelta(milliseconds=value)
    if kafka_type == "datetime_i64":
        return _time_of_day
    hint, optional = _without_none(hint)
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        convert = (lambda value: build(item, value)) if is_dataclass(item) else None
        return _tuple_converter(convert, optional)
    if is_dataclass(hint):
        return lambda value: value if value is None else build(hint, value)
    return None


def _shortened(message: str | None) -> str | None:
    # A message may repeat a client's text, and older versions have a limit of 32,767 bytes.
    return message and message[:_MAX_MESSAGE_CHARACTERS]


def _time_of_day(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else _EPOCH + timedelta(milliseconds=milliseconds)


def _tuple_converter(convert: Callable[[Any], Any] | None, optional: bool) -> Callable[[Any], Any]:
    def to_tuple(values: Any) -> tuple[Any, ...] | None:
        if values is None and optional:
            return None
        return tuple(values) if convert is None else tuple(map(convert, values))

    return to_tuple


def _without_none(hint: Any) -> tuple[Any, bool]:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        rest = [argument for argument in typing.get_args(hint) if argument is not type(None)]
        return (rest[0] if len(rest) == 1 else hint), True
    return hint, False


# Entities with default values.

_UNKNOWN = -1
_UNKNOWN_FIELD_WORDS = frozenset(
    {"offset", "epoch", "timestamp", "watermark", "port", "num", "factor"}
)
_UNKNOWN_ID_FIELDS = frozenset(
    {"node_id", "leader_id", "controller_id", "generation_id", "producer_id"}
)


def new_entity(entity_class: Any, values: Mapping[str, Any]) -> Any:
    """Make an entity of `kio` with those values that it has fields for.

    Other fields have their defaults, or those that Kafka sends with an error: empty, 0, or -1.
    """
    arguments = {}
    for field in fields(entity_class):
        if values.get(field.name) is not None:
            arguments[field.name] = values[field.name]
        elif field.default is MISSING and field.default_factory is MISSING:
            hint = _hints(entity_class)[field.name]
            arguments[field.name] = _empty(field.name, hint, field.metadata.get("kafka_type"))
    return entity_class(**arguments)


def given_entity(entity_class: Any, values: Mapping[str, Any]) -> Any:
    """Make an entity of `kio` from values as people and JSON give them; others are as in
    `new_entity`.

    Errors may be names, times numbers of milliseconds, bytes base64, ids texts.

    Raises:
        ValueError: there is no such field, or a value is not one of its type.
    """
    known = {field.name: field for field in fields(entity_class)}
    arguments = {}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"there is no field {name!r}; there are {', '.join(known)}")
        hint, _ = _without_none(_hints(entity_class)[name])
        try:
            arguments[name] = _given_value(hint, known[name].metadata.get("kafka_type"), value)
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"{name}={value!r}: {error}") from error
    return new_entity(entity_class, arguments)


def _given_value(hint: Any, kafka_type: str | None, value: Any) -> Any:
    if value is None or (isinstance(hint, type) and isinstance(value, hint)):
        return value
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return tuple(_given_value(item, kafka_type, element) for element in value)
    if is_dataclass(hint):
        return given_entity(hint, value)
    match kafka_type:
        case "error_code":
            return WireError[value.lower()] if isinstance(value, str) else WireError(value)
        case "timedelta_i32" | "timedelta_i64":
            return timedelta(milliseconds=value)
        case "datetime_i64":
            return _time_of_day(value)
        case "uuid":
            return UUID(value)
        case "bytes" | "records":
            return b64decode(value, validate=True) if isinstance(value, str) else bytes(value)
    return value


def _empty(name: str, hint: Any, kafka_type: str | None) -> Any:
    if type(None) in typing.get_args(hint):
        return "" if name == "metadata" else None  # of a committed offset, never null in Kafka
    if typing.get_origin(hint) is tuple:
        return ()
    if is_dataclass(hint):
        return new_entity(hint, {})
    is_unknown = name in _UNKNOWN_ID_FIELDS or not _UNKNOWN_FIELD_WORDS.isdisjoint(name.split("_"))
    values: Mapping[str | None, Any] = {
        "error_code": WireError.none,
        "timedelta_i32": timedelta(0),
        "timedelta_i64": timedelta(0),
        "datetime_i64": _EPOCH,
        "string": "",
        "bytes": b"",
        "records": b"",
        "bool": False,
    }
    return values.get(kafka_type, _UNKNOWN if is_unknown else 0)


def element_class(entity_class: Any, name: str) -> Any:
    """Return the class of a field, of its elements if it is an array."""
    hint, _ = _without_none(_hints(entity_class)[name])
    return typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint


@cache
def _hints(entity_class: Any) -> Mapping[str, Any]:
    return typing.get_type_hints(entity_class)
