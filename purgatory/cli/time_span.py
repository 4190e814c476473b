"""Spans of time as they are typed: a number and a unit."""

from __future__ import annotations

import re

import typer

_UNITS_US = {"us": 1, "ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000}
_SPAN = re.compile(r"(\d+)\s*([a-z]+)")


def microseconds(text: str) -> int:
    """The microseconds of a span such as `500ms` or `1s`.

    Raises:
        typer.BadParameter: it is no whole number of at least 1 with a unit.
    """
    found = _SPAN.fullmatch(text.strip())
    if found is None or found[2] not in _UNITS_US or int(found[1]) == 0:
        raise typer.BadParameter(
            f"{text!r} is no span of time: give a whole number and one of "
            f"{', '.join(_UNITS_US)}, such as 500ms"
        )
    span_us = int(found[1]) * _UNITS_US[found[2]]
    if span_us >= 2**62:
        raise typer.BadParameter(f"{text!r} is longer than any trace")
    return span_us
