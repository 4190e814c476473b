"""The waits of operations that a connection has: tables of the same names as by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory.pipeline.engines.duckdb.job_sql import run_job
from purgatory.pipeline.jobs.tables import Exactness, check_number, check_waits

if TYPE_CHECKING:
    import duckdb
from contextlib import contextmanager
from typing import TYPE_CHECKING, Unpack

from purgatory.pipeline.engines.duckdb.job_sql import make_table, rows_of, write_table
from purgatory.pipeline.engines.duckdb.opened_tables import OpenedTables, opened_tables
from purgatory.pipeline.engines.engine import RunningAnywhere
from purgatory.pipeline.engines.results import (
    OccupancyResults,
    Rows,
    WaitResults,
    occupancy_results,
    shown_runs,
    wait_results,
)
from purgatory.pipeline.ingest.quarantine import QUARANTINE_ORDER
from purgatory.pipeline.jobs.run_spans import FAULTS, SPANS, fault_rows, span_rows
from purgatory.pipeline.jobs.tables import MOST_KEYS, OCCUPANCY_ORDERS, check_keys, wait_orders

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from purgatory.pipeline.ingest.stores import Place
    from purgatory.pipeline.jobs.tables import Exactness
    from purgatory.pipeline.result_rows import Order, Row


def waits_table(
    connection: duckdb.DuckDBPyConnection,
    *,
    window_us: int | None = None,
    by_topic: bool = False,
    percentiles: Exactness = "exact",
) -> None:
    """Make the temporary table `waits`, in no order.

    Args:
        connection: with the table `operations`, which has all its columns.
        window_us, by_topic, percentiles: as `waits_job.waits` has them.

    Raises:
        ValueError: as `waits_job.waits` has it.
    """
    check_waits(window_us, percentiles)
    job = "waits" if by_topic else "waits_over_topics"
    exact = percentiles == "exact"
    run_job(connection, job if exact else f"{job}_approximate", window_us=window_us)


def slowest_table(connection: duckdb.DuckDBPyConnection, number: int = 10) -> None:
    """Make the temporary table `slowest`, in no order.

    Args:
        connection: with the table `operations`, which has all its columns.
        number: as `slowest_job.slowest` has it.

    Raises:
        ValueError: a number below 1.
    """
    check_number(number)
    run_job(connection, "slowest", number=number)


def occupancy_table(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the temporary table `occupancy`, in no order.

    Args:
        connection: with the tables `operations`, which has all its columns, and `spans`.
    """
    run_job(connection, "occupancy")


def cause_tables(connection: duckdb.DuckDBPyConnection, number: int = 10) -> None:
    """Make the temporary tables `littles_law`, `peaks`, `hot_keys` and `key_occupancy`.

    Args:
        connection: with the tables that `occupancy_table` takes and makes, and `faults`.
        number: as `hot_keys_job.hot_keys` has it.

    Raises:
        ValueError: a number below 1.
    """
    check_number(number)
    run_job(connection, "occupancy_causes", number=number)


# What a whole analysis tells beside waits and audit: tables of the same names as by Spark.


def latencies_table(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the temporary table `latencies`, in no order.

    Args:
        connection: with the table `sends`, which has all its columns.
    """
    run_job(connection, "latencies")


def attempts_table(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the temporary table `attempts`, in no order.

    Args:
        connection: with the tables `sends` and `reads`, which have all their columns.
    """
    run_job(connection, "attempts")


def distribution_table(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the temporary table `distribution`, in no order.

    Args:
        connection: with the table `operations`, which has all its columns.
    """
    run_job(connection, "distribution")


def expiry_table(connection: duckdb.DuckDBPyConnection, most_keys: int = MOST_KEYS) -> None:
    """Make the temporary table `expiry`, in no order.

    Args:
        connection: with the table `operations`, which has all its columns.
        most_keys: as `expiry.expiry` has it.

    Raises:
        ValueError: a number below 0.
    """
    check_keys(most_keys)
    run_job(connection, "expiry", most_keys=most_keys)


# The waits in traces on disk, in this process: what is shown, and the tables as Parquet.


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
