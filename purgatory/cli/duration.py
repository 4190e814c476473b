"""Durations as they are typed: "10s", "500ms", "2m"."""

from __future__ import annotations

import re

import typer

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")


def seconds(text: str | float) -> float:
    """Return a duration in seconds.

    Raises:
        typer.BadParameter: it is none.
    """
    match = _DURATION.fullmatch(str(text).strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no duration; use 500ms, 10s, 2m or 1h")
    number, unit = match.groups()
    return float(number) * _SECONDS[unit]
