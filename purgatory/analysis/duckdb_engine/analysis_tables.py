"""What a whole analysis tells beside waits and audit: tables of the same names as by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory.analysis.analysis_words import MOST_KEYS, check_keys
from purgatory.analysis.duckdb_engine.job_sql import run_job

if TYPE_CHECKING:
    import duckdb


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
