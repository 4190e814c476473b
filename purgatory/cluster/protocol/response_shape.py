"""Where a response has its errors, and which part of it belongs to which part of the request.

Both come from `kio`'s description of an API's version: an array of the request and one of the
response belong together where their elements have the same names (a topic, a partition, a group)
and those of the response have an error. So a new API needs nothing here.

Ground rules: no state but a cache of what each version of an API is.
"""

from __future__ import annotations

import io
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as WireError
from kio.serial import entity_reader, entity_writer

from purgatory.cluster.protocol.wire import Request, build

ONE = ""
"""The name by which an array of plain values has each of them."""

_NAMES: Mapping[str, str] = {
    "name": "topic",
    "topic": "topic",
    "topic_name": "topic",
    "topic_id": "topic_id",
    "index": "partition",
    "partition": "partition",
    "partition_index": "partition",
    "partition_id": "partition",
    "group_id": "group_id",
    "key": "group_id",
    "transactional_id": "transactional_id",
    "producer_id": "producer_id",
    "member_id": "member_id",
    "group_instance_id": "group_instance_id",
    "resource_type": "resource_type",
    "resource_name": "resource_name",
    "user": "user",
}
"""What names an element, by what the field is called: different APIs call it differently."""

_PLAIN: Mapping[str, str] = {
    "partitions": "partition",
    "partition_indexes": "partition",
    "groups": "group_id",
    "group_ids": "group_id",
    "groups_names": "group_id",
    "coordinator_keys": "group_id",
    "topic_names": "topic",
    "transactional_ids": "transactional_id",
}
"""What the values of an array without structure name, by what the array is called."""

_USERS = frozenset({"users", "deletions", "upsertions"})
"""Arrays whose ``name`` is that of a user."""

_NOT_ASKED = frozenset({"forgotten_topics_data"})


class Level(NamedTuple):
    """One array of a response, of which each element may have an error.

    Args:
        answered: its name.
        asked: the arrays of the request whose elements it answers; none where it tells of what
            nobody named, as Metadata does of partitions.
        names: what names an element: how the response's field is called, by the name here.
        asked_names: the same for each of ``asked``.
        of: the class of an element.
        error: the field of the error, or None.
    """

    answered: str
    asked: tuple[str, ...]
    names: Mapping[str, str]
    asked_names: tuple[Mapping[str, str], ...]
    of: Any
    error: str | None

    @property
    def is_by_place(self) -> bool:
        """Whether elements are told apart by their places alone."""
        return bool(self.asked) and not self.names


class ResponseShape(NamedTuple):
    """A response: the field of an error of it all, or None; and arrays, each in the one before."""

    of: Any
    error: str | None
    levels: tuple[Level, ...]


@cache
def response_shape(api_key: int, version: int) -> ResponseShape:
    """Return where the responses of a version of an API have their errors."""
    answer = load_response_schema(api_key, version)
    asked = load_request_schema(api_key, version)
    return ResponseShape(answer, _error_of(answer), tuple(_levels(answer, (asked,))))


def _levels(answer: Any, asked: tuple[Any, ...]) -> Iterator[Level]:
    for name, of in structures_of(answer):
        if not _has_error(of):
            continue
        pairs = list(_asked_for(of, asked))
        keys = {key for _, _, names in pairs for key in names}
        told = _names_of(of, name)
        names = {key: one for key, one in told.items() if key in keys} if pairs else told
        yield Level(
            name,
            tuple(array for array, _, _ in pairs),
            names,
            tuple({key: one[key] for key in names if key in one} for _, _, one in pairs),
            of,
            _error_of(of),
        )
        yield from _levels(of, tuple(inner for _, inner, _ in pairs if inner is not None))
        return


def _asked_for(of: Any, asked: tuple[Any, ...]) -> Iterator[tuple[str, Any, Mapping[str, str]]]:
    """Return the arrays of a request that an array of the response belongs to: their names, the
    class of their elements, and what names those."""
    told = set(_names_of(of, ""))
    for one in asked:
        structures = dict(structures_of(one))
        for field in fields(one):
            if field.name in _NOT_ASKED or not _is_array(one, field.name):
                continue
            inner = structures.get(field.name)
            names: Mapping[str, str]
            if inner is None:
                names = {_PLAIN.get(field.name, ""): ONE}
            else:
                names = _names_of(inner, field.name)
            if told & set(names) or (inner is not None and not _told_beside_errors(of)):
                yield field.name, inner, names


def _names_of(of: Any, array: str) -> Mapping[str, str]:
    names = {_NAMES[one.name]: one.name for one in fields(of) if one.name in _NAMES}
    if array in _USERS:
        names = {"user" if key == "topic" else key: name for key, name in names.items()}
    return names


def _told_beside_errors(of: Any) -> bool:
    """Whether an element has anything but errors and arrays."""
    return any(
        not one.name.startswith("error_") and not _is_array(of, one.name) for one in fields(of)
    )


def _has_error(of: Any) -> bool:
    return _error_of(of) is not None or any(_has_error(inner) for _, inner in structures_of(of))


def _error_of(of: Any) -> str | None:
    return next((f.name for f in fields(of) if f.metadata.get("kafka_type") == "error_code"), None)


@cache
def structures_of(of: Any) -> tuple[tuple[str, Any], ...]:
    """Return the arrays of structures in a class of `kio`, and the classes of their elements."""
    arrays = ((one.name, _element_of(hints_of(of)[one.name])) for one in fields(of))
    return tuple((name, inner) for name, inner in arrays if is_dataclass(inner))


@cache
def hints_of(of: Any) -> Mapping[str, Any]:
    """Return the types of a class's fields."""
    return typing.get_type_hints(of)


def _is_array(of: Any, name: str) -> bool:
    return _element_of(hints_of(of)[name]) is not None


def _element_of(hint: Any) -> Any:
    """The type of an array's elements, or None for what is no array."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    return typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else None


_UNKNOWN = -1
_UNKNOWN_WORDS = frozenset({"offset", "epoch", "timestamp", "watermark", "port", "num", "factor"})
_IDS = frozenset({"node_id", "leader_id", "controller_id", "generation_id", "producer_id"})


def read_response(request: Request, answer: Mapping[str, Any] | bytes) -> Any:
    """Return a response, by its fields or as its body's bytes, as an entity of `kio`."""
    of = response_shape(request.api_key, request.api_version).of
    if isinstance(answer, bytes):
        return entity_reader(of)(answer, 0)[0]
    return build(of, answer)


def write_response(entity: Any) -> bytes:
    """Return the bytes of a response's body."""
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def blank(of: Any, values: Mapping[str, Any]) -> Any:
    """Return an entity that has these values, and what a response with an error has beside them."""
    given = {}
    for field in fields(of):
        if field.name in values and values[field.name] is not None:
            given[field.name] = values[field.name]
        elif field.default is MISSING and field.default_factory is MISSING:
            given[field.name] = _nothing(
                hints_of(of)[field.name], field.metadata.get("kafka_type"), field.name
            )
    return of(**given)


def _nothing(hint: Any, kafka_type: str | None, name: str) -> Any:
    if type(None) in typing.get_args(hint):
        return "" if name == "metadata" else None  # of a committed offset: Kafka has none there
    if typing.get_origin(hint) is tuple:
        return ()
    if is_dataclass(hint):
        return blank(hint, {})
    match kafka_type:
        case "error_code":
            return WireError.none
        case "timedelta_i32" | "timedelta_i64":
            return timedelta(0)
        case "datetime_i64":
            return datetime(1970, 1, 1, tzinfo=UTC)
        case "string":
            return ""
        case "bytes" | "records":
            return b""
        case "bool":
            return False
    return _UNKNOWN if name in _IDS or _UNKNOWN_WORDS & set(name.split("_")) else 0
