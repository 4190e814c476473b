"""Records in the formats that are read: Maxwell's JSON, and Debezium's envelopes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from purgatory.cdc.change import (
    MAX_VALUE_BYTES,
    Change,
    Record,
    decode_object,
    maxwell_change,
)
from purgatory.cdc.debezium.envelope import is_envelope, parse_envelope, split_schema

LogFormat = Literal["auto", "maxwell", "debezium"]
"""The format of a log; `auto` looks at each record."""

_SCHEMA = b'{"schema":'
FORMATS: tuple[LogFormat, ...] = get_args(LogFormat)


def parse_record(
    record: Record, log_format: LogFormat = "auto", *, max_bytes: int = MAX_VALUE_BYTES
) -> Change | None:
    """The change of a record; None for a tombstone, which repeats a delete. O(its length).

    Raises:
        InvalidChangeError: it is too long, or not in the format.
    """
    value = record.value
    if value is None:
        return None
    if value.startswith(_SCHEMA) and log_format != "maxwell" and len(value) <= max_bytes:
        found = split_schema(value)
        if found is not None:
            columns, payload = found
            return parse_envelope(payload, record.key, record.topic, columns)
    document = decode_object(value, max_bytes)
    if log_format == "auto":
        log_format = "maxwell" if _is_maxwells(document) else "debezium"
    if log_format == "maxwell":
        return maxwell_change(document)
    return parse_envelope(document, record.key, record.topic)


def _is_maxwells(document: Mapping[str, object]) -> bool:
    return ("type" in document and "database" in document) or not is_envelope(document)
