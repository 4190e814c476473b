"""That a command is starting, on standard error, until its engine tells how far it is.

Ground rules: nothing here takes long to import, for Spark's own modules and its Java take most of
a start; one command at a time shows its start.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

_shown: list[Progress] = []


def show_start(shown: bool | None, engine: str = "Spark") -> None:
    """Show that an engine is starting: a bar on a terminal, until `end_start`; elsewhere a line.

    Args:
        engine: its name.
        shown: None shows it on a terminal only; True also elsewhere; False never.
    """
    stream = sys.stderr
    terminal = stream.isatty()
    if shown is False or (shown is None and not terminal):
        return
    if not terminal:
        print(f"{engine}: starting", file=stream, flush=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(engine), BarColumn(), TextColumn("starting"), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(file=stream), transient=True)
    bar.add_task("starting", total=None)
    bar.start()
    _shown.append(bar)


def end_start() -> None:
    """Take away what shows the start, if anything does."""
    while _shown:
        _shown.pop().stop()
