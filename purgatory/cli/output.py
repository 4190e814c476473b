"""Output of the analysis commands: tables on the terminal, and the page of `--report`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from purgatory.pipeline.engines.engine import Engine
    from purgatory.pipeline.report.findings import Results
    from purgatory.pipeline.result_rows import Row

_LIBRARY: dict[Engine, str] = {"spark": "pyspark", "duckdb": "duckdb"}


def titled_table(title: str) -> Table:
    """An empty table without columns."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    return Table(
        title=escape(title),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )


def table(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    """An empty table with columns of text and then of numbers."""
    grid = titled_table(title)
    for name in texts:
        grid.add_column(name)
    for name in numbers:
        grid.add_column(name, justify="right", no_wrap=True)
    return grid


def number(value: float | None, digits: int = 2) -> str:
    """A number as text; a dash for none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def short_ms(wait_us: float | None) -> str:
    """A wait in milliseconds, with fewer decimals for long waits; a dash for none."""
    if wait_us is None:
        return "-"
    return number(wait_us / 1000, 2 if wait_us < 99_995 else 1 if wait_us < 999_950 else 0)


def percent(share: float | None) -> str:
    """A share as text, in percent; a dash for none."""
    return "-" if share is None else f"{100 * share:.2f}"


def waits_table(run_id: str, rows: Sequence[Row], percentiles: Mapping[str, str]) -> Table:
    """The waits of a run by purgatory, kind and outcome.

    Args:
        rows: the run's rows of the table `waits` over all topics.
        percentiles: the headings of the columns, by the percentile.
    """
    from rich.markup import escape

    from purgatory.pipeline.result_rows import label_waits

    grid = table(
        f"Waits in {run_id}, in milliseconds",
        ("purgatory", "outcome"),
        ("count", "share %", *percentiles.values()),
    )
    last_label = ""
    for row in label_waits(rows):
        grid.add_row(
            escape(row["label"]) if row["label"] != last_label else "",
            escape(row["outcome"]),
            f"{row['operations']:,}",
            percent(row["share"]),
            *(short_ms(row[f"wait_{name}_us"]) for name in percentiles),
            end_section=row["outcome"] == "all",
        )
        last_label = row["label"]
    return grid


def show_runs(
    console: Console,
    runs: Sequence[str],
    incomplete: Collection[str] = (),
    all_in: str = "the tables of --out",
) -> Iterator[str]:
    """Yield the runs to show; afterwards print how many there are beside these."""
    from purgatory.pipeline.jobs.registry import MOST_SHOWN_RUNS

    for run_id in runs[:MOST_SHOWN_RUNS]:
        yield run_id
        if run_id in incomplete:
            console.print(
                "[bold]incomplete[/bold]: this run was interrupted; what was waiting then is not "
                "counted"
            )
    if len(runs) > MOST_SHOWN_RUNS:
        console.print(f"... and {len(runs) - MOST_SHOWN_RUNS} more runs, in {all_in}")


def show_quarantine(console: Console, counts: Sequence[Row]) -> None:
    """Print the number of quarantined rows and files, by table and reason."""
    from purgatory.pipeline.ingest.quarantine import quarantine_lines

    for line in quarantine_lines(counts):
        console.print(f"set aside: {line}", markup=False, soft_wrap=True)


def show_location(console: Console, what: str, location: object) -> None:
    """Print the location of the results, if they were written."""
    if location is not None:
        console.print(f"{what}: {location}", markup=False, soft_wrap=True)


def check_report(
    file: Path | None, out: str | None, overwrite: bool, engine: Engine | None
) -> None:
    """Check the path of the page before anything slow, and warn if it will have no plots.

    Args:
        file: the page.
        out: the folder of the results; a page in it must have the name of a result's page.
        overwrite: whether an existing page may be replaced.
        engine: the requested one, if any.

    Raises:
        typer.BadParameter: the page can't be written there, or exists.
    """
    if file is None:
        return
    from purgatory.pipeline.engines.result_folder import REPORT

    folder = _folder(out)
    if folder is None or folder not in file.resolve().parents:
        if not file.parent.is_dir() or file.is_dir():
            raise _report_error(f"{file}: is no file in a folder")
        if file.exists() and not overwrite:
            raise _report_error(f"{file}: is there already; allow --overwrite or name another")
    elif file.resolve() != folder / REPORT:
        raise _report_error(f"{file}: name it {folder / REPORT}, or outside of --out")
    warn_without_plots(engine)


def write_report(file: Path | None, out: str | None, results: Results) -> None:
    """Write the page, if requested, with links to the results; an existing one is replaced at once.

    Raises:
        OutputError: it can't be written.
    """
    if file is None:
        return
    from purgatory.pipeline.errors import OutputError
    from purgatory.pipeline.report.report import report_page

    page = report_page(results, parquet=_parquet(file, _folder(out)))
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        try:
            temporary.write_text(page, encoding="utf-8")
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"--report {file}: can't be written: {error.strerror}") from error
    typer.echo(f"Report: {file}")


def _report_error(words: str) -> typer.BadParameter:
    return typer.BadParameter(words, param_hint="--report")


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
        # Where Spark's tasks wrote a table, it is in many files.
        name: os.path.relpath(path, page_folder)
        if path.exists()
        else f"{os.path.relpath(path.parent, page_folder)}/"
        for name, path in tables.items()
    }
    if "waits" in links:
        links["waits_over_time"] = links["waits"]
    return links


def warn_without_plots(engine: Engine | None) -> None:
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
