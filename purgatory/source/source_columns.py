"""The columns of the data source: those of Spark's own Kafka source, and the marked gap."""

from __future__ import annotations

_COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key: string, value: binary>>",
    "gap_before": "bigint",
}


def column_names(include_headers: bool) -> list[str]:
    """Return the names of the columns, in their order."""
    return [name for name in _COLUMNS if include_headers or name != "headers"]


def spark_schema(include_headers: bool) -> str:
    """Return the columns as Spark's DDL."""
    return ", ".join(f"{name} {_COLUMNS[name]}" for name in column_names(include_headers))
