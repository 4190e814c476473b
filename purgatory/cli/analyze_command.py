"""The command ``purgatory analyze``: the trace of a run, or of many, as tables and a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from purgatory.cli import options
from purgatory.cli.exit_status import one_line_errors
from purgatory.cli.output import warn_without_plots
from purgatory.pipeline.engines.engine import choose_engine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from purgatory.pipeline.engines.results import JobResults
    from purgatory.pipeline.result_rows import Row

_PERCENTILES = {name: name for name in ("p50", "p95", "p99", "max")}


def analyze(
    traces: options.Traces,
    out: options.OutLocation,
    engine: options.AnalysisEngine = None,
    master: options.Master = "local[*]",
    overwrite: options.Overwrite = False,
    progress: options.ShowProgress = None,
    mapping: options.ColumnMapping = None,
    strict: options.Strict = False,
    memory: options.Memory = None,
    sweep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Show a sweep's answers and heat maps in the report: the folder of its results.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Analyze traces: how long requests waited, and how many did at each time, as a page too."""
    chosen = choose_engine("analyze", engine)
    warn_without_plots(chosen)
    with one_line_errors("analyze", progress=progress, engine=chosen):
        from purgatory.pipeline.engines.engine import RunOptions
        from purgatory.pipeline.engines.run import run_job
        from purgatory.pipeline.ingest.stores import parse_location

        analysis = run_job(
            "analyze",
            [parse_location(trace) for trace in traces],
            parse_location(out),
            engine=chosen,
            run_options=RunOptions(master, overwrite, progress, mapping, strict, memory),
            notes=[] if sweep is None else [_swept(sweep)],
        )
        _print(analysis)


def _swept(folder: Path) -> str:
    from purgatory.pipeline.sweeps.page import swept_sections

    return swept_sections(folder)


def _print(analysis: JobResults) -> None:
    from rich.console import Console
    from rich.markup import escape

    from purgatory.cli.output import (
        show_location,
        show_quarantine,
        show_runs,
        waits_table,
    )
    from purgatory.pipeline.report.audit_section import verdict_line
    from purgatory.pipeline.result_rows import group_by

    console = Console()
    waits, latencies, audit = (
        group_by(analysis.rows[name], "run_id") for name in ("waits", "latencies", "audit")
    )
    for run_id in show_runs(console, analysis.run_ids, analysis.incomplete, all_in="the report"):
        if run_id in waits:
            console.print(waits_table(run_id, waits[run_id], _PERCENTILES))
        else:
            console.print(f"{escape(run_id)}: no operations")
        if run_id in latencies:
            console.print(_latencies(latencies[run_id]))
        if run_id in audit:
            said = f"Order and duplicates: {verdict_line(audit[run_id])}"
            console.print(escape(said), highlight=False)
    show_quarantine(console, analysis.quarantine)
    show_location(console, "Report", analysis.report)


def _latencies(rows: Sequence[Row]) -> Table:
    from rich.markup import escape

    from purgatory.cli.output import table
    from purgatory.pipeline.result_rows import milliseconds

    names = ("mean", "p50", "p95", "p99", "max")
    latency_table = table(
        "Latencies of producers, in milliseconds", ("group", "span"), ("count", *names)
    )
    named = None
    for row in rows:
        indent = "" if row["span"] in ("record", "attempt") else "  "
        latency_table.add_row(
            escape(row["group"]) if row["group"] != named else "",
            indent + row["span"],
            f"{row['count']:,}",
            *(milliseconds(row[f"latency_{name}_us"], digits=2) for name in names),
        )
        named = row["group"]
    return latency_table
