"""The command ``purgatory waits``: how long requests waited."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from purgatory.cli import options
from purgatory.cli.exit_status import one_line_errors
from purgatory.cli.output import check_report, write_report
from purgatory.pipeline.engines.engine import choose_engine
from purgatory.settings.typed_duration import Duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from purgatory.pipeline.engines.results import JobResults
    from purgatory.pipeline.result_rows import Row

_PERCENTILES = {"p50": "p50", "p95": "p95", "p99": "p99", "p999": "p99.9", "max": "max"}


class Percentiles(StrEnum):
    """How percentiles are computed."""

    EXACT = "exact"
    APPROXIMATE = "approximate"


def waits(
    traces: options.Traces,
    out: options.OptionalOutLocation = None,
    report: options.ReportFile = None,
    window: Annotated[Duration | None, options.window_option(least="1us", step="1us")] = None,
    percentiles: Annotated[
        Percentiles,
        typer.Option(help="Approximate ones are quicker, and at most 0.1 % too small above 10 ms."),
    ] = Percentiles.EXACT,
    slowest: Annotated[
        int, typer.Option(min=1, help="How many of the slowest of each purgatory.")
    ] = 10,
    engine: options.AnalysisEngine = None,
    master: options.Master = "local[*]",
    overwrite: options.Overwrite = False,
    progress: options.ShowProgress = None,
    mapping: options.ColumnMapping = None,
    strict: options.Strict = False,
    memory: options.Memory = None,
) -> None:
    """Tell how long requests waited, by outcome, topic and window of time, and the slowest."""
    check_report(report, out, overwrite, engine)
    chosen = choose_engine("waits", engine)
    with one_line_errors("waits", progress=progress, engine=chosen):
        from purgatory.pipeline.engines.engine import RunOptions
        from purgatory.pipeline.engines.run import run_job
        from purgatory.pipeline.ingest.stores import parse_location

        results = run_job(
            "waits",
            [parse_location(trace) for trace in traces],
            None if out is None else parse_location(out),
            engine=chosen,
            run_options=RunOptions(master, overwrite, progress, mapping, strict, memory),
            window_us=None if window is None else window.us,
            percentiles=percentiles.value,
            number=slowest,
            page=report is not None,
        )
        _print(results, out)
        write_report(report, out, results.page())


def _print(results: JobResults, out: str | None) -> None:
    from rich.console import Console
    from rich.markup import escape

    from purgatory.cli.output import (
        show_location,
        show_quarantine,
        show_runs,
        waits_table,
    )

    console = Console()
    for run_id in show_runs(console, results.run_ids, results.incomplete):
        of_run = {
            name: [row for row in results.rows[name] if row["run_id"] == run_id]
            for name in ("waits", "topics", "windows", "slowest")
        }
        if not any(of_run.values()):
            console.print(f"{escape(run_id)}: no operations")
            continue
        if of_run["waits"]:
            console.print(waits_table(run_id, of_run["waits"], _PERCENTILES))
        _print_windows(console, run_id, of_run["windows"])
        _print_topics(console, run_id, of_run["topics"])
        _print_slowest(console, run_id, of_run["slowest"])
    if results.truncated:
        console.print(f"... and more {' and '.join(results.truncated)}, in the tables of --out")
    show_quarantine(console, results.quarantine)
    show_location(console, "Tables", out)


def _print_windows(console: Console, run_id: str, rows: Sequence[Row]) -> None:
    from rich.markup import escape

    from purgatory.cli.output import number, percent, table

    if not rows:
        return
    grid = table(
        f"Waits in {run_id} by window of time, in milliseconds",
        ("from s", "purgatory"),
        ("count", "expired %", *_PERCENTILES.values()),
    )
    for row in rows:
        grid.add_row(
            number(row["window_start_us"] / 1_000_000, 3),
            escape(row["purgatory"]),
            f"{row['operations']:,}",
            percent(row["expiry_ratio"]),
            *_times(row),
        )
    console.print(grid)


def _print_topics(console: Console, run_id: str, rows: Sequence[Row]) -> None:
    from rich.markup import escape

    from purgatory.cli.output import percent, table

    if not any(row["topic"] is not None for row in rows):
        return
    grid = table(
        f"Waits in {run_id} by topic, in milliseconds",
        ("purgatory", "topic"),
        ("count", "expired %", *_PERCENTILES.values()),
    )
    for row in rows:
        grid.add_row(
            escape(row["purgatory"]),
            "(unknown)" if row["topic"] is None else escape(row["topic"]),
            f"{row['operations']:,}",
            percent(row["expiry_ratio"]),
            *_times(row),
        )
    console.print(grid)


def _print_slowest(console: Console, run_id: str, rows: Sequence[Row]) -> None:
    from rich.markup import escape

    from purgatory.cli.output import number, table
    from purgatory.pipeline.result_rows import milliseconds

    grid = table(
        f"The slowest in {run_id}",
        ("purgatory", "kind", "outcome", "keys"),
        ("broker", "operation", "at s", "wait ms"),
    )
    for row in rows:
        grid.add_row(
            escape(row["purgatory"]),
            escape(row["kind"]),
            escape(row["outcome"]),
            "-" if row["watch_keys"] is None else escape(", ".join(row["watch_keys"])),
            str(row["broker"]),
            str(row["operation"]),
            number(row["start_us"] / 1_000_000, 3),
            milliseconds(row["wait_us"], digits=2),
        )
    console.print(grid)


def _times(row: Row) -> list[str]:
    from purgatory.cli.output import short_ms

    return [short_ms(row[f"wait_{name}_us"]) for name in _PERCENTILES]
