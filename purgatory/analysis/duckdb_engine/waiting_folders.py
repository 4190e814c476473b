"""The waits in traces on disk, in this process: what is shown, and the tables as Parquet."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Unpack

from purgatory.analysis.duckdb_engine.analysis_tables import expiry_table
from purgatory.analysis.duckdb_engine.opened_tables import OpenedTables, opened_tables
from purgatory.analysis.duckdb_engine.ordered_results import rows_of, write_table
from purgatory.analysis.duckdb_engine.small_tables import make_table
from purgatory.analysis.duckdb_engine.waiting_tables import (
    cause_tables,
    occupancy_table,
    slowest_table,
    waits_table,
)
from purgatory.analysis.run_times import FAULTS, SPANS, fault_rows, span_rows
from purgatory.analysis.running import RunningAnywhere
from purgatory.analysis.traces.quarantine_table import QUARANTINE_ORDER
from purgatory.analysis.waiting_orders import OCCUPANCY_ORDERS, wait_orders
from purgatory.analysis.waiting_results import (
    OccupancyResults,
    Rows,
    WaitResults,
    occupancy_results,
    shown_runs,
    wait_results,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from purgatory.analysis.result_rows import Row
    from purgatory.analysis.row_order import Order
    from purgatory.analysis.uris.places import Place
    from purgatory.analysis.waiting_words import Exactness


def tell_waits(
    roots: Sequence[Place],
    out: Place | None = None,
    *,
    window_us: int | None = None,
    percentiles: Exactness = "exact",
    number: int = 10,
    with_expiry: bool = False,
    **how: Unpack[RunningAnywhere],
) -> WaitResults:
    """Compute `waits` and `slowest` of all traces in some folders; `wait_results` without Spark.

    Args:
        roots, out, how: as `opened_tables` takes them.
        window_us, percentiles, number, with_expiry: as `wait_results.tell_waits` has them.

    Raises:
        PipelineError: one of them is not as it must be; in that case `out` is as it was.
    """
    with _opened(roots, out, "waits", **how) as (run, quarantine):
        waits_table(run.connection, window_us=window_us, by_topic=True, percentiles=percentiles)
        slowest_table(run.connection, number)
        if with_expiry:
            expiry_table(run.connection)
        rows = _written(run, wait_orders(with_expiry=with_expiry))
        return wait_results(run.found.traces, quarantine, rows, with_expiry=with_expiry)


def tell_occupancy(
    roots: Sequence[Place],
    out: Place | None = None,
    *,
    number: int = 10,
    with_sizes: bool = False,
    **how: Unpack[RunningAnywhere],
) -> OccupancyResults:
    """Compute what was parked over time in some traces; `occupancy_results` without Spark.

    Args:
        roots, out, how: as `opened_tables` takes them.
        number: how many hot keys of each run and purgatory.
        with_sizes: whether sizes over all brokers are given too, for a page.

    Raises:
        PipelineError: one of them is not as it must be; in that case `out` is as it was.
    """
    with _opened(roots, out, "occupancy", **how) as (run, quarantine):
        traces = run.found.traces
        make_table(run.connection, "spans", SPANS, span_rows(traces, run.read.last_ends_us()))
        make_table(run.connection, "faults", FAULTS, fault_rows(traces))
        occupancy_table(run.connection)
        cause_tables(run.connection, number)
        return occupancy_results(
            traces, quarantine, _written(run, OCCUPANCY_ORDERS), with_sizes=with_sizes
        )


@contextmanager
def _opened(
    roots: Sequence[Place], out: Place | None, job: str, **how: Unpack[RunningAnywhere]
) -> Iterator[tuple[OpenedTables, list[Row]]]:
    """The operations of traces, and how many of them are set aside; these are written."""
    with opened_tables(roots, out, ("operations",), job, **how) as run:
        set_aside = run.read.counts()
        if set_aside and run.folder is not None:
            write_table(run.connection, "quarantine", QUARANTINE_ORDER, run.folder)
        yield run, set_aside


def _written(run: OpenedTables, tables: Mapping[str, Order]) -> Rows:
    """Write tables, if that is wanted; gives rows of them."""
    if run.folder is not None:
        for name, order in tables.items():
            write_table(run.connection, name, order, run.folder)
    runs = ", ".join("'{}'".format(one.replace("'", "''")) for one in shown_runs(run.found.traces))

    def rows(name: str, condition: str, most: int) -> list[Row]:
        chosen = f"run_id IN ({runs}) AND {condition}"
        return list(rows_of(run.connection, name, tables[name], chosen, most))

    return rows
