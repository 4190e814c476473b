"""What `waits` and `occupancy` share: reading operations, the spans of runs, writing tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Unpack

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from purgatory.analysis.engines import sorting
from purgatory.analysis.opened_traces import Running, opened_traces
from purgatory.analysis.result_folder import write_sorted
from purgatory.analysis.result_rows import Row
from purgatory.analysis.row_order import Order
from purgatory.analysis.run_times import FAULTS, SPANS, fault_rows, span_rows
from purgatory.analysis.spark.local_table import arrow_table
from purgatory.analysis.traces.quarantine import FOLDER, checked
from purgatory.analysis.traces.survey import Trace
from purgatory.analysis.traces.trace_rows import read_table
from purgatory.analysis.uris.places import Place
from purgatory.analysis.uris.uri_folder import OutputFolder
from purgatory.analysis.waiting_results import Rows, shown_runs


@dataclass(frozen=True)
class Opened:
    """What a job works on: clean operations, how many bad ones there are, where to write."""

    session: SparkSession
    traces: Sequence[Trace]
    operations: DataFrame
    quarantine: Sequence[Row]
    last_ends_us: Mapping[str, int]
    """When the last operation of each run that has some ended."""
    folder: OutputFolder | None


@contextmanager
def opened(
    roots: Sequence[Place], out: Place | None, results: Iterable[str], **how: Unpack[Running]
) -> Iterator[Opened]:
    """A session with the operations of all traces in some folders, and the folder to write into.

    Bad rows and files are counted, and written into `quarantine` there; reads all operations.

    Args:
        roots, out, how: as `opened_traces` takes them; `out` gets a folder of Parquet per table.
        results: the tables that will be written.

    Raises:
        PipelineError: as `opened_traces` raises it.
    """
    with opened_traces(roots, out, results=(*results, FOLDER), **how) as run:
        traces = run.found.traces
        check = checked(
            run.session, run.found, ("operations",), folder=run.folder, strict=run.strict
        )
        operations = read_table(run.session, traces, "operations")
        yield Opened(
            run.session, traces, operations, check.counts(), check.last_ends_us, run.folder
        )


def run_spans(session: SparkSession, traces: Sequence[Trace], operations: DataFrame) -> DataFrame:
    """The spans of runs, as `occupancy` takes them: `run_id`, `end_us` and `width_us`.

    A run ends where its head says, or where its last operation ends if that came later; this is
    looked up at once.
    """
    last = operations.groupBy("run_id").agg(f.max("end_us").alias("end_us")).toArrow()
    ends_us = dict(zip(last["run_id"].to_pylist(), last["end_us"].to_pylist(), strict=True))
    return span_table(session, traces, ends_us)


def span_table(
    session: SparkSession, traces: Sequence[Trace], last_ends_us: Mapping[str, int]
) -> DataFrame:
    """The spans of runs, where it is known when the last operation of each ended."""
    return _small_table(session, SPANS, span_rows(traces, last_ends_us))


def run_faults(session: SparkSession, traces: Sequence[Trace]) -> DataFrame:
    """The faults of all runs, as `peaks` takes them."""
    return _small_table(session, FAULTS, fault_rows(traces))


def _small_table(
    session: SparkSession, kinds: Mapping[str, str], rows: Sequence[tuple[object, ...]]
) -> DataFrame:
    types = {"string": pa.string(), "bigint": pa.int64()}
    schema = pa.schema([(name, types[kind]) for name, kind in kinds.items()])
    named = [dict(zip(kinds, row, strict=True)) for row in rows]
    return arrow_table(session, pa.Table.from_pylist(named, schema=schema))


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
