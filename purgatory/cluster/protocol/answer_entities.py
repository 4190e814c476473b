"""Answers as entities of `kio`: read, written, and made with nothing but an error.

Ground rules: no state.
"""

from __future__ import annotations

import io
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from kio.schema.errors import ErrorCode as WireError
from kio.serial import entity_reader, entity_writer

from purgatory.cluster.protocol.answer_shape import answer_shape, hints_of
from purgatory.cluster.protocol.wire import Request, build

_UNKNOWN = -1
_UNKNOWN_WORDS = frozenset({"offset", "epoch", "timestamp", "watermark", "port", "num", "factor"})
_IDS = frozenset({"node_id", "leader_id", "controller_id", "generation_id", "producer_id"})


def read_answer(request: Request, answer: Mapping[str, Any] | bytes) -> Any:
    """Return an answer, by its fields or as its body's bytes, as an entity of `kio`."""
    of = answer_shape(request.api_key, request.api_version).of
    if isinstance(answer, bytes):
        return entity_reader(of)(answer, 0)[0]
    return build(of, answer)


def write_answer(entity: Any) -> bytes:
    """Return the bytes of an answer's body."""
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def blank(of: Any, values: Mapping[str, Any]) -> Any:
    """Return an entity that has these values, and what an answer with an error has beside them."""
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
