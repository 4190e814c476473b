"""The command ``purgatory waits``: how long requests waited, through Spark."""

from __future__ import annotations

from enum import StrEnum
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
from purgatory.cli.time_span import microseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from purgatory.analysis.result_rows import Row
    from purgatory.analysis.wait_results import WaitResults

_PERCENTILES = ("p50", "p95", "p99", "p999", "max")
_HEADS = ("p50", "p95", "p99", "p99.9", "max")


class Percentiles(StrEnum):
    """How percentiles are computed."""

    EXACT = "exact"
    APPROXIMATE = "approximate"


def waits(
    traces: Traces,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write: Parquet in waits and slowest.")
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN",
            help="Tell windows of time apart, such as 1s or 500ms, by when requests came.",
        ),
    ] = None,
    percentiles: Annotated[
        Percentiles,
        typer.Option(help="Approximate ones are quicker, and at most 0.1 % too small above 10 ms."),
    ] = Percentiles.EXACT,
    slowest: Annotated[
        int, typer.Option(min=1, help="How many of the slowest of each purgatory.")
    ] = 10,
    master: Master = "local[*]",
    overwrite: Overwrite = False,
    progress: ShowProgress = None,
    mapping: ColumnMapping = None,
    strict: Strict = False,
) -> None:
    """Tell how long requests waited, by outcome, topic and window of time, and the slowest."""
    window_us = None if window is None else microseconds(window)
    with one_line_errors("waits", progress=progress):
        from purgatory.analysis.wait_results import tell_waits

        results = tell_waits(
            traces,
            out,
            window_us=window_us,
            percentiles=percentiles.value,
            number=slowest,
            master=master,
            overwrite=overwrite,
            progress=progress,
            mapping=mapping,
            strict=strict,
        )
    _print(results, out)


def _print(results: WaitResults, out: Path | None) -> None:
    from rich.console import Console
    from rich.markup import escape

    from purgatory.cli.result_tables import say_of_quarantine, say_of_runs

    console = Console()
    for run_id in say_of_runs(console, results.runs, results.incomplete):
        of_run = {
            name: [row for row in getattr(results, name) if row["run_id"] == run_id]
            for name in ("waits", "topics", "windows", "slowest")
        }
        if not any(of_run.values()):
            console.print(f"{escape(run_id)}: no operations")
            continue
        _print_waits(console, run_id, of_run["waits"])
        _print_windows(console, run_id, of_run["windows"])
        _print_topics(console, run_id, of_run["topics"])
        _print_slowest(console, run_id, of_run["slowest"])
    if results.cut:
        console.print(f"... and more {' and '.join(results.cut)}, in the tables of --out")
    say_of_quarantine(console, results.quarantine)
    if out is not None:
        console.print(f"Tables: {escape(str(out))}", soft_wrap=True)


def _print_waits(console: Console, run_id: str, rows: Sequence[Row]) -> None:
    from rich.markup import escape

    from purgatory.analysis.result_rows import shown_waits
    from purgatory.cli.result_tables import percent, table

    if not rows:
        return
    made = table(
        f"Waits in {run_id}, in milliseconds",
        ("purgatory", "outcome"),
        ("count", "share %", *_HEADS),
    )
    named = ""
    for row in shown_waits(rows):
        made.add_row(
            escape(row["label"]) if row["label"] != named else "",
            escape(row["outcome"]),
            f"{row['operations']:,}",
            percent(row["share"]),
            *_times(row),
            end_section=row["outcome"] == "all",
        )
        named = row["label"]
    console.print(made)


def _print_windows(console: Console, run_id: str, rows: Sequence[Row]) -> None:
    from rich.markup import escape

    from purgatory.cli.result_tables import number, percent, table

    if not rows:
        return
    made = table(
        f"Waits in {run_id} by window of time, in milliseconds",
        ("from s", "purgatory"),
        ("count", "expired %", *_HEADS),
    )
    for row in rows:
        made.add_row(
            number(row["window_start_us"] / 1_000_000, 3),
            escape(row["purgatory"]),
            f"{row['operations']:,}",
            percent(row["expiry_ratio"]),
            *_times(row),
        )
    console.print(made)


def _print_topics(console: Console, run_id: str, rows: Sequence[Row]) -> None:
    from rich.markup import escape

    from purgatory.cli.result_tables import percent, table

    if not any(row["topic"] is not None for row in rows):
        return
    made = table(
        f"Waits in {run_id} by topic, in milliseconds",
        ("purgatory", "topic"),
        ("count", "expired %", *_HEADS),
    )
    for row in rows:
        made.add_row(
            escape(row["purgatory"]),
            "(unknown)" if row["topic"] is None else escape(row["topic"]),
            f"{row['operations']:,}",
            percent(row["expiry_ratio"]),
            *_times(row),
        )
    console.print(made)


def _print_slowest(console: Console, run_id: str, rows: Sequence[Row]) -> None:
    from rich.markup import escape

    from purgatory.analysis.result_rows import milliseconds
    from purgatory.cli.result_tables import number, table

    made = table(
        f"The slowest in {run_id}",
        ("purgatory", "kind", "outcome", "keys"),
        ("broker", "operation", "at s", "wait ms"),
    )
    for row in rows:
        made.add_row(
            escape(row["purgatory"]),
            escape(row["kind"]),
            escape(row["outcome"]),
            "-" if row["watch_keys"] is None else escape(", ".join(row["watch_keys"])),
            str(row["broker"]),
            str(row["operation"]),
            number(row["start_us"] / 1_000_000, 3),
            milliseconds(row["wait_us"], digits=2),
        )
    console.print(made)


def _times(row: Row) -> list[str]:
    from purgatory.cli.result_tables import short_ms

    return [short_ms(row[f"wait_{name}_us"]) for name in _PERCENTILES]
