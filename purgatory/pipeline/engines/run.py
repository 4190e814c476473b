"""Running a job on traces with either engine, and the audit of tables."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from purgatory.pipeline.engines.engine import Engine, RunOptions
from purgatory.pipeline.engines.result_folder import REPORT
from purgatory.pipeline.engines.results import JobResults, run_rows, write_page, write_runs
from purgatory.pipeline.jobs.audit.anomalies import SPLIT, SPLIT_US, WITNESSES
from purgatory.pipeline.jobs.registry import JOBS, Job
from purgatory.pipeline.jobs.run_spans import run_heads
from purgatory.pipeline.signals import defer_signals
from purgatory.settings.problems import known_names

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import DataFrame

    from purgatory.pipeline.engines.duckdb.audit import ConnectionAudit
    from purgatory.pipeline.engines.spark.frames import Audit
    from purgatory.pipeline.engines.traces import OpenedTraces
    from purgatory.pipeline.ingest.stores import Location
    from purgatory.pipeline.jobs.audit.client_settings import Configuration
    from purgatory.trace.effects import GivenEffect


def run_job(
    name: str,
    roots: Sequence[Location],
    out: Location | None = None,
    *,
    engine: Engine = "spark",
    run_options: RunOptions | None = None,
    page: bool = False,
    notes: Sequence[str] = (),
    effects: Sequence[GivenEffect] | None = None,
    **options: Any,
) -> JobResults:
    """Run a job on all traces in some folders.

    Args:
        name: `waits`, `occupancy`, `audit` or `analyze`.
        roots: folders or URIs that are a trace, or contain traces.
        out: the folder or URI to create, with a folder of Parquet per table; None: write
            nothing. `analyze` requires it, and also writes `report.html`.
        engine: only this one is imported.
        run_options: defaults to `RunOptions()`.
        page: also compute the tables that only a page shows; `analyze` always does.
        notes: sections of HTML that the page of `analyze` shows before those of the runs.
        effects: of the service, for an audit of one run by DuckDB (`trace.effects`).
        options: of the job, as `jobs.registry` names them.

    Raises:
        PipelineError: the traces, the output folder or the session are unusable; `out` is then
            unchanged.
        TypeError: the job has no such option.
        ValueError: there is no such job, an option has an invalid value, or `analyze` has no `out`.
    """
    job = JOBS.get(name)
    if job is None:
        raise ValueError(f"there is no job {name!r}; {known_names(name, JOBS)}")
    job_options, settings = job.all_options(options), run_options or RunOptions()
    if job.always_page and out is None:
        raise ValueError(f"{name} writes a page beside its tables: give it a folder, `out`")
    if effects is not None and engine == "spark":
        raise ValueError("effects take the engine duckdb")
    with defer_signals():  # C code that is interrupted while it is imported raises ImportError
        if engine == "spark":
            from purgatory.pipeline.engines.spark.traces import open_traces
        else:
            from purgatory.pipeline.engines.duckdb.traces import open_traces
    given = {} if effects is None else {"effects": effects}
    with open_traces(roots, out, job, settings, **given) as opened:
        command = shlex.join(
            ["purgatory", name, *map(str, roots), "--out", str(out), "--engine", engine]
        )
        results = run_opened(
            job, opened, page=page, notes=notes, roots=roots, command=command, **job_options
        )
    return (
        results if results.report is None or out is None else replace(results, report=out / REPORT)
    )


def run_opened(
    job: Job,
    opened: OpenedTraces,
    *,
    page: bool = False,
    notes: Sequence[str] = (),
    roots: Sequence[Location] = (),
    command: str = "",
    **options: Any,
) -> JobResults:
    """Run a job on opened traces; arguments and errors are those of `run_job`.

    Args:
        command: repeats the job, for the page.
        options: of the job, which `Job.all_options` checked.
    """
    page = page or job.always_page
    check = opened.check(job)
    traces, folder = opened.traces, opened.folder
    if job.always_page:
        runs = run_rows(traces, check.last_ends_us, check.good)
    else:
        runs = run_heads(traces)
    ids = [trace.run_id for trace in traces]
    tables = job.tables(page=page)
    rows, truncated = {}, []
    opened.compute(job, {**job.defaults, **options, "page": page})
    if folder is not None:
        for table, order in tables.items():
            opened.write(table, order)
    for name, view in job.views.items():
        order, chosen = job.outputs[view.table], None if view.runs is None else ids[: view.runs]
        if view.table == "witnesses":
            # The texts of all witnesses that are written go into a table.
            if page or folder is not None:
                selected = opened.with_texts(opened.rows(view, order, None))
                rows[name] = [row for row in selected if chosen is None or row["run_id"] in chosen]
        elif page or not view.for_page:
            selected = opened.rows(view, order, chosen)
            if view.is_cut and view.most is not None and len(selected) > view.most:
                truncated.append(name)
            rows[name] = selected[: view.most]
    results = JobResults(
        job,
        runs,
        rows,
        truncated,
        check.counts(),
        check.by_run(),
        left_out=check.left_out(),
        tables={trace.run_id: trace.tables_with_rows for trace in traces},
    )
    if not job.always_page:
        return results
    assert folder is not None, "a page stands beside tables"
    write_runs(runs, folder)
    write_page(results, folder, notes, roots, command)
    return replace(results, report=folder / REPORT)


# The audit of tables, by the engine that holds them: Spark, or a DuckDB connection.


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
        tables: Spark data frames, or one DuckDB connection that has the tables.
        how: the arguments of `engines.spark.frames.audit` for Spark, or of
            `engines.duckdb.audit.audit_connection` for DuckDB.

    Raises:
        ValueError: as these functions.
    """
    duckdb = sys.modules.get("duckdb")  # not imported: then there is no connection
    if duckdb is not None and tables and isinstance(tables[0], duckdb.DuckDBPyConnection):
        from purgatory.pipeline.engines.duckdb.audit import audit_connection

        return audit_connection(*tables, **how)
    from purgatory.pipeline.engines.spark import frames

    return frames.audit(*tables, **how)
