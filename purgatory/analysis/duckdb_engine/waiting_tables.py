"""The waits of operations that a connection has: tables of the same names as by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory.analysis.duckdb_engine.job_sql import run_job
from purgatory.analysis.waiting_words import Exactness, check_number, check_waits

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
