"""The check of all rows in one pass: the numbers of good rows, and of bad ones by reason.

The pass costs a small part of a list of bad rows, which clean traces do not need.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from purgatory.pipeline.engines.result_folder import OutputFolder, spark_output_path, write_table
from purgatory.pipeline.engines.spark.interrupts import job_threads
from purgatory.pipeline.ingest.spark_reader import (
    TableRows,
    id_texts,
    quarantine_table,
    require_distinct_ids,
    require_none,
)
from purgatory.pipeline.ingest.trace_set import QUARANTINE, RowCheck, TraceSet


def check_rows(
    session: SparkSession, trace_set: TraceSet, table_rows: Mapping[str, TableRows]
) -> RowCheck:
    """Check all rows of some tables in one pass; in two where ids are texts.

    Raises:
        TraceError: two texts became the same number.
    """
    tables = table_rows.keys()
    with job_threads(session) as submit:
        counting = [submit(_row_counts, rows) for rows in table_rows.values()]
        counts = [row for ended in counting for row in ended.result()]
    good: dict[str, dict[str, int]] = {table: {} for table in tables}
    bad: Counter[tuple[str, str, str]] = Counter()
    last_ends_us: dict[str, int] = {}
    has_texts = False
    for row in counts:
        run_id, table = row["run_id"], row["table"]
        has_texts |= row["has_texts"]
        # Files of other columns are counted apart.
        if row["reason"] is not None:
            bad[run_id, table, row["reason"]] += row["rows"]
            continue
        good[table][run_id] = good[table].get(run_id, 0) + row["rows"]
        if row["end_us"] is not None:
            last_ends_us[run_id] = max(row["end_us"], last_ends_us.get(run_id, row["end_us"]))
    quarantined = [file for file in trace_set.quarantined if file.table in (None, *tables)]
    if has_texts:
        require_distinct_ids(id_texts(session, trace_set.traces, tables))
    return RowCheck(good, bad, quarantined, last_ends_us, has_texts)


def _row_counts(rows: TableRows) -> list[dict[str, Any]]:
    counts: list[dict[str, Any]] = rows.row_counts().toArrow().to_pylist()
    return counts


# The quarantine of an analysis: counted in one pass, and listed only where a row is bad.


FOLDER = "quarantine"


def check_traces(
    session: SparkSession,
    trace_set: TraceSet,
    table_rows: Mapping[str, TableRows],
    *,
    folder: OutputFolder | None = None,
    strict: bool = False,
) -> RowCheck:
    """Check all rows of some tables of traces; reads them once if they are clean.

    Args:
        session, trace_set: have the traces.
        table_rows: the rows to check, by table.
        folder: gets a folder `quarantine` with the bad rows and files, if any; None writes
            nothing. The tasks that find the rows write them, in no order: there may be as many
            rows as in the traces.
        strict: stop at the first bad row or file.

    Raises:
        TraceError: strict, the first bad row or file, by file and line.
    """
    check = check_rows(session, trace_set, table_rows)
    if not check.is_clean and (strict or folder is not None):
        bad = quarantine_table(session, trace_set, table_rows.keys())
        if strict:
            require_none(bad)
        if folder is not None:
            bad.write.parquet(spark_output_path(folder / FOLDER))
    return check


def write_none(folder: OutputFolder) -> None:
    """Write the quarantine of clean traces into a folder: a table without rows."""
    kinds = {"string": pa.string(), "bigint": pa.int64()}
    columns = pa.schema([(name, kinds[kind]) for name, kind in QUARANTINE.items()])
    write_table(columns.empty_table(), folder / FOLDER)
