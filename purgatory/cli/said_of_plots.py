"""What a command that writes a page says before it begins, where the page will have no plots."""

from __future__ import annotations

from importlib.util import find_spec

import typer

from purgatory.pipeline.engines.engine import Engine
from purgatory.pipeline.report.page import has_library

_LIBRARY: dict[Engine, str] = {"spark": "pyspark", "duckdb": "duckdb"}


def say_of_plots(engine: Engine | None) -> None:
    """Say in one line on standard error how to get plots, if what draws them is not installed.

    Where there is no engine either, that alone is told, by who starts it: no page will be written.

    Args:
        engine: which is to do the job; None for whichever is there.
    """
    engines = _LIBRARY.values() if engine is None else [_LIBRARY[engine]]
    if not has_library() and any(find_spec(library) for library in engines):
        typer.echo(
            "the page will have no plots (plotly is missing): pip install 'kafka-purgatory[page]'",
            err=True,
        )
