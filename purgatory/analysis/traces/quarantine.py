"""The quarantine of an analysis: written as a table and counted, or a reason to stop."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from purgatory.analysis.result_rows import Row
from purgatory.analysis.traces.read_traces import TraceTables, counts_of, require_none
from purgatory.analysis.traces.survey import spark_path

FOLDER = "quarantine"


def write_quarantine(
    session: SparkSession, tables: TraceTables, folder: Path, *, strict: bool = False
) -> list[Row]:
    """Write what is wrong with some traces into `quarantine` in a folder; reads everything once.

    The rows are written by the tasks that found them, in no order: there may be as many as in the
    traces.

    Returns:
        How much there is of each reason, as `counts_of` has it; nothing for clean traces.

    Raises:
        TraceError: strict, and there is something: the first, by file and line.
    """
    place = spark_path(folder / FOLDER)
    tables.quarantine.write.parquet(place)
    written = session.read.parquet(place)
    counts: list[Row] = [row.asDict() for row in counts_of(written).collect()]
    if counts and strict:
        require_none(written)
    return counts


def damaged_runs(session: SparkSession, folder: Path) -> list[str]:
    """The runs of which something is in the quarantine that was written. O(runs) rows."""
    written = session.read.parquet(spark_path(folder / FOLDER))
    return [row["run_id"] for row in written.select("run_id").distinct().collect()]
