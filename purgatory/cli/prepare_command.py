"""The former command ``purgatory prepare``, which prints that it is not needed."""

from __future__ import annotations

import click


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def prepare(words: tuple[str, ...]) -> None:
    """Not needed any more: Spark starts without preparation."""
    print("purgatory prepare: not needed any more, and nothing was done")
