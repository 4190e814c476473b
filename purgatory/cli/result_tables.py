"""Tables of results on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from purgatory.analysis.result_rows import Row


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


def say_of_runs(console: Console, runs: Sequence[str], incomplete: Sequence[str]) -> Iterator[str]:
    """The runs that are shown, each in turn; then what was left out."""
    from purgatory.analysis.waiting_runs import MOST_SHOWN_RUNS

    for run_id in runs[:MOST_SHOWN_RUNS]:
        yield run_id
        if run_id in incomplete:
            console.print(
                "[bold]incomplete[/bold]: this run was interrupted; what was waiting then is not "
                "counted"
            )
    if len(runs) > MOST_SHOWN_RUNS:
        console.print(f"... and {len(runs) - MOST_SHOWN_RUNS} more runs, in the tables of --out")


def say_of_quarantine(console: Console, counts: Sequence[Row]) -> None:
    """How many bad rows and files were set aside, by reason."""
    for row in counts:
        what = f"{row['rows']:,} rows" + (f", {row['files']:,} files" if row["files"] else "")
        where = row["table"] or "run.json"
        console.print(f"set aside: {where}: {row['reason']}: {what}", markup=False)
