"""The waits and the occupancy in traces on disk, by whichever engine is chosen."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from purgatory.pipeline.engines.engine import Engine, RunningAnywhere
from purgatory.pipeline.engines.results import AuditedTraces, OccupancyResults, WaitResults
from purgatory.pipeline.ingest.stores import Place
from purgatory.pipeline.jobs.audit.anomalies import SPLIT, SPLIT_US, WITNESSES
from purgatory.pipeline.jobs.tables import Exactness

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb
    from pyspark.sql import DataFrame

    from purgatory.pipeline.engines.duckdb.connection_audit import ConnectionAudit
    from purgatory.pipeline.jobs.audit.audit_job import Audit
    from purgatory.pipeline.jobs.audit.client_settings import Configuration
from dataclasses import replace
from pathlib import Path

from purgatory.pipeline.engines.result_folder import REPORT
from purgatory.pipeline.engines.results import Analysis
from purgatory.pipeline.ingest.stores import Uri


def waits_of_traces(
    roots: Sequence[Place],
    out: Place | None = None,
    *,
    engine: Engine = "spark",
    window_us: int | None = None,
    percentiles: Exactness = "exact",
    number: int = 10,
    with_expiry: bool = False,
    master: str = "local[*]",
    **how: Unpack[RunningAnywhere],
) -> WaitResults:
    """Compute the tables `waits` and `slowest` of all traces in some folders.

    Args:
        roots: folders that are a trace each, or contain traces; URIs of such as well.
        out: the folder to make, at a URI as well, with a folder of Parquet per table;
            None writes nothing.
        engine: what computes; only that one is imported.
        window_us, percentiles: as `waits_job.waits` has them.
        number: how many of the slowest operations of each run and purgatory.
        with_expiry: whether the table `expiry` is computed too: when and where operations expired,
            for a page.
        master: the Spark master; DuckDB has none.
        how: as `RunningAnywhere` has it.

    Raises:
        PipelineError: one of them is not as it must be; in that case `out` is as it was.
    """
    if engine == "spark":
        from purgatory.pipeline.engines.spark import waits as wait_results

        return wait_results.tell_waits(
            roots,
            out,
            window_us=window_us,
            percentiles=percentiles,
            number=number,
            with_expiry=with_expiry,
            master=master,
            **how,
        )
    from purgatory.pipeline.engines.duckdb import waits as waiting_folders

    return waiting_folders.tell_waits(
        roots,
        out,
        window_us=window_us,
        percentiles=percentiles,
        number=number,
        with_expiry=with_expiry,
        **how,
    )


def occupancy_of_traces(
    roots: Sequence[Place],
    out: Place | None = None,
    *,
    engine: Engine = "spark",
    number: int = 10,
    with_sizes: bool = False,
    master: str = "local[*]",
    **how: Unpack[RunningAnywhere],
) -> OccupancyResults:
    """Compute what was parked over time in all traces in some folders.

    Args:
        roots, out, engine, master, how: as `waits_of_traces` has them.
        number: how many hot keys of each run and purgatory.
        with_sizes: whether sizes over all brokers are given too, for a page.

    Raises:
        PipelineError: one of them is not as it must be; in that case `out` is as it was.
    """
    if engine == "spark":
        from purgatory.pipeline.engines.spark import waits as occupancy_results

        return occupancy_results.tell_occupancy(
            roots,
            out,
            number=number,
            with_sizes=with_sizes,
            master=master,
            **how,
        )
    from purgatory.pipeline.engines.duckdb import waits as waiting_folders

    return waiting_folders.tell_occupancy(roots, out, number=number, with_sizes=with_sizes, **how)


# The audit of traces on disk, by whichever engine is chosen.


def audit_traces(
    roots: Sequence[Place],
    out: Place | None = None,
    *,
    engine: Engine = "spark",
    expect: Sequence[str] = (),
    witnesses: int = WITNESSES,
    with_witnesses: bool = False,
    master: str = "local[*]",
    **how: Unpack[RunningAnywhere],
) -> AuditedTraces:
    """Audit all traces in some folders.

    Args:
        roots: folders that are a trace each, or contain traces; URIs of such as well.
        out: the folder to make, at a URI as well, with Parquet in `audit` and
            `witnesses`; None writes nothing.
        engine: what computes; only that one is imported.
        expect, witnesses: as `jobs.audit.audit_job.audit` has them.
        with_witnesses: whether the rows of the witnesses are given too, for a page.
        master: the Spark master; DuckDB has none.
        how: as `RunningAnywhere` has it.

    Raises:
        PipelineError: one of them is not as it must be; in that case `out` is as it was.
    """
    if engine == "spark":
        from purgatory.pipeline.engines.spark import audit as audit_results

        return audit_results.audit_traces(
            roots,
            out,
            expect=expect,
            witnesses=witnesses,
            with_witnesses=with_witnesses,
            master=master,
            **how,
        )
    from purgatory.pipeline.engines.duckdb import audit as audit_folders

    return audit_folders.audit_traces(
        roots,
        out,
        expect=expect,
        witnesses=witnesses,
        with_witnesses=with_witnesses,
        **how,
    )


# The audit of tables, by the engine that has them: Spark, or a connection of DuckDB.


@overload
def audit(
    sends: DataFrame,
    reads: DataFrame,
    effects: DataFrame | None = None,
    commits: DataFrame | None = None,
    configuration: Configuration = None,
    witnesses: int = WITNESSES,
    *,
    transactions: DataFrame | None = None,
    expect: Sequence[str] = (),
    split: int = SPLIT,
    split_us: int = SPLIT_US,
) -> Audit: ...


@overload
def audit(
    sends: duckdb.DuckDBPyConnection,
    /,
    configuration: Configuration = None,
    witnesses: int = WITNESSES,
    *,
    expect: Sequence[str] = (),
    split: int = SPLIT,
    split_us: int = SPLIT_US,
) -> ConnectionAudit: ...


def audit(*tables: Any, **how: Any) -> Any:
    """Find every anomaly of order and duplicates in some traces, and judge each.

    Args:
        tables: data frames of Spark, or one connection of DuckDB that has the tables.
        how: as `jobs.audit.audit_job.audit` has it for Spark, and
            `engines.duckdb.connection_audit.audit` for DuckDB.

    Raises:
        ValueError: as these have it.
    """
    duckdb = sys.modules.get("duckdb")  # not imported: then nobody has a connection
    if duckdb is not None and tables and isinstance(tables[0], duckdb.DuckDBPyConnection):
        from purgatory.pipeline.engines.duckdb import connection_audit

        return connection_audit.audit(*tables, **how)
    from purgatory.pipeline.jobs.audit import audit_job

    return audit_job.audit(*tables, **how)


# The whole analysis, by whichever engine is chosen: traces in, tables and a page out.


def analyze(
    roots: Sequence[Place],
    out: Path | Uri,
    *,
    engine: Engine = "spark",
    notes: Sequence[str] = (),
    master: str = "local[*]",
    **how: Unpack[RunningAnywhere],
) -> Analysis:
    """Analyze all traces in some folders.

    Args:
        roots: folders that are a trace each, or contain traces; URIs of such as well.
        out: the folder to make, at a URI as well: it gets Parquet in a folder per
            table, bad rows and files in `quarantine`, and `report.html`.
        engine: what computes; only that one is imported.
        notes: sections to stand in the report before those of the runs, as HTML.
        master: the Spark master; DuckDB has none.
        how: as `RunningAnywhere` has it.

    Raises:
        PipelineError: the traces, the place for the results or the session are not as they must
            be; in that case `out` is as it was.
    """
    if engine == "spark":
        from purgatory.pipeline.engines.spark import analyze as write_analysis

        result = write_analysis.tell_analysis(roots, out, notes=notes, master=master, **how)
    else:
        from purgatory.pipeline.engines.duckdb import analyze as analysis_folders

        result = analysis_folders.tell_analysis(roots, out, notes=notes, **how)
    return replace(result, report=out / REPORT)
