"""What a command that writes a page says before it begins, where the page will have no plots."""

from __future__ import annotations

import typer

from purgatory.analysis.reports.plots_in_page import has_library


def say_of_plots() -> None:
    """Say in one line on standard error how to get plots, if what draws them is not installed."""
    if not has_library():
        typer.echo(
            "the page will have no plots (plotly is missing): pip install 'kafka-purgatory[page]'",
            err=True,
        )
