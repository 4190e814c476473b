"""The page that a command writes where ``--report`` says, beside what it prints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from purgatory.cli.said_of_plots import say_of_plots

if TYPE_CHECKING:
    from purgatory.analysis.reports.report_results import Results


def check_report(file: Path | None, overwrite: bool) -> None:
    """Refuse a place for the page before anything slow, and say if it will have no plots.

    Raises:
        typer.BadParameter: a page can't be written there, or something is there that is to be kept.
    """
    if file is None:
        return
    if not file.parent.is_dir() or file.is_dir():
        raise typer.BadParameter(f"{file}: is no file in a folder", param_hint="--report")
    if file.exists() and not overwrite:
        raise typer.BadParameter(
            f"{file}: is there already; allow --overwrite or name another", param_hint="--report"
        )
    say_of_plots()


def write_report(file: Path | None, results: Results) -> None:
    """Write the page, if one is wanted; it is whole at each time, or as it was."""
    if file is None:
        return
    from purgatory.analysis.reports.report import report_page

    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_text(report_page(results), encoding="utf-8")
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
    typer.echo(f"Report: {file}")
