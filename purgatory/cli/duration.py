"""Durations as options of the command line."""

from __future__ import annotations

from collections.abc import Callable

import typer

from purgatory.settings.typed_duration import Duration, duration_between

_LONGEST = "1000000000h"
"""Its microseconds have room in 64 bits, and in a sum of two."""


def duration_parser(
    least: str = "1ms", most: str = _LONGEST, step: str = "1ms"
) -> Callable[[str | Duration], Duration]:
    """Return a parser for an option: a multiple of ``step`` from ``least`` to ``most``."""

    def parse(text: str | Duration) -> Duration:
        try:
            return duration_between(str(text), least, most, step)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parse
