"""Records as batches of Arrow's columns."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from confluent_kafka import Message

from purgatory.source.schema import arrow_schema


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
