"""The command ``purgatory prepare``, which once made Spark start quicker, and answers still."""

from __future__ import annotations

from typing import Annotated

import typer


def prepare(_words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
    """Not needed any more: Spark starts without anything that is made before."""
    print("purgatory prepare: not needed any more, and nothing was done")
