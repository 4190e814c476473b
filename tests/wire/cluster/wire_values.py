"""Requests of every API and version, with as little in them as there can be, as bytes."""

from __future__ import annotations

import types
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from io import BytesIO
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_batch
from kio.serial import entity_reader, entity_writer

from purgatory.cluster.api.registry import SUPPORTED

ALL_VERSIONS = [
    (api_key, version)
    for api_key, (oldest, newest) in SUPPORTED.items()
    for version in range(oldest, newest + 1)
]
"""Every API with every version that is served."""

CLIENT_ID = "a-test"

RECORD_TIME_MS = 1_700_000_000_000
"""When all records were made."""


def request_frame(
    api_key: int,
    version: int,
    correlation_id: int,
    values: Mapping[str, Any] | None = None,
    client_id: str = CLIENT_ID,
) -> bytes:
    """Return a request, without its length; fields missing in ``values`` are empty or null, and
    fields that the version lacks are left out."""
    request_class = _request_class(api_key, version)
    header_class = request_class.__header_schema__
    header = {
        "request_api_key": api_key,
        "request_api_version": version,
        "correlation_id": correlation_id,
        "client_id": client_id,
    }
    buffer = BytesIO()
    entity_writer(header_class)(buffer, fill(header_class, header))
    entity_writer(request_class)(buffer, fill(request_class, values or {}))
    return buffer.getvalue()


def read_response(api_key: int, version: int, frame: bytes) -> tuple[int, Any]:
    """Return an answer's correlation id and body.

    Raises:
        AssertionError: there is more in the frame than that.
    """
    response_class = _response_class(api_key, version)
    header, after = entity_reader(response_class.__header_schema__)(frame, 0)
    body, length = entity_reader(response_class)(frame, after)
    assert after + length == len(frame), "something follows the answer"
    return header.correlation_id, body


_request_class, _response_class = cache(load_request_schema), cache(load_response_schema)


def fill(entity_class: Any, values: Mapping[str, Any]) -> Any:
    """Make an entity of `kio`; what ``values`` doesn't say is its default, empty or null."""
    arguments = {}
    for name, convert, least in _fields(entity_class):
        if name in values:
            value = values[name]
            arguments[name] = value if convert is None or value is None else convert(value)
        elif least is not None:
            arguments[name] = least()
    return entity_class(**arguments)


_Convert = Callable[[Any], Any]


@cache
def _fields(entity_class: Any) -> Sequence[tuple[str, _Convert | None, Callable[[], Any] | None]]:
    """The fields of an entity: their names, conversions, and values for those without defaults."""
    hints = typing.get_type_hints(entity_class)
    return [
        (
            field.name,
            _conversion(hints[field.name]),
            partial(_least, hints[field.name], field.metadata.get("kafka_type"))
            if field.default is MISSING and field.default_factory is MISSING
            else None,
        )
        for field in fields(entity_class)
    ]


def _conversion(hint: Any) -> _Convert | None:
    hint = _not_none(hint)
    if typing.get_origin(hint) is tuple:
        of_item = _conversion(typing.get_args(hint)[0])
        return tuple if of_item is None else lambda value: tuple(map(of_item, value))
    if is_dataclass(hint):
        return lambda value: fill(hint, value) if isinstance(value, dict) else value
    return None


def _least(hint: Any, kafka_type: str | None) -> Any:
    if isinstance(hint, types.UnionType):
        return None
    if typing.get_origin(hint) is tuple:
        return ()
    if is_dataclass(hint):
        return fill(hint, {})
    if kafka_type in ("timedelta_i32", "timedelta_i64"):
        return timedelta(0)
    return {
        "string": "",
        "bytes": b"",
        "records": b"",
        "bool": False,
        "uuid": uuid.UUID(int=0),
    }.get(kafka_type or "", 0)


def _not_none(hint: Any) -> Any:
    if isinstance(hint, types.UnionType):
        return next(one for one in typing.get_args(hint) if one is not type(None))
    return hint


def record_batch(
    values: list[bytes],
    producer_id: int = -1,
    base_sequence: int = -1,
    epoch: int = -1,
    transactional: bool = False,
) -> bytes:
    """Return one record batch in Kafka's format 2."""
    now = datetime.fromtimestamp(RECORD_TIME_MS / 1_000, UTC)
    records = tuple(
        Record(attributes=0, timestamp=now, offset=n, key=None, value=value, headers=())  # type: ignore[arg-type]
        for n, value in enumerate(values)
    )
    buffer = BytesIO()
    write_batch(
        buffer,
        NewRecordBatch(
            producer_id=producer_id,  # type: ignore[arg-type]
            producer_epoch=epoch,  # type: ignore[arg-type]
            base_sequence=base_sequence,  # type: ignore[arg-type]
            attributes=0x10 if transactional else 0,  # type: ignore[arg-type]
            records=records,
        ),
    )
    return buffer.getvalue()


def keyed_batch(rows: Sequence[tuple[bytes | None, int]]) -> bytes:
    """Return a batch in format 2 of records with these keys and times, in ms since 1970."""
    records = tuple(
        Record(
            attributes=0,  # type: ignore[arg-type]
            timestamp=datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms),  # type: ignore[arg-type]
            offset=number,  # type: ignore[arg-type]
            key=key,
            value=b"v",
            headers=(),
        )
        for number, (key, time_ms) in enumerate(rows)
    )
    buffer = BytesIO()
    none = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1, "attributes": 0}
    write_batch(buffer, NewRecordBatch(records=records, **none))  # type: ignore[arg-type]
    return buffer.getvalue()
