"""Exit statuses, and how commands end after an error of the user, or an interrupt.

`docs/apply.md` has the statuses as a table, and a systemd unit that uses them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from click.exceptions import Exit

if TYPE_CHECKING:
    from purgatory.pipeline.engines.engine import Engine

INVALID_CHANGE = 1
"""A change can't be applied, and needs a person."""
INVALID_INPUT = 2
"""Input or options are invalid: the same command would fail again."""
TRANSIENT_FAILURE = 75
"""A temporary failure: the same command may be started again. `EX_TEMPFAIL` of sysexits.h."""
INTERRUPTED = 130
"""Ctrl-C, as shells have it."""
SIGNAL_BASE = 128
"""The exit status after a signal, as shells have it: this and the signal's number."""


def exit_status(error: Exception) -> int:
    """The exit status for an error of the pipeline, of a change log or of a capture."""
    return TRANSIENT_FAILURE if getattr(error, "is_transient", False) else INVALID_INPUT


@contextmanager
def exit_on_error(
    command: str,
    results_note: str = "nothing was written",
    *,
    progress: bool | None = False,
    engine: Engine = "spark",
) -> Iterator[None]:
    """End the command with one line on an error of the user, or an interrupt.

    Args:
        command: its name.
        results_note: the note on unwritten results in the message after a signal.
        progress: show the start of the engine; None: only on a terminal.

    Raises:
        Exit: 2 or 75 after a PipelineError (`exit_status`), 130 after Ctrl-C, 143 after
            SIGTERM, 129 after SIGHUP.
    """
    from purgatory.pipeline.engines.progress import end_start, show_start
    from purgatory.pipeline.errors import PipelineError
    from purgatory.pipeline.signals import (
        HUNG_UP,
        TERMINATED,
        exit_on_signal,
        forget_outputs,
    )

    forget_outputs()
    try:
        with exit_on_signal():
            show_start(progress, {"spark": "Spark", "duckdb": "DuckDB"}[engine])
            try:
                yield
            finally:
                end_start()
    except PipelineError as error:
        print(f"purgatory {command}: {error}", file=sys.stderr)
        raise Exit(exit_status(error)) from None
    except KeyboardInterrupt:
        _tell_end(command, "interrupted", results_note)
        raise Exit(INTERRUPTED) from None
    except SystemExit as end:
        if end.code not in (TERMINATED, HUNG_UP):
            raise
        _tell_end(command, "terminated" if end.code == TERMINATED else "hung up", results_note)
        raise Exit(end.code) from None


def _tell_end(command: str, how: str, default: str) -> None:
    from purgatory.pipeline.signals import last_output

    location = last_output()
    note = default if location is None else f"the results are in {location}"
    with suppress(OSError):  # the terminal may be closed
        print(f"purgatory {command}: {how}; {note}", file=sys.stderr, flush=True)
