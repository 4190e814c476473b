"""The quarantine of an analysis: looked for in one pass, and listed only if there is something."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
from pyspark.sql import SparkSession

from purgatory.analysis.catalog.task_output import TaskOutput
from purgatory.analysis.result_folder import write_table
from purgatory.analysis.traces.quarantine_table import QUARANTINE
from purgatory.analysis.traces.read_traces import quarantine_of, require_none
from purgatory.analysis.traces.row_check import RowCheck, check_rows
from purgatory.analysis.traces.survey import Survey
from purgatory.analysis.uris.uri_folder import OutputFolder, written_path
from purgatory.trace.trace_schema import TABLES

FOLDER = "quarantine"


def checked(
    session: SparkSession,
    found: Survey,
    tables: Collection[str] = tuple(TABLES),
    *,
    folder: OutputFolder | None = None,
    strict: bool = False,
) -> RowCheck:
    """Check all rows of some tables of traces; reads them once if they are clean.

    Args:
        session, found, tables: what is checked.
        folder: gets a folder `quarantine` with what is bad, if there is anything; None writes
            nothing. It is written by the tasks that find it, in no order: there may be as many
            rows as in the traces.
        strict: stop at what is bad.

    Raises:
        TraceError: strict, and there is something: the first, by file and line.
    """
    check = check_rows(session, found, tables)
    if not check.is_clean and (strict or folder is not None):
        bad = quarantine_of(session, found, tables)
        if strict:
            require_none(bad)
        if folder is not None:
            place = folder / FOLDER
            if isinstance(place, TaskOutput):
                place.save(bad)
            else:
                bad.write.parquet(written_path(place))
    return check


def write_none(folder: OutputFolder) -> None:
    """Write the quarantine of clean traces into a folder: a table without rows."""
    kinds = {"string": pa.string(), "bigint": pa.int64()}
    columns = pa.schema([(name, kinds[kind]) for name, kind in QUARANTINE.items()])
    write_table(columns.empty_table(), folder / FOLDER)
