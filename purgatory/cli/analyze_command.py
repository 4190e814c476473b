"""The command ``purgatory analyze``: the trace of a run, or of many, through Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from purgatory.cli.pipeline_run import (
    ColumnMapping,
    Master,
    Overwrite,
    ShowProgress,
    Strict,
    Traces,
    one_line_errors,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from purgatory.analysis.analyze import Analysis
    from purgatory.analysis.result_rows import Row

MOST_PRINTED_RUNS = 10
"""How many runs' tables are printed; the report has them all."""


def analyze(
    traces: Traces,
    out: Annotated[Path, typer.Option(help="The folder to write: Parquet tables and report.html.")],
    master: Master = "local[*]",
    overwrite: Overwrite = False,
    progress: ShowProgress = None,
    mapping: ColumnMapping = None,
    strict: Strict = False,
    sweep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Show a sweep's answers and surfaces in the report: the folder of its results.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Analyze traces with Spark: how long requests waited, and how many did at each time."""
    with one_line_errors("analyze", progress=progress):
        from purgatory.analysis.analyze import analyze as analyze_traces
        from purgatory.sweeps.sweep_in_report import swept_sections

        analysis = analyze_traces(
            traces,
            out,
            master=master,
            overwrite=overwrite,
            progress=progress,
            mapping=mapping,
            strict=strict,
            notes=[] if sweep is None else [swept_sections(sweep)],
        )
    _print(analysis)


def _print(analysis: Analysis) -> None:
    from rich.console import Console
    from rich.markup import escape

    from purgatory.analysis.reports.audit_report import verdict_line
    from purgatory.analysis.result_rows import shown_waits
    from purgatory.analysis.traces.quarantine import quarantine_lines

    console = Console()
    for run in analysis.runs[:MOST_PRINTED_RUNS]:
        rows = shown_waits([row for row in analysis.waits if row["run_id"] == run["run_id"]])
        console.print(_table(run, rows) if rows else f"{escape(run['run_id'])}: no operations")
        spans = [row for row in analysis.latencies if row["run_id"] == run["run_id"]]
        if spans:
            console.print(_latencies(spans))
        if not run["complete"]:
            console.print(
                "[bold]incomplete[/bold]: this run was interrupted; what was waiting then is not "
                "counted"
            )
        audited = [row for row in analysis.audit if row["run_id"] == run["run_id"]]
        if audited:
            said = f"Order and duplicates: {verdict_line(audited)}"
            console.print(escape(said), highlight=False)
    left_out = len(analysis.runs) - MOST_PRINTED_RUNS
    if left_out > 0:
        console.print(f"... and {left_out} more runs, in the report")
    if analysis.quarantine:
        console.print("[bold]set aside[/bold], in the table quarantine:")
        for line in quarantine_lines(analysis.quarantine):
            console.print(f"  {escape(line)}", soft_wrap=True)
    console.print(f"Report: {escape(str(analysis.report))}", soft_wrap=True)


def _latencies(rows: Sequence[Row]) -> Table:
    from rich.markup import escape

    from purgatory.analysis.result_rows import milliseconds
    from purgatory.cli.result_tables import table

    names = ("mean", "p50", "p95", "p99", "max")
    shown = table("Latencies of producers, in milliseconds", ("group", "span"), ("count", *names))
    named = None
    for row in rows:
        indent = "" if row["span"] in ("record", "attempt") else "  "
        shown.add_row(
            escape(row["group"]) if row["group"] != named else "",
            indent + row["span"],
            f"{row['count']:,}",
            *(milliseconds(row[f"latency_{name}_us"], digits=2) for name in names),
        )
        named = row["group"]
    return shown


def _table(run: Row, rows: Sequence[Row]) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from purgatory.analysis.result_rows import milliseconds

    title = escape(f"Waits in {run['run_id']}, in milliseconds")
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    table.add_column("purgatory")
    table.add_column("outcome")
    for name in ("count", "share %", "p50", "p95", "p99", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    named = ""
    for row in rows:
        table.add_row(
            escape(row["label"]) if row["label"] != named else "",
            escape(row["outcome"]),
            f"{row['operations']:,}",
            f"{100 * row['share']:.2f}",
            *(
                milliseconds(row[f"wait_{name}_us"], digits=2)
                for name in ("p50", "p95", "p99", "max")
            ),
            end_section=row["outcome"] == "all",
        )
        named = row["label"]
    return table
