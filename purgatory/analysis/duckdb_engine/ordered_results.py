"""The tables of a result in DuckDB: as rows, and as Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from purgatory.analysis.duckdb_engine.job_sql import ordered

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb
    import pyarrow as pa

    from purgatory.analysis.row_order import Order


def rows_of(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    order: Order,
    condition: str = "true",
    most: int | None = None,
) -> list[dict[str, Any]]:
    """The rows of a table for which a condition holds, in order; the first `most`, or all."""
    rows: list[dict[str, Any]] = table_of(connection, table, order, condition, most).to_pylist()
    return rows


def table_of(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    order: Order,
    condition: str = "true",
    most: int | None = None,
) -> pa.Table:
    """What `rows_of` gives, as a table of Arrow."""
    limit = "" if most is None else f" LIMIT {most:d}"
    chosen = f"SELECT * FROM {table} WHERE {condition} ORDER BY {ordered(order)}{limit}"
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
    place = str(folder / table / "part-00000.parquet").replace("'", "''")
    rows = f"SELECT * FROM {table} WHERE {condition} ORDER BY {ordered(order)}"
    connection.execute(f"COPY ({rows}) TO '{place}' (FORMAT parquet, COMPRESSION zstd)")
