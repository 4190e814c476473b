"""Tables of waits, occupancy and latencies out of a trace's tables, of the same names as by Spark.

The tables `audit` and `witnesses` are in `audit`.
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


# The tables that only `analyze` has, but for `expiry`, which a page of `waits` has too.


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
