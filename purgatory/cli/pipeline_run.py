"""What all commands of the pipeline share: their options for Spark, and how they end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from purgatory.cli.exit_status import INTERRUPTED, status_of

Traces = Annotated[
    list[Path],
    typer.Argument(metavar="TRACE...", help="Folders of traces, or folders that contain some."),
]
"""The folders to read."""

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace earlier results in --out.")]
"""The option --overwrite."""

Master = Annotated[
    str,
    typer.Option(
        help="Where Spark runs: local[*], local[N], spark://HOST:PORT, or sc://HOST:PORT of a "
        "Spark Connect server."
    ),
]
"""The option --master."""

ShowProgress = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress",
        help="Show on standard error how far Spark is; on a terminal by default.",
        show_default=False,
    ),
]
"""The option --progress; None when it is not given."""

ColumnMapping = Annotated[
    Path | None,
    typer.Option(
        "--mapping",
        metavar="FILE.toml",
        help="Where columns of other names and units are, in traces that other programs wrote.",
        show_default=False,
    ),
]
"""The option --mapping."""

Strict = Annotated[
    bool,
    typer.Option("--strict", help="Stop at the first bad row or file instead of setting it aside."),
]
"""The option --strict."""


@contextmanager
def one_line_errors(
    command: str, kept: str = "nothing was written", *, progress: bool | None = False
) -> Iterator[None]:
    """End the command with one line where a person can mend it, or has stopped it.

    Args:
        command: its name.
        kept: what is said of the results after Ctrl-C.
        progress: show from here on that Spark starts; None does so on a terminal only.

    Raises:
        typer.Exit: 2 or 75 after a PipelineError (`exit_status`), 130 after Ctrl-C.
    """
    from purgatory.analysis.errors import PipelineError
    from purgatory.analysis.spark.starting import end_start, show_start

    try:
        show_start(progress)
        try:
            yield
        finally:
            end_start()
    except PipelineError as error:
        print(f"purgatory {command}: {error}", file=sys.stderr)
        raise typer.Exit(status_of(error)) from None
    except KeyboardInterrupt:
        print(f"purgatory {command}: interrupted; {kept}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
