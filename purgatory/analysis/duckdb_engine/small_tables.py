"""Tables that this program fills: the settings of groups, and tables that a trace lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory.analysis.duckdb_engine.duckdb_types import duckdb_type, literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import duckdb


def make_table(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    columns: Mapping[str, str],
    rows: Sequence[tuple[object, ...]] = (),
) -> None:
    """Make a temporary table, in the place of one that is there.

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
