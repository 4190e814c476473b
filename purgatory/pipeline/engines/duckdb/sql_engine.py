"""DuckDB as an engine of the jobs' SQL: statements, small tables and results of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory.pipeline.jobs.chain import literal, quoted
from purgatory.pipeline.jobs.macros import duckdb_macros

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import duckdb
    import pyarrow as pa

    from purgatory.pipeline.jobs.chain import Statement


class DuckDBEngine:
    """`engines.engine.SqlEngine` on a connection.

    Args:
        connection: belongs to the engine: temporary tables and settings are made in it.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection
        connection.execute("SET default_null_order = 'NULLS_FIRST_ON_ASC_LAST_ON_DESC'")
        for macro in duckdb_macros():
            connection.execute(macro)

    def run(self, statements: Iterable[Statement]) -> None:
        for one in statements:
            kind = "TABLE" if one.kept else "VIEW"
            self.connection.execute(f"CREATE OR REPLACE TEMP {kind} {one.name} AS {one.query}")

    def make_table(
        self, name: str, columns: Mapping[str, str], rows: Sequence[tuple[object, ...]] = ()
    ) -> None:
        make_table(self.connection, name, columns, rows)

    def query(self, query: str) -> pa.Table:
        return self.connection.execute(query).to_arrow_table()


def make_table(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    columns: Mapping[str, str],
    rows: Sequence[tuple[object, ...]] = (),
) -> None:
    """Make or replace a temporary table of few rows; arguments are those of `SqlEngine`.

    The rows are written into the statement: DuckDB imports pandas for parameters.
    """
    kinds = ", ".join(f"{quoted([column])} {duckdb_type(kind)}" for column, kind in columns.items())
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {quoted([name])} ({kinds})")
    if rows:
        values = ", ".join(f"({', '.join(map(literal, row))})" for row in rows)
        connection.execute(f"INSERT INTO {quoted([name])} VALUES {values}")


def duckdb_type(kind: str) -> str:
    """The type that Spark calls `kind`."""
    return "VARCHAR[]" if kind == "array<string>" else kind
