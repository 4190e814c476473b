"""The columns of the data source: those of Spark's own Kafka source, and the marked gap."""

from __future__ import annotations

import pyarrow as pa

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])

# The item's name is the one that Spark gives it: batches must match its schema exactly.
_ARROW_HEADERS = pa.list_(pa.field("element", _HEADER))

_COLUMNS: tuple[tuple[str, str, pa.DataType], ...] = (
    ("key", "binary", pa.binary()),
    ("value", "binary", pa.binary()),
    ("topic", "string", pa.string()),
    ("partition", "int", pa.int32()),
    ("offset", "bigint", pa.int64()),
    ("timestamp", "timestamp", pa.timestamp("us", tz="UTC")),
    ("timestampType", "int", pa.int32()),
    ("headers", "array<struct<key: string, value: binary>>", _ARROW_HEADERS),
    ("gap_before", "bigint", pa.int64()),
)


def spark_schema(include_headers: bool) -> str:
    """Return the columns as Spark's DDL."""
    return ", ".join(
        f"{name} {of_spark}"
        for name, of_spark, _ in _COLUMNS
        if include_headers or name != "headers"
    )


def arrow_schema(include_headers: bool) -> pa.Schema:
    """Return the same columns for Arrow."""
    return pa.schema(
        [(name, of_arrow) for name, _, of_arrow in _COLUMNS if include_headers or name != "headers"]
    )
