"""What `waits` and `occupancy` share: reading operations, the spans of runs, writing tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Unpack

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from purgatory.pipeline.engines.result_folder import OutputFolder, write_sorted
from purgatory.pipeline.engines.results import (
    OccupancyResults,
    Rows,
    WaitResults,
    occupancy_results,
    shown_runs,
    wait_results,
)
from purgatory.pipeline.engines.spark.connect import arrow_table
from purgatory.pipeline.engines.spark.opened_traces import Running, opened_traces
from purgatory.pipeline.ingest.spark_quarantine import checked
from purgatory.pipeline.ingest.spark_reader import read_table
from purgatory.pipeline.ingest.stores import Place
from purgatory.pipeline.ingest.trace_set import Trace
from purgatory.pipeline.jobs.expressions import sorting
from purgatory.pipeline.jobs.occupancy import hot_keys, littles_law, occupancy, occupancy_of_keys
from purgatory.pipeline.jobs.peaks import peaks
from purgatory.pipeline.jobs.run_spans import FAULTS, SPANS, fault_rows, span_rows
from purgatory.pipeline.jobs.tables import OCCUPANCY_ORDERS, Exactness, wait_orders
from purgatory.pipeline.jobs.waits import expiry, slowest, waits
from purgatory.pipeline.result_rows import Order, Row


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
def opened(roots: Sequence[Place], out: Place | None, **how: Unpack[Running]) -> Iterator[Opened]:
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


# The command `waits` as a function, by Spark: traces in, its tables out.


def tell_waits(
    roots: Sequence[Place],
    out: Place | None = None,
    *,
    window_us: int | None = None,
    percentiles: Exactness = "exact",
    number: int = 10,
    with_expiry: bool = False,
    **how: Unpack[Running],
) -> WaitResults:
    """Compute the tables `waits` and `slowest` of all traces in some folders, and write them.

    Args:
        roots, out, how: as `opened_traces` takes them.
        window_us: as `waits` takes it.
        percentiles: as `waits` takes it.
        number: how many of the slowest operations of each run and purgatory.
        with_expiry: whether the table `expiry` is computed too: when and where operations expired,
            for a page.

    Raises:
        PipelineError: the traces, the place for the results or the session are not as they must
            be; in that case `out` is as it was.
    """
    orders = wait_orders(with_expiry=with_expiry)
    with opened(roots, out, **how) as run:
        table = waits(run.operations, window_us=window_us, by_topic=True, percentiles=percentiles)
        tables = {
            "waits": table.persist(),
            "slowest": slowest(run.operations, number).persist(),
        }
        if with_expiry:
            tables["expiry"] = expiry(run.operations).persist()
        rows = written(run, tables, orders)
        return wait_results(run.traces, run.quarantine, rows, with_expiry=with_expiry)


# The command `occupancy` as a function, by Spark: traces in, its tables out.


def tell_occupancy(
    roots: Sequence[Place],
    out: Place | None = None,
    *,
    number: int = 10,
    with_sizes: bool = False,
    **how: Unpack[Running],
) -> OccupancyResults:
    """Compute what was parked over time in all traces in some folders, and write the tables.

    Args:
        roots, out, how: as `opened_traces` takes them.
        number: how many hot keys of each run and purgatory.
        with_sizes: whether sizes over all brokers are given too, for a page.

    Raises:
        PipelineError: the traces, the place for the results or the session are not as they must
            be; in that case `out` is as it was.
    """
    with opened(roots, out, **how) as run:
        traces, operations = run.traces, run.operations
        spans = span_table(run.session, traces, run.last_ends_us)
        table = occupancy(operations, spans).persist()
        hot = hot_keys(operations, spans, number).persist()
        highest = peaks(operations, table, spans, run_faults(run.session, traces)).persist()
        law = littles_law(operations, table, spans).persist()
        keys = occupancy_of_keys(operations, spans, hot)
        tables = {
            "occupancy": table,
            "littles_law": law,
            "peaks": highest,
            "hot_keys": hot,
            "key_occupancy": keys,
        }
        rows = written(run, tables, OCCUPANCY_ORDERS)
        return occupancy_results(traces, run.quarantine, rows, with_sizes=with_sizes)
