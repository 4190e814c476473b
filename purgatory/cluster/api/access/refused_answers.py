"""Answers that refuse: all fields as Kafka has them by default, and a code where one belongs.

What was asked comes back by name and number, as far as the answer has fields for it: a list of the
request's is answered by the list of the answer's that stands at the same depth.

Ground rules: no state but a cache of what each class of `kio` is made of.
"""

from __future__ import annotations

import types
import typing
import uuid
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple

from kio.index import load_response_schema

from purgatory.cluster.protocol.wire import Request

_CODES = ("error_code", "partition_error_code")
_NAMES = frozenset(
    {"group_id", "key", "name", "resource_name", "topic", "topic_name", "transactional_id", "user"}
)
_NUMBERS = frozenset({"index", "partition", "partition_id", "partition_index"})
_IDENTITIES = _NAMES | _NUMBERS | {"producer_id", "resource_type", "topic_id"}
"""The fields that say what a part is about: they come back as they were asked."""
_ALSO_CALLED = {"partition_index": "partition", "topic_name": "name", "user": "name"}
_LEAST = {
    "string": "",
    "bytes": b"",
    "records": b"",
    "bool": False,
    "uuid": uuid.UUID(int=0),
}
_UNKNOWN_OFFSETS = frozenset({"offset", "base_offset", "committed_offset", "low_watermark"})


class _Field(NamedTuple):
    name: str
    item: Any  # the class of a list's elements, or of a structure; else None
    is_list: bool
    may_be_null: bool
    least: Any
    has_default: bool


def refused_answer(
    request: Request, code: int, answered: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return an answer that refuses a whole request.

    Args:
        request: what was asked.
        code: of the refusal. It stands at the top where the answer has one there, else in each of
            the parts.
        answered: the answer's lists, by the request's lists that they answer.
    """
    answer_class = load_response_schema(request.api_key, request.api_version)
    values = _values(answer_class, None, code)
    if not _codes_of(answer_class):
        for asked, answer_field in (answered or {}).items():
            parts = getattr(request.body, asked, None) or ()
            values[answer_field] = [refused_part(request, answer_field, one, code) for one in parts]
    return values


def refused_part(request: Request, answer_field: str, part: Any, code: int) -> dict[str, Any]:
    """Return the element of an answer's list that refuses a part of the request.

    Args:
        request: what was asked.
        answer_field: the list.
        part: an element of one of the request's lists: an object, a name or a number.
        code: of the refusal.
    """
    answer_class = load_response_schema(request.api_key, request.api_version)
    [field] = [one for one in _fields(answer_class) if one.name == answer_field]
    return _values(field.item, part, code)


def _values(answer_class: Any, part: Any, code: int) -> dict[str, Any]:
    codes = _codes_of(answer_class)
    values: dict[str, Any] = {}
    for field in _fields(answer_class):
        if field.name in codes:
            values[field.name] = code
        elif field.is_list:
            values[field.name] = () if codes or part is None else _echoed(field, part, code)
        elif field.item is not None:
            if not field.has_default:
                values[field.name] = None if field.may_be_null else _values(field.item, None, code)
        else:
            value = _named(field, part)
            if value is not None:
                values[field.name] = value
            elif not field.has_default:
                values[field.name] = -1 if field.name in _UNKNOWN_OFFSETS else field.least
    return values


def _echoed(field: _Field, part: Any, code: int) -> list[dict[str, Any]]:
    """Refuse each element of the one list that the part has."""
    lists = [value for value in _attributes(part).values() if isinstance(value, tuple)]
    if len(lists) != 1 or field.item is None:
        return []
    return [_values(field.item, one, code) for one in lists[0]]


def _named(field: _Field, part: Any) -> Any:
    """Return what a part of the request has for a field of the answer, None for nothing."""
    if field.name not in _IDENTITIES:
        return None
    if isinstance(part, str):
        return part if field.name in _NAMES else None
    if isinstance(part, int):
        return part if field.name in _NUMBERS else None
    attributes = _attributes(part)
    return attributes.get(field.name, attributes.get(_ALSO_CALLED.get(field.name, "")))


def _attributes(part: Any) -> dict[str, Any]:
    if not is_dataclass(part):
        return {}
    return {field.name: getattr(part, field.name) for field in fields(part)}


def _codes_of(answer_class: Any) -> list[str]:
    return [field.name for field in _fields(answer_class) if field.name in _CODES]


@cache
def _fields(answer_class: Any) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(answer_class)
    found = []
    for one in fields(answer_class):
        inner = _inner(hints[one.name])
        kafka_type = one.metadata.get("kafka_type", "")
        found.append(
            _Field(
                one.name,
                inner.item,
                inner.is_list,
                inner.may_be_null,
                None if inner.may_be_null else _LEAST.get(kafka_type, 0),
                one.default is not MISSING or one.default_factory is not MISSING,
            )
        )
    return tuple(found)


class _Inner(NamedTuple):
    item: Any
    is_list: bool
    may_be_null: bool


def _inner(hint: Any) -> _Inner:
    may_be_null = False
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        may_be_null = True
        [hint] = [one for one in typing.get_args(hint) if one is not type(None)]
    is_list = typing.get_origin(hint) is tuple
    if is_list:
        hint = typing.get_args(hint)[0]
    return _Inner(hint if is_dataclass(hint) else None, is_list, may_be_null)
