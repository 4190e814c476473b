"""Reads traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory.analysis.duckdb_engine.small_tables import make_table
from purgatory.trace.trace_schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import duckdb

    from purgatory.analysis.traces.survey import Survey


def read_tables(
    connection: duckdb.DuckDBPyConnection,
    found: Survey,
    names: Sequence[str],
    *,
    strict: bool = False,
) -> Mapping[str, int]:
    for name in names:
        make_table(connection, name, TABLES[name])
        for trace in found.traces:
            for part in trace.files[name]:
                connection.execute(
                    f"INSERT INTO {name} BY NAME SELECT * FROM read_parquet(?)", [str(part.path)]
                )
    return {}
