"""Traces in tables of a catalog: which runs they have, and what is known of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.ingest.column_mapping import ColumnMapping, sources_of
from purgatory.pipeline.ingest.row_rules import quoted
from purgatory.pipeline.ingest.stores import CatalogTable
from purgatory.pipeline.ingest.trace_files import Part, head_of, part_of
from purgatory.pipeline.ingest.trace_set import Survey, Trace
from purgatory.trace.trace_schema import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from purgatory.pipeline.ingest.stores import TableName


RUNS = "runs"
"""The table of what is known of each run, which may be missing; a trace has `run.json` for it."""


def catalog_survey(
    session: SparkSession,
    names: Sequence[TableName],
    needed: Sequence[str],
    mapping: ColumnMapping | None = None,
) -> Survey:
    """The runs in some tables of a catalog.

    Looks for the ids of the runs: reads one column of each table.

    Args:
        session: has the catalog.
        names: tables, and databases whose tables have the names of a trace's.
        needed: the tables that must be there.
        mapping: where columns of other names are.

    Raises:
        TraceError: a table is not there, or lacks a column; no table has any run.
    """
    tables = _found(session, names)
    for table in needed:
        if table not in tables:
            raise TraceError(
                f"--from-table {' '.join(map(str, names))}: has no table {table!r}, which is "
                f"needed; give --from-table {table}=NAME"
            )
    parts = {
        table: _part(session, name, table, mapping)
        for table, name in tables.items()
        if table != RUNS
    }
    heads = _heads(session, tables.get(RUNS))
    run_ids = heads.keys() | _run_ids(session, parts, mapping)
    if not run_ids:
        raise TraceError(f"{', '.join(map(str, tables.values()))}: no run is in there")
    files = {table: [parts[table]] if table in parts else [] for table in TABLES}
    place = tables.get(RUNS, next(iter(tables.values())))
    traces = []
    for run_id in sorted(run_ids):
        head = head_of(heads.get(run_id, {"run_id": run_id}), run_id, place, written_elsewhere=True)
        traces.append(Trace(place, head, head.complete, files, mapping or {}))
    return Survey(traces, [])


def _found(session: SparkSession, names: Sequence[TableName]) -> dict[str, CatalogTable]:
    """The tables that are meant, by their names in a trace."""
    found: dict[str, CatalogTable] = {}
    for given in names:
        table, equals, name = str(given).rpartition("=")
        if not equals:
            table = name.rpartition(".")[2].strip("`")
        if equals and table not in (*TABLES, RUNS):
            raise TraceError(
                f"--from-table {given}: a trace has no table {table!r}; its tables are "
                f"{', '.join((*TABLES, RUNS))}"
            )
        if table in (*TABLES, RUNS):
            if not _exists(session, name):
                raise TraceError(f"--from-table {given}: there is no table {name}")
            found[table] = CatalogTable(name)
            continue
        inner = {one: f"{name}.{one}" for one in (*TABLES, RUNS)}
        there = {one: CatalogTable(full) for one, full in inner.items() if _is_there(session, full)}
        if not there:
            raise TraceError(
                f"--from-table {given}: is no table that a trace has, and no database with such "
                f"tables ({', '.join(TABLES)}); for a table of another name write "
                f"operations={name}"
            )
        found |= there
    return found


def _exists(session: SparkSession, name: str) -> bool:
    try:
        return session.catalog.tableExists(name)
    except PySparkException as error:
        raise TraceError(f"--from-table {name}: {_first_line(error)}") from error


def _is_there(session: SparkSession, name: str) -> bool:
    """Whether there is a table; not so where its database is none either."""
    with suppress(TraceError):
        return _exists(session, name)
    return False


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _part(
    session: SparkSession, name: CatalogTable, table: str, mapping: ColumnMapping | None
) -> Part:
    try:
        fields = session.table(str(name)).schema.fields
    except PySparkException as error:
        raise TraceError(f"{name}: can't be read: {_first_line(error)}") from error
    kinds = {field.name: field.dataType.simpleString() for field in fields}
    sources = sources_of(table, mapping)
    source = sources["run_id"]
    if source.name is not None and source.name not in kinds:
        raise TraceError(f"{name}: the column {source.name!r} (string) is missing")
    return part_of(name, table, sources, kinds, None)


def _run_ids(
    session: SparkSession, parts: Mapping[str, Part], mapping: ColumnMapping | None
) -> set[str]:
    """All ids in some tables, in one job for each table. O(rows), of one column."""
    found: set[str] = set()
    for table, part in parts.items():
        source = sources_of(table, mapping)["run_id"]
        if source.name is None:
            found.add(str(source.value))
            continue
        ids = session.table(str(part.path)).select(f.col(quoted(source.name)).alias("run_id"))
        found |= {row["run_id"] for row in ids.distinct().where("run_id IS NOT NULL").collect()}
    return found


def _heads(session: SparkSession, name: CatalogTable | None) -> dict[str, dict[str, Any]]:
    """What the table of runs says of each, with the fields of `run.json` that it has."""
    if name is None:
        return {}
    try:
        rows = session.table(str(name)).collect()
    except PySparkException as error:
        raise TraceError(f"{name}: can't be read: {_first_line(error)}") from error
    heads: dict[str, dict[str, Any]] = {}
    for row in rows:
        head = {key: value for key, value in row.asDict(True).items() if value is not None}
        run_id = head.get("run_id")
        if not isinstance(run_id, str):
            raise TraceError(f"{name}: run_id must be a text in each row, and is {run_id!r}")
        if run_id in heads:
            raise TraceError(f"{name}: has two rows of the run {run_id!r}")
        heads[run_id] = head
    return heads
