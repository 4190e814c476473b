"""Progress of a command on standard error: that its engine starts, then what it has done.

Ground rules: imports are fast, since Spark's own modules and its Java take most of a start; one
command at a time shows its start.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from purgatory.pipeline.signals import defer_signals

_start_bars: list[Progress] = []


def show_start(shown: bool | None, engine: str = "Spark") -> None:
    """Show that an engine is starting: a bar on a terminal, until `end_start`; elsewhere a line.

    Args:
        shown: None: only on a terminal.
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
    _start_bars.append(bar)


def end_start() -> None:
    """Remove the bar of `show_start`."""
    while _start_bars:
        _start_bars.pop().stop()


# Progress while an engine computes, with an estimate of the remaining time.
#
# On a terminal, a bar is updated in place and removed at the end. Elsewhere a plain line is written
# every few seconds, and one at the end with the totals, so that a log stays readable.
#
# The remaining time is estimated from the time so far, relative to the work that the engine has
# planned, which grows while it runs. A thread polls four times a second.


_POLL_S = 0.25
_LINE_S = 5.0
_MINUTE_S, _HOUR_S = 60, 3_600


@dataclass(frozen=True)
class EngineProgress:
    """The progress of an engine, in words and as a part of a total; 0 of 0: it is planning."""

    text: str = ""
    done: float = 0
    total: float = 0


@contextmanager
def show_progress(
    engine: str,
    ask: Callable[[], EngineProgress | None],
    shown: bool | None,
    to: TextIO | None = None,
) -> Iterator[None]:
    """Show the progress of an engine during the `with` block, instead of its start.

    Args:
        ask: returns the progress, or None after a failure; called by one thread.
        shown: None: only on a terminal.
        to: standard error by default.
    """
    end_start()
    stream = sys.stderr if to is None else to
    if not is_shown(shown, stream):
        yield
        return
    with _bar(engine, stream) if stream.isatty() else _lines(engine, stream) as show:
        stopped = threading.Event()
        watcher = threading.Thread(
            target=_watch, args=(ask, show, stopped), name="progress", daemon=True
        )
        try:
            with defer_signals():  # a signal in there would interrupt the work of a lock
                watcher.start()
            yield
        finally:
            stopped.set()
            if watcher.ident is not None:
                watcher.join(10 * _POLL_S)


def is_shown(shown: bool | None, to: TextIO | None = None) -> bool:
    """Whether `show_progress` shows anything on this stream."""
    return (sys.stderr if to is None else to).isatty() if shown is None else shown


class Estimate:
    """The remaining time in words. If `done` decreases, another computation has begun."""

    def __init__(self) -> None:
        self._done = 0.0
        self._start_s = 0.0

    def remaining(self, progress: EngineProgress, now_s: float) -> str:
        """Return ", about 12 s left", or "" where nothing can be estimated."""
        if progress.total <= 0 or progress.done < self._done or not self._start_s:
            self._start_s = now_s
        self._done = progress.done
        if not 0 < progress.done < progress.total:
            return ""
        left_s = (now_s - self._start_s) * (progress.total - progress.done) / progress.done
        return f", about {_duration(left_s)} left"


def _duration(seconds: float) -> str:
    whole = max(1, round(seconds))
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
    return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S} min"


_Show = Callable[[EngineProgress, str, bool], None]


def _watch(ask: Callable[[], EngineProgress | None], show: _Show, stopped: threading.Event) -> None:
    last, estimate = EngineProgress(), Estimate()
    ended = False
    while not ended:
        ended = stopped.wait(_POLL_S)
        now = ask()
        # None: it failed; the caller reports the error.
        ended, last = ended or now is None, now or last
        show(last, estimate.remaining(last, time.monotonic()), ended)


@contextmanager
def _bar(engine: str, stream: TextIO) -> Iterator[_Show]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(engine), BarColumn(), TextColumn("{task.description}"))
    with Progress(
        *columns, TimeElapsedColumn(), console=Console(file=stream), transient=True
    ) as bar:
        row = bar.add_task("starting", total=None)

        def show(progress: EngineProgress, estimate: str, is_last: bool) -> None:
            text = progress.text + estimate if progress.total else "planning"
            bar.update(row, description=text, completed=progress.done, total=progress.total or None)

        yield show


@contextmanager
def _lines(engine: str, stream: TextIO) -> Iterator[_Show]:
    """Show lines: the first at once, then at most one in some seconds, and the last."""
    written = EngineProgress()
    next_s = 0.0

    def show(progress: EngineProgress, estimate: str, is_last: bool) -> None:
        nonlocal written, next_s
        is_news = bool(progress.total) and progress != written and time.monotonic() >= next_s
        if progress.text and (is_last or is_news):
            print(
                f"{engine}: {progress.text}{'' if is_last else estimate}", file=stream, flush=True
            )
            written, next_s = progress, time.monotonic() + _LINE_S

    yield show
