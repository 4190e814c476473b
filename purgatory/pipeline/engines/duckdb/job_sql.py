"""Runs the SQL of a job, which is generated from its source, on the tables of a connection.

Beside that: types and values in DuckDB's words, the small tables that this program fills, and the
tables of the result, as rows and as Parquet.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import duckdb
    import pyarrow as pa

    from purgatory.pipeline.result_rows import Order


_END = ";\n"
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


def read_statements(job: str) -> Iterator[str]:
    """The statements of a job, in their order; each makes a temporary table."""
    text = (files("purgatory.pipeline.engines.duckdb") / "sql" / f"{job}.sql").read_text("utf-8")
    return (statement for statement in text.split(_END) if statement)


def run_job(connection: duckdb.DuckDBPyConnection, job: str, **options: int | None) -> None:
    """Make the tables of a job from the existing tables of a trace.

    Args:
        connection: with the tables.
        job: its name.
        options: the numbers that the job takes; some may be None.
    """
    for name, number in options.items():
        value = "NULL" if number is None else f"{number:d}"
        connection.execute(f"SET VARIABLE {name} = {value}::BIGINT")
    for statement in read_statements(job):
        connection.execute(statement)


def order_by(order: Order) -> str:
    """An order as SQL; nulls come first, as they do in Spark."""
    return ", ".join(
        (
            f'"{name}"'
            if among is None
            else f'list_position([{", ".join(repr(value) for value in among)}], "{name}")'
        )
        + " NULLS FIRST"
        for name, among in order
    )


# Tables that this program fills: the settings of groups, and tables that a trace lacks.


def make_table(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    columns: Mapping[str, str],
    rows: Sequence[tuple[object, ...]] = (),
) -> None:
    """Create or replace a temporary table.

    Args:
        connection: which gets it.
        name: the table's.
        columns: their types, in Spark's words.
        rows: few.
    """
    kinds = ", ".join(f'"{column}" {duckdb_type(kind)}' for column, kind in columns.items())
    connection.execute(f'CREATE OR REPLACE TEMP TABLE "{name}" ({kinds})')
    if rows:
        values = ", ".join(f"({', '.join(map(literal, row))})" for row in rows)
        connection.execute(f'INSERT INTO "{name}" VALUES {values}')


# The tables of a result in DuckDB: as rows, and as Parquet.


def select_rows(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    order: Order,
    condition: str = "true",
    most: int | None = None,
) -> list[dict[str, Any]]:
    """The rows of a table for which a condition holds, in order; the first `most`, or all."""
    rows: list[dict[str, Any]] = select_table(connection, table, order, condition, most).to_pylist()
    return rows


def select_table(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    order: Order,
    condition: str = "true",
    most: int | None = None,
) -> pa.Table:
    """What `select_rows` gives, as a table of Arrow."""
    limit = "" if most is None else f" LIMIT {most:d}"
    chosen = f"SELECT * FROM {table} WHERE {condition} ORDER BY {order_by(order)}{limit}"
    return connection.execute(chosen).to_arrow_table()


def write_table(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    order: Order,
    folder: Path,
    condition: str = "true",
) -> None:
    """Write a table, or what of it a condition chooses, as one file in the folder of its name."""
    (folder / table).mkdir()
    path = str(folder / table / "part-00000.parquet").replace("'", "''")
    rows = f"SELECT * FROM {table} WHERE {condition} ORDER BY {order_by(order)}"
    connection.execute(f"COPY ({rows}) TO '{path}' (FORMAT parquet, COMPRESSION zstd)")
