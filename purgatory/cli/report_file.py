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
    if file is not None:
        _check_place(file, overwrite, "; allow --overwrite or name another")
        say_of_plots()


def check_stream_report(file: Path | None) -> None:
    """Refuse a place for a stream's page, which goes on with one that an earlier start has left.

    Raises:
        typer.BadParameter: as of `check_report`.
    """
    if file is not None:
        goes_on = file.is_file() and _is_of_stream(file)
        _check_place(file, goes_on, ", and is no page of a stream; name another")


def _is_of_stream(file: Path) -> bool:
    from purgatory.live.stream_page import MADE_BY

    with file.open(encoding="utf-8", errors="replace") as page:
        return f'<meta name="generator" content="{MADE_BY}">' in page.read(2_000)


def _check_place(file: Path, overwrite: bool, what_to_do: str) -> None:
    if not file.parent.is_dir() or file.is_dir():
        raise typer.BadParameter(f"{file}: is no file in a folder", param_hint="--report")
    if file.exists() and not overwrite:
        raise typer.BadParameter(f"{file}: is there already{what_to_do}", param_hint="--report")


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
