"""The audit of tables that a connection, or this process, has: `audit` and `witnesses`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory.pipeline.engines.duckdb.connection import duckdb_connection
from purgatory.pipeline.engines.duckdb.job_sql import make_table, rows_of, run_job
from purgatory.pipeline.jobs.audit.anomalies import (
    AUDITED,
    COUNTS_ORDER,
    SPLIT,
    SPLIT_US,
    WITNESSES,
    WITNESSES_ORDER,
    check_limits,
)
from purgatory.pipeline.jobs.audit.client_settings import (
    SETTINGS,
    Configuration,
    RunConfiguration,
    settings_rows,
)
from purgatory.pipeline.jobs.audit.findings import Findings, findings_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import duckdb
    import pyarrow as pa


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
        configuration, witnesses, expect, split, split_us: as `jobs.audit.audit_job.audit` has them.

    Raises:
        ValueError: as `jobs.audit.audit_job.audit` has it.
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


# The audit of rows that are in memory, as of a cluster or a simulation in the same program.


def audit_arrow(
    run_id: str,
    tables: Mapping[str, pa.Table],
    configuration: RunConfiguration | None = None,
    *,
    expect: Sequence[str] = (),
    witnesses: int = WITNESSES,
    texts: Mapping[int, bytes | None] | None = None,
) -> Findings:
    """Audit tables of Arrow.

    Args:
        run_id: of all rows; a run that has none is one, too.
        tables: all of `audit_tables.AUDITED`, with all columns of the schema.
        configuration: of the producers and consumers.
        expect, witnesses: as `audit_folders.audit` has them.
        texts: the beginnings of keys and values by their ids, as far as they are known.

    Raises:
        ValueError: as `audit_folders.audit` has it.
    """
    with duckdb_connection() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        of_run = {run_id: configuration or RunConfiguration()}
        audit_tables(connection, of_run, witnesses, expect=expect)
        audit = rows_of(connection, "audit", COUNTS_ORDER)
        shown = rows_of(connection, "witnesses", WITNESSES_ORDER)
        return findings_of(audit, shown, {}, expect, texts)
