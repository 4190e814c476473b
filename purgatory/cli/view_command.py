"""``purgatory view``: a trace in the browser, at any moment of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purgatory.cli import shared_options as options


def view(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="The folder of a trace.", show_default=False)
    ],
    view_host: options.ViewHost = "127.0.0.1",
    view_port: options.ViewPort = 0,
    no_open: options.NoOpen = False,
) -> int:
    """Show a trace in the browser: wheels, partitions and what waits, at any moment of the run.

    The page is served until Ctrl-C.
    """
    import aiohttp  # noqa: F401  # first of all: what is missing is told before a trace is read
    import pyarrow  # noqa: F401

    from purgatory.cli.serving_view import serve_view

    return serve_view("view", trace, view_host, view_port, not no_open)
