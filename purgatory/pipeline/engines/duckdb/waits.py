"""The tables of waits, occupancy and latencies, as Spark's functions in `jobs` compute them.

Each function makes temporary tables of a connection, in no order, from tables of a trace that are
there with all their columns. It refuses what the function of that name in `jobs` refuses
(ValueError).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory.pipeline.engines.duckdb.job_sql import run_job
from purgatory.pipeline.jobs.tables import (
    MOST_KEYS,
    Exactness,
    check_keys,
    check_number,
    check_waits,
)

if TYPE_CHECKING:
    import duckdb


def waits_table(
    connection: duckdb.DuckDBPyConnection,
    *,
    window_us: int | None = None,
    by_topic: bool = False,
    percentiles: Exactness = "exact",
) -> None:
    """Make `waits` from `operations`."""
    check_waits(window_us, percentiles)
    job = "waits" if by_topic else "waits_over_topics"
    exact = percentiles == "exact"
    run_job(connection, job if exact else f"{job}_approximate", window_us=window_us)


def slowest_table(connection: duckdb.DuckDBPyConnection, number: int = 10) -> None:
    """Make `slowest` from `operations`."""
    check_number(number)
    run_job(connection, "slowest", number=number)


def occupancy_table(connection: duckdb.DuckDBPyConnection) -> None:
    """Make `occupancy` from `operations` and `spans`."""
    run_job(connection, "occupancy")


def cause_tables(connection: duckdb.DuckDBPyConnection, number: int = 10) -> None:
    """Make `littles_law`, `peaks`, `hot_keys` and `key_occupancy`.

    They are made from `operations`, `spans`, `faults` and `occupancy`.
    """
    check_number(number)
    run_job(connection, "occupancy_causes", number=number)


# The tables that only `analyze` has, but for `expiry`, which a page of `waits` has too.


def latencies_table(connection: duckdb.DuckDBPyConnection) -> None:
    """Make `latencies` from `sends`."""
    run_job(connection, "latencies")


def attempts_table(connection: duckdb.DuckDBPyConnection) -> None:
    """Make `attempts` from `sends` and `reads`."""
    run_job(connection, "attempts")


def throughput_table(connection: duckdb.DuckDBPyConnection) -> None:
    """Make `throughput` from `sends`, `reads` and `windows`."""
    run_job(connection, "throughput")


def distribution_table(connection: duckdb.DuckDBPyConnection) -> None:
    """Make `distribution` from `operations`."""
    run_job(connection, "distribution")


def expiry_table(connection: duckdb.DuckDBPyConnection, most_keys: int = MOST_KEYS) -> None:
    """Make `expiry` from `operations`."""
    check_keys(most_keys)
    run_job(connection, "expiry", most_keys=most_keys)
