"""Records as batches of Arrow's columns."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from confluent_kafka import Message

from purgatory.source.source_columns import column_names

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])

_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    # The item's name is the one that Spark gives it: batches must match its schema exactly.
    "headers": pa.list_(pa.field("element", _HEADER)),
    "gap_before": pa.int64(),
}


def arrow_schema(include_headers: bool) -> pa.Schema:
    """Return the columns of the data source for Arrow."""
    return pa.schema([(name, _TYPES[name]) for name in column_names(include_headers)])


def arrow_batch(
    messages: Sequence[Message], gap_before: int | None, include_headers: bool
) -> pa.RecordBatch:
    """Return one batch, in the order of the messages.

    Args:
        messages: of one partition, at least one.
        gap_before: how many offsets were lost before the first; None: none.
        include_headers: whether there is a column of them.
    """
    times = [message.timestamp() for message in messages]
    columns = {
        "key": [message.key() for message in messages],
        "value": [message.value() for message in messages],
        "topic": pa.repeat(messages[0].topic(), len(messages)),
        "partition": pa.repeat(pa.scalar(messages[0].partition(), pa.int32()), len(messages)),
        "offset": [message.offset() for message in messages],
        "timestamp": [time_ms * 1000 if kind else None for kind, time_ms in times],
        # Here the kinds are counted from "none"; Spark, as Kafka, has that as -1.
        "timestampType": [kind - 1 for kind, _ in times],
        "gap_before": [gap_before] + [None] * (len(messages) - 1),
    }
    if include_headers:
        columns["headers"] = [_headers(message) for message in messages]
    schema = arrow_schema(include_headers)
    return pa.RecordBatch.from_arrays(
        [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for field in schema
            for column in (columns[field.name],)
        ],
        schema=schema,
    )


def _headers(message: Message) -> list[dict[str, object]] | None:
    headers = message.headers()
    if not headers:
        return None
    assert isinstance(headers, list)
    return [{"key": key, "value": value} for key, value in headers]


def offset_of(message: Message) -> int:
    """Return a message's offset, which one from a consumer always has."""
    offset = message.offset()
    assert offset is not None
    return offset
