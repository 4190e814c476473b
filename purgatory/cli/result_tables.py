"""Tables of results on a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from purgatory.pipeline.result_rows import Row


def titled(title: str) -> Table:
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
    made = titled(title)
    for name in texts:
        made.add_column(name)
    for name in numbers:
        made.add_column(name, justify="right", no_wrap=True)
    return made


def number(value: float | None, digits: int = 2) -> str:
    """A number as text; a dash for none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def short_ms(wait_us: float | None) -> str:
    """A wait as text, in milliseconds with the digits that matter; a dash for none."""
    if wait_us is None:
        return "-"
    return number(wait_us / 1000, 2 if wait_us < 99_995 else 1 if wait_us < 999_950 else 0)


def percent(share: float | None) -> str:
    """A share as text, in percent; a dash for none."""
    return "-" if share is None else f"{100 * share:.2f}"


def waits_table(run_id: str, rows: Sequence[Row], percentiles: Mapping[str, str]) -> Table:
    """The waits of a run by purgatory, kind and outcome.

    Args:
        run_id, rows: the run, and its rows of the table `waits` over all topics.
        percentiles: the heads of the columns, by what these are in the rows.
    """
    from rich.markup import escape

    from purgatory.pipeline.result_rows import shown_waits

    made = table(
        f"Waits in {run_id}, in milliseconds",
        ("purgatory", "outcome"),
        ("count", "share %", *percentiles.values()),
    )
    named = ""
    for row in shown_waits(rows):
        made.add_row(
            escape(row["label"]) if row["label"] != named else "",
            escape(row["outcome"]),
            f"{row['operations']:,}",
            percent(row["share"]),
            *(short_ms(row[f"wait_{name}_us"]) for name in percentiles),
            end_section=row["outcome"] == "all",
        )
        named = row["label"]
    return made


def say_of_runs(
    console: Console,
    runs: Sequence[str],
    incomplete: Collection[str] = (),
    all_in: str = "the tables of --out",
) -> Iterator[str]:
    """The runs that are shown, each in turn; then what was left out, and where it is."""
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


def say_of_quarantine(console: Console, counts: Sequence[Row]) -> None:
    """How many bad rows and files were set aside, by reason."""
    from purgatory.pipeline.ingest.quarantine import quarantine_lines

    for line in quarantine_lines(counts):
        console.print(f"set aside: {line}", markup=False, soft_wrap=True)


def say_where(console: Console, what: str, place: object) -> None:
    """Where the results are, if they were written."""
    if place is not None:
        console.print(f"{what}: {place}", markup=False, soft_wrap=True)
