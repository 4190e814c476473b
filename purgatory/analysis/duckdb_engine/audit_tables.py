"""The audit of tables that a connection has: the tables `audit` and `witnesses` beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory.analysis.auditing.audit_limits import SPLIT, SPLIT_US, WITNESSES, check_limits
from purgatory.analysis.auditing.audited_tables import AUDITED
from purgatory.analysis.auditing.client_configuration import (
    SETTINGS,
    Configuration,
    RunConfiguration,
    settings_rows,
)
from purgatory.analysis.duckdb_engine.job_sql import run_job
from purgatory.analysis.duckdb_engine.small_tables import make_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb


def audit_tables(
    connection: duckdb.DuckDBPyConnection,
    configuration: Configuration = None,
    witnesses: int = WITNESSES,
    *,
    expect: Sequence[str] = (),
    split: int = SPLIT,
    split_us: int = SPLIT_US,
) -> None:
    """Make the temporary tables `audit` and `witnesses`, in no order.

    Args:
        connection: with all tables of `AUDITED`, each with all its columns.
        configuration, witnesses, expect, split, split_us: as `auditing.audit_job.audit` has them.

    Raises:
        ValueError: as `auditing.audit_job.audit` has it.
    """
    check_limits(witnesses, split, split_us)
    if isinstance(configuration, RunConfiguration):
        configuration = dict.fromkeys(_runs(connection), configuration)
    for name, rows in settings_rows(configuration, expect).items():
        make_table(connection, name, SETTINGS[name], rows)
    run_job(connection, "audit", witnesses=witnesses, split=split, split_us=split_us)


def _runs(connection: duckdb.DuckDBPyConnection) -> list[str]:
    named = " UNION ".join(f"SELECT run_id FROM {name}" for name in AUDITED)
    return [run_id for (run_id,) in connection.execute(named).fetchall()]
