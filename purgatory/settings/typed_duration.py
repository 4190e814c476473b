"""Durations as they are typed: a number and its unit, such as 250ms, 10s or 2min."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

_UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
}
_TYPED = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.ASCII)


class Duration:
    """A length of time as it was typed, which `str` gives back.

    Args:
        text: a number, whole or with a fraction, and one of us, ms, s, m or min, and h; or a
            timedelta.

    Raises:
        ValueError: it is none, or is no whole number of microseconds, or below 0.
        TypeError: it is neither text nor a timedelta: a number has no unit.
    """

    __slots__ = ("_text", "us")

    def __init__(self, text: str | timedelta) -> None:
        if isinstance(text, timedelta):
            self.us = text // timedelta(microseconds=1)
            self._text = f"{self.us}us"
            if self.us < 0:
                raise ValueError(f"{text!r} is below 0")
            return
        if not isinstance(text, str):
            raise TypeError(
                f"{text!r} has no unit; give text or a timedelta: '250ms', '10s', '2min'"
            )
        found = _TYPED.fullmatch(text.strip())
        if found is None or found[2] not in _UNITS_US:
            raise ValueError(
                f"{text!r} is not a duration; give a number and its unit: "
                "500us, 250ms, 10s, 2min, 1h"
            )
        us = Decimal(found[1]) * _UNITS_US[found[2]]
        if us != int(us):
            raise ValueError(f"{text!r} is no whole number of microseconds")
        self._text = text
        self.us = int(us)

    @property
    def ms(self) -> float:
        """In milliseconds."""
        return self.us / 1_000

    @property
    def whole_ms(self) -> int:
        """In milliseconds, rounded down."""
        return self.us // 1_000

    @property
    def seconds(self) -> float:
        """In seconds."""
        return self.us / 1_000_000

    def __str__(self) -> str:
        return self._text


def duration_of(us: int) -> Duration:
    """Return a duration in the largest unit of which it is a whole number, such as 2min."""
    unit = max((size for size in _UNITS_US.values() if us % size == 0), default=1)
    name = [name for name, size in _UNITS_US.items() if size == unit][-1]
    return Duration(f"{us // unit}{name}")


def duration_between(text: str, least: str, most: str, step: str = "1ms") -> Duration:
    """Return a typed duration that is a multiple of ``step`` from ``least`` to ``most``.

    Raises:
        ValueError: it is none; says what would be right.
    """
    typed, shortest, longest, unit = map(Duration, (text, least, most, step))
    if typed.us < shortest.us:
        raise ValueError(f"'{typed}' is too short; it must be at least {least}")
    if typed.us > longest.us:
        raise ValueError(f"'{typed}' is too long; it must be at most {most}")
    if typed.us % unit.us:
        raise ValueError(f"'{typed}' is no multiple of {step}")
    return typed
