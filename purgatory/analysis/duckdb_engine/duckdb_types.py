"""The types of a trace's columns in DuckDB's words."""

from __future__ import annotations

_TYPES = {
    "string": "VARCHAR",
    "bigint": "BIGINT",
    "int": "INTEGER",
    "boolean": "BOOLEAN",
    "array<string>": "VARCHAR[]",
}


def duckdb_type(kind: str) -> str:
    """A type in DuckDB's words, from Spark's.

    Raises:
        KeyError: no column of a trace has it.
    """
    return _TYPES[kind]
