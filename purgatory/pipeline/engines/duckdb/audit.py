"""The audit of tables that a connection has: the tables `audit` and `witnesses` beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory.pipeline.engines.duckdb.job_sql import make_table, run_job
from purgatory.pipeline.jobs.audit.anomalies import (
    AUDITED,
    SPLIT,
    SPLIT_US,
    WITNESSES,
    check_limits,
)
from purgatory.pipeline.jobs.audit.client_settings import (
    SETTINGS,
    Configuration,
    RunConfiguration,
    settings_rows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb
from purgatory.pipeline.engines.duckdb.connection import duckdb_connection
from purgatory.pipeline.engines.duckdb.job_sql import rows_of
from purgatory.pipeline.jobs.audit.anomalies import COUNTS_ORDER, WITNESSES_ORDER
from purgatory.pipeline.jobs.audit.findings import Findings, findings_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
import os
from typing import TYPE_CHECKING

from purgatory.pipeline.engines.engine import Running
from purgatory.pipeline.ingest.stores import place

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike
    from pathlib import Path


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


# The audit of traces on disk, in this process.


def audit(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    expect: Sequence[str] = (),
    witnesses: int = WITNESSES,
    progress: bool | None = False,
    mapping: Path | None = None,
    strict: bool = False,
    memory: int | None = None,
) -> Findings:
    """Audit traces in this process, without Java.

    Args:
        paths: a folder or several, each a trace or with traces in it at any depth; `s3://` as
            well.
        expect: `order`, `once`, `no-loss`, `one-writer`: what is a violation even where the
            settings permit it.
        witnesses: how many cases of each run and anomaly come with their rows.
        progress, mapping, strict, memory: as `engines.engine.Running` has them.

    Raises:
        TraceError: there are no traces there, or, strict, something in them is bad.
        ValueError: an unknown expectation, or a number below 0.
    """
    from purgatory.pipeline.engines import run  # which imports this module

    roots = [paths] if isinstance(paths, str) or hasattr(paths, "__fspath__") else list(paths)
    places = [place(os.fspath(root)) for root in roots]
    results = run.run_job(
        "audit",
        places,
        engine="duckdb",
        running=Running(progress=progress, mapping=mapping, strict=strict, memory=memory),
        page=True,
        expect=expect,
        witnesses=witnesses,
    )
    rows = results.rows
    return findings_of(rows["audit"], rows["witnesses"], results.bad_rows, expect)
