"""What commands of jobs write besides tables: the page of `--report`, and where results are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from purgatory.pipeline.engines.engine import Engine
    from purgatory.pipeline.report.findings import Results

_LIBRARY: dict[Engine, str] = {"spark": "pyspark", "duckdb": "duckdb"}


def say_where(console: Console, what: str, place: object) -> None:
    """Where the results are, if they were written."""
    if place is not None:
        console.print(f"{what}: {place}", markup=False, soft_wrap=True)


def check_report(
    file: Path | None, out: str | None, overwrite: bool, engine: Engine | None
) -> None:
    """Refuse a place for the page before anything slow, and say if it will have no plots.

    Args:
        file: where the page is to be.
        out: where the results are to be: a folder there is made anew, with the page if it has
            the name that a page has among results.
        overwrite: whether a page that is there may be replaced.
        engine: which was asked for, if any.

    Raises:
        typer.BadParameter: a page can't be written there, or something is there that is to be kept.
    """
    if file is None:
        return
    folder = _folder(out)
    if folder is None or folder not in file.resolve().parents:
        if not file.parent.is_dir() or file.is_dir():
            raise _refused(f"{file}: is no file in a folder")
        if file.exists() and not overwrite:
            raise _refused(f"{file}: is there already; allow --overwrite or name another")
    elif file.resolve() != folder / _name_among_results():
        raise _refused(f"{file}: name it {folder / _name_among_results()}, or outside of --out")
    say_of_plots(engine)


def write_report(file: Path | None, out: str | None, results: Results) -> None:
    """Write the page, if one is wanted, with links to the results; it is whole, or as it was.

    Raises:
        OutputError: it can't be written.
    """
    if file is None:
        return
    from purgatory.pipeline.errors import OutputError
    from purgatory.pipeline.report.report import report_page

    page = report_page(results, parquet=_parquet(file, _folder(out)))
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        try:
            beside.write_text(page, encoding="utf-8")
            beside.replace(file)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"--report {file}: can't be written: {error.strerror}") from error
    typer.echo(f"Report: {file}")


def _refused(words: str) -> typer.BadParameter:
    return typer.BadParameter(words, param_hint="--report")


def _name_among_results() -> str:
    from purgatory.pipeline.engines.result_folder import REPORT

    return REPORT


def _folder(out: str | None) -> Path | None:
    """The folder of the results, if it is one of this machine."""
    if out is None:
        return None
    from purgatory.pipeline.ingest.stores import place

    found = place(out)
    return found.resolve() if isinstance(found, Path) else None


def _parquet(file: Path, folder: Path | None) -> Mapping[str, str]:
    """The Parquet of the tables that are there, as the page finds it."""
    if folder is None:
        return {}
    from purgatory.pipeline.engines.result_folder import PARQUET_FILE

    tables = {table.name: table / PARQUET_FILE for table in folder.iterdir() if table.is_dir()}
    beside = file.resolve().parent
    found = {
        # Where Spark's tasks wrote a table, it is in many files.
        name: os.path.relpath(one, beside)
        if one.exists()
        else f"{os.path.relpath(one.parent, beside)}/"
        for name, one in tables.items()
    }
    if "waits" in found:
        found["waits_over_time"] = found["waits"]
    return found


def say_of_plots(engine: Engine | None) -> None:
    """Print on standard error how to get plots, if plotly is not installed.

    Without an engine no page will be written: then it prints nothing.

    Args:
        engine: the one of the job; None for either.
    """
    from purgatory.pipeline.report.page import has_library

    engines = _LIBRARY.values() if engine is None else [_LIBRARY[engine]]
    if not has_library() and any(find_spec(library) for library in engines):
        typer.echo(
            "the page will have no plots (plotly is missing): pip install 'kafka-purgatory[page]'",
            err=True,
        )
