"""The command ``purgatory audit``: order and duplicates in traces, with an exit status for CI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from purgatory.cli import options
from purgatory.cli.exit_status import one_line_errors
from purgatory.cli.output import check_report, write_report
from purgatory.pipeline.engines.engine import choose_engine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from purgatory.pipeline.engines.results import JobResults
    from purgatory.pipeline.result_rows import Row

VIOLATIONS_FOUND = 1
"""The exit status when there is a violation."""

UNDECIDED = 3
"""The exit status without a violation, if the audit could not decide."""

_EXPECTATIONS = ("order", "once", "no-loss", "one-writer")


def audit(
    traces: options.Traces,
    out: options.OptionalOutLocation = None,
    report: options.ReportFile = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Of {', '.join(_EXPECTATIONS)}: a violation even where a setting permits it. "
            "May be given several times.",
            show_default=False,
        ),
    ] = None,
    witnesses: Annotated[
        int, typer.Option(min=0, help="How many cases of each anomaly are written with their rows.")
    ] = 10,
    engine: options.AnalysisEngine = None,
    master: options.Master = "local[*]",
    overwrite: options.Overwrite = False,
    progress: options.ShowProgress = None,
    mapping: options.ColumnMapping = None,
    strict: options.Strict = False,
    allow_empty: Annotated[
        bool,
        typer.Option(
            "--allow-empty", help="Exit with 0 even if there was nothing to decide on, not with 3."
        ),
    ] = False,
    memory: options.Memory = None,
) -> None:
    """Audit traces for order, duplicates and losses; exit with 1 if something is violated, with 3
    if nobody can tell."""
    expected = expect or []
    for name in expected:
        if name not in _EXPECTATIONS:
            raise typer.BadParameter(
                f"{name!r} is nothing to expect; choose of {', '.join(_EXPECTATIONS)}",
                param_hint="--expect",
            )
    check_report(report, out, overwrite, engine)
    chosen = choose_engine("audit", engine)
    with one_line_errors("audit", progress=progress, engine=chosen):
        from purgatory.pipeline.engines.engine import RunOptions
        from purgatory.pipeline.engines.run import run_job
        from purgatory.pipeline.ingest.stores import parse_location

        audited = run_job(
            "audit",
            [parse_location(trace) for trace in traces],
            None if out is None else parse_location(out),
            engine=chosen,
            run_options=RunOptions(master, overwrite, progress, mapping, strict, memory),
            expect=expected,
            witnesses=witnesses,
            page=report is not None,
        )
        from purgatory.pipeline.jobs.audit.findings import undecided

        open_questions = undecided(audited.rows["audit"], expected)
        _print(audited, out, open_questions)
        write_report(report, out, audited.page())
    if _violations(audited.rows["audit"]):
        raise typer.Exit(VIOLATIONS_FOUND)
    if open_questions and not allow_empty:
        raise typer.Exit(UNDECIDED)


def _violations(rows: Sequence[Row]) -> int:
    """How many cases are violations, each counted once."""
    from purgatory.pipeline.report.sentences import dedupe_anomalies

    return sum(row["count"] for row in dedupe_anomalies(rows) if row["verdict"] == "violation")


def _print(audited: JobResults, out: str | None, open_questions: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.markup import escape

    from purgatory.cli.output import show_location, show_runs
    from purgatory.pipeline.result_rows import group_by

    console = Console(highlight=False)
    rows = audited.rows["audit"]
    runs = group_by(rows, "run_id")
    worst_first = sorted(runs, key=lambda run_id: not _violations(runs[run_id]))
    for run_id in show_runs(console, worst_first):
        found_rows = [row for row in runs[run_id] if row["count"]]
        if found_rows:
            console.print(_table(run_id, found_rows))
        else:
            console.print(f"{escape(run_id)}: no anomalies")
        _print_unchecked(console, runs[run_id])
        if run_id in audited.bad_rows:
            bad = audited.bad_rows[run_id]
            console.print(f"left out: {bad:,} bad rows; the run counts as incomplete")
    guilty = sum(bool(_violations(of_run)) for of_run in runs.values())
    console.print(
        f"{_violations(rows):,} violations in {guilty:,} of {len(runs):,} runs"
        if guilty
        else f"No violations in {len(runs):,} runs"
    )
    for run_id, of_run in group_by(open_questions, "run_id").items():
        why = ", ".join(dict.fromkeys(row["setting"] for row in of_run))
        anomalies = ", ".join(dict.fromkeys(row["anomaly"] for row in of_run))
        console.print(escape(f"{run_id}: could not be decided: {anomalies} ({why})"))
    show_location(console, "Tables", out)


def _print_unchecked(console: Console, rows: Sequence[Row]) -> None:
    """Say what the trace has no tables for."""
    lacking: dict[str, list[str]] = {}
    for row in rows:
        if not row["count"] and row["verdict"] == "indeterminate":
            lacking.setdefault(row["setting"], []).append(row["anomaly"])
    for reason, anomalies in lacking.items():
        console.print(f"not checked ({reason}): {', '.join(anomalies)}")


def _table(run_id: str, rows: Sequence[Row]) -> Table:
    from rich.markup import escape

    from purgatory.cli.output import titled_table

    table = titled_table(f"Order and duplicates in {run_id}")
    for name in ("anomaly", "group"):
        table.add_column(name, no_wrap=True)
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("by")
    for row in rows:
        style = "bold" if row["verdict"] == "violation" else None
        table.add_row(
            row["anomaly"],
            escape(row["group"] or ""),
            f"{row['count']:,}",
            row["verdict"],
            escape(row["setting"] or ""),
            style=style,
        )
    return table
