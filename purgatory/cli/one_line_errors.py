"""How commands that use Spark end where a person can mend something, or has stopped them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from purgatory.cli.exit_status import INTERRUPTED, status_of
from purgatory.pipeline.engines.engine import Engine


@contextmanager
def one_line_errors(
    command: str,
    kept: str = "nothing was written",
    *,
    progress: bool | None = False,
    engine: Engine = "spark",
) -> Iterator[None]:
    """End the command with one line where a person can mend it, or has stopped it.

    Args:
        command: its name.
        kept: what is said of the results after Ctrl-C or SIGTERM, unless they are in their place.
        progress: show from here on that it starts; None does so on a terminal only.
        engine: what starts.

    Raises:
        typer.Exit: 2 or 75 after a PipelineError (`exit_status`), 130 after Ctrl-C, 143 after
            SIGTERM.
    """
    from purgatory.pipeline.engines.progress import end_start, show_start
    from purgatory.pipeline.engines.termination import TERMINATED, ended_by_sigterm, forget_written
    from purgatory.pipeline.errors import PipelineError

    forget_written()
    try:
        with ended_by_sigterm():
            show_start(progress, {"spark": "Spark", "duckdb": "DuckDB"}[engine])
            try:
                yield
            finally:
                end_start()
    except PipelineError as error:
        print(f"purgatory {command}: {error}", file=sys.stderr)
        raise typer.Exit(status_of(error)) from None
    except KeyboardInterrupt:
        print(f"purgatory {command}: interrupted; {_kept(kept)}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    except SystemExit as end:
        if end.code != TERMINATED:
            raise
        print(f"purgatory {command}: terminated; {_kept(kept)}", file=sys.stderr)
        raise typer.Exit(TERMINATED) from None


def _kept(otherwise: str) -> str:
    from purgatory.pipeline.engines.termination import where_written

    place = where_written()
    return otherwise if place is None else f"the results are in {place}"
