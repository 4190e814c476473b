"""What `waits` and `occupancy` share: reading operations, the spans of runs, writing tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from purgatory.analysis.auditing.anomalies import Order
from purgatory.analysis.bucket_widths import MOST_POINTS
from purgatory.analysis.engines import sorting
from purgatory.analysis.opened_traces import Running, opened_traces
from purgatory.analysis.result_folder import write_sorted
from purgatory.analysis.result_rows import Row
from purgatory.analysis.run_times import FAULTS, fault_rows, us
from purgatory.analysis.traces.quarantine import checked
from purgatory.analysis.traces.survey import Trace
from purgatory.analysis.traces.trace_rows import read_table
from purgatory.analysis.waiting_results import Rows, shown_runs


@dataclass(frozen=True)
class Opened:
    """What a job works on: clean operations, how many bad ones there are, where to write."""

    session: SparkSession
    traces: Sequence[Trace]
    operations: DataFrame
    quarantine: Sequence[Row]
    folder: Path | None


@contextmanager
def opened(roots: Sequence[Path], out: Path | None, **how: Unpack[Running]) -> Iterator[Opened]:
    """A session with the operations of all traces in some folders, and the folder to write into.

    Bad rows and files are counted, and written into `quarantine` there; reads all operations.

    Args:
        roots, out, how: as `opened_traces` takes them; `out` gets a folder of Parquet per table.

    Raises:
        PipelineError: as `opened_traces` raises it.
    """
    with opened_traces(roots, out, **how) as run:
        traces = run.found.traces
        check = checked(
            run.session, run.found, ("operations",), folder=run.folder, strict=run.strict
        )
        operations = read_table(run.session, traces, "operations")
        yield Opened(run.session, traces, operations, check.counts(), run.folder)


def run_spans(session: SparkSession, traces: Sequence[Trace], operations: DataFrame) -> DataFrame:
    """The spans of runs, as `occupancy` takes them: `run_id`, `end_us` and `width_us`.

    A run ends where its head says, or where its last operation ends if that came later.
    """
    heads = session.createDataFrame(
        pa.table(
            {
                "run_id": pa.array([trace.run_id for trace in traces], pa.string()),
                "said_us": pa.array([us(trace.duration_ms) for trace in traces], pa.int64()),
            }
        )
    )
    last = operations.groupBy("run_id").agg(f.max("end_us").alias("last_us"))
    end_us = f.greatest("said_us", "last_us")
    return heads.join(last, "run_id", "left").select(
        "run_id", end_us.alias("end_us"), width_us(end_us).alias("width_us")
    )


def width_us(duration_us: Column) -> Column:
    """What `bucket_width_us` says of lengths of runs, as a column."""
    over = f.when(duration_us % MOST_POINTS > 0, 1).otherwise(0)
    whole = (duration_us - duration_us % MOST_POINTS) / MOST_POINTS
    least = f.greatest(whole.cast("bigint") + over, f.lit(1))
    unit = f.rpad(f.lit("1"), f.length(least.cast("string")), "0").cast("bigint")
    return (
        f.when(least <= unit, unit)
        .when(least <= 2 * unit, 2 * unit)
        .when(least <= 5 * unit, 5 * unit)
        .otherwise(10 * unit)
    )


def run_faults(session: SparkSession, traces: Sequence[Trace]) -> DataFrame:
    """The faults of all runs, as `peaks` takes them."""
    rows = [dict(zip(FAULTS, row, strict=True)) for row in fault_rows(traces)]
    return session.createDataFrame(pa.Table.from_pylist(rows, schema=_FAULTS))


_FAULTS = pa.schema(
    [(name, pa.string() if kind == "string" else pa.int64()) for name, kind in FAULTS.items()]
)


def written(run: Opened, tables: Mapping[str, DataFrame], orders: Mapping[str, Order]) -> Rows:
    """Write each table into a folder of its name, if one is wanted; gives rows for a terminal."""
    sortings = {name: sorting(order) for name, order in orders.items()}
    if run.folder is not None:
        for name, table in tables.items():
            write_sorted(table, run.folder / name, sortings[name])
    of_shown = f.col("run_id").isin(shown_runs(run.traces))

    def rows(name: str, condition: str, most: int) -> list[Row]:
        chosen = tables[name].where(of_shown).where(condition).orderBy(*sortings[name])
        found: list[Row] = chosen.limit(most).toArrow().to_pylist()
        return found

    return rows
