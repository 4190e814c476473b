"""The types of a trace's columns, and values of them, in DuckDB's words."""

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


def literal(value: object) -> str:
    """A value as SQL has it, for a statement without parameters: for these, DuckDB imports pandas.

    Args:
        value: None, a boolean, a whole number, a text whatever is in it, or a list of such.

    Raises:
        TypeError: it is something else.
    """
    match value:
        case None | bool() | int():
            return "NULL" if value is None else str(value)
        case str():
            texts = value.replace("'", "''").split("\0")
            return "(" + " || chr(0) || ".join(f"'{text}'" for text in texts) + ")"
        case list():
            return f"[{', '.join(map(literal, value))}]"
        case _:
            raise TypeError(f"{value!r} can't be written in SQL")
