"""Output of jobs beside tables: the page of `--report`, and the location of the results."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from purgatory.pipeline.report.findings import Results


def show_location(console: Console, label: str, location: object) -> None:
    """Print the location of the results, if they were written."""
    if location is not None:
        console.print(f"{label}: {location}", markup=False, soft_wrap=True)


def check_report(file: Path | None, out: str | None, overwrite: bool) -> None:
    """Check the path of the report page.

    Args:
        file: the page.
        out: the folder of the results; a page in it must have the name of a result's page.
        overwrite: whether an existing page may be replaced.

    Raises:
        click.BadParameter: the page can't be written there, or exists.
    """
    if file is None:
        return
    from purgatory.pipeline.engines.result_folder import REPORT

    folder = _folder(out)
    if folder is None or folder not in file.resolve().parents:
        try:
            if not file.parent.is_dir() or file.is_dir():
                raise _report_error(f"{file}: is not a file in an existing folder")
            if file.exists() and not overwrite:
                raise _report_error(f"{file}: exists already; use --overwrite or another name")
        except OSError as error:
            raise _report_error(f"{file}: can't be written: {error.strerror}") from None
    elif file.resolve() != folder / REPORT:
        raise _report_error(f"{file}: name it {folder / REPORT}, or outside of --out")


def write_report(file: Path, out: str | None, results: Results) -> None:
    """Write the page, with links to the results; an existing one is replaced at once.

    Raises:
        OutputError: the page can't be written.
    """
    from purgatory.pipeline.errors import OutputError
    from purgatory.pipeline.report.report import report_page

    page = report_page(
        results,
        parquet=_parquet(file, _folder(out)),
        command=shlex.join(["purgatory", *sys.argv[1:]]),
    )
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        try:
            temporary.write_text(page, encoding="utf-8")
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"--report {file}: can't be written: {error.strerror}") from error
    click.echo(f"Report: {file}")


def _report_error(message: str) -> click.BadParameter:
    return click.BadParameter(message, param_hint="--report")


def _folder(out: str | None) -> Path | None:
    """The folder of the results, if it is local."""
    if out is None:
        return None
    from purgatory.pipeline.ingest.stores import parse_location

    location = parse_location(out)
    return location.resolve() if isinstance(location, Path) else None


def _parquet(file: Path, folder: Path | None) -> Mapping[str, str]:
    """The paths of the tables' Parquet, relative to the page."""
    if folder is None:
        return {}
    from purgatory.pipeline.engines.result_folder import PARQUET_FILE

    tables = {table.name: table / PARQUET_FILE for table in folder.iterdir() if table.is_dir()}
    page_folder = file.resolve().parent
    links = {
        # A table that Spark's tasks wrote consists of many files.
        name: os.path.relpath(path, page_folder)
        if path.exists()
        else f"{os.path.relpath(path.parent, page_folder)}/"
        for name, path in tables.items()
    }
    if "waits" in links:
        links["waits_over_time"] = links["waits"]
    return links
