"""Exit statuses, and how commands end where a person can mend something or has interrupted them.

A supervisor can tell from the statuses what to do: `docs/apply.md` has them as a table, with a unit
of systemd that uses them.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from purgatory.pipeline.engines.engine import Engine

BAD_CHANGE = 1
"""A change can't be applied: somebody has to look at it."""
BAD_INPUT = 2
"""Input or options are wrong: the same command would fail again."""
FAULT_PASSES = 75
"""A temporary failure: start the same command again. `EX_TEMPFAIL` of sysexits.h."""
INTERRUPTED = 130
"""Ctrl-C, as shells have it."""
SIGNALLED = 128
"""The exit status after a signal, as shells have it: this and the signal's number."""


def status_of(error: Exception) -> int:
    """The exit status for an error of the pipeline, of a change log or of a capture."""
    return FAULT_PASSES if getattr(error, "passes", False) else BAD_INPUT


@contextmanager
def one_line_errors(
    command: str,
    results_note: str = "nothing was written",
    *,
    progress: bool | None = False,
    engine: Engine = "spark",
) -> Iterator[None]:
    """End the command with one line where a person can mend it, or has stopped it.

    Args:
        command: its name.
        results_note: what the message after Ctrl-C or SIGTERM says of results that are not written.
        progress: show that the engine starts; None does so on a terminal only.
        engine: the engine that starts.

    Raises:
        typer.Exit: 2 or 75 after a PipelineError (`exit_status`), 130 after Ctrl-C, 143 after
            SIGTERM.
    """
    from purgatory.pipeline.engines.progress import end_start, show_start
    from purgatory.pipeline.engines.termination import TERMINATED, exit_on_sigterm, forget_outputs
    from purgatory.pipeline.errors import PipelineError

    forget_outputs()
    try:
        with exit_on_sigterm():
            show_start(progress, {"spark": "Spark", "duckdb": "DuckDB"}[engine])
            try:
                yield
            finally:
                end_start()
    except PipelineError as error:
        print(f"purgatory {command}: {error}", file=sys.stderr)
        raise typer.Exit(status_of(error)) from None
    except KeyboardInterrupt:
        print(f"purgatory {command}: interrupted; {_results_note(results_note)}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    except SystemExit as end:
        if end.code != TERMINATED:
            raise
        print(f"purgatory {command}: terminated; {_results_note(results_note)}", file=sys.stderr)
        raise typer.Exit(TERMINATED) from None


def _results_note(otherwise: str) -> str:
    from purgatory.pipeline.engines.termination import last_output

    location = last_output()
    return otherwise if location is None else f"the results are in {location}"


@contextmanager
def interruptible(interrupt: Callable[[], object]) -> Iterator[list[int]]:
    """Call `interrupt` at the first SIGINT or SIGTERM; the second one has its usual effect.

    A KeyboardInterrupt wouldn't do: one that is raised in a callback of the garbage collector is
    lost.

    Yields:
        A list that will have the number of the first signal.
    """
    signals: list[int] = []
    before: dict[signal.Signals, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        interrupt()
        restore()

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, handle)
    try:
        yield signals
    finally:
        restore()
