"""Planned faults of a world: their rate, and the numbers by which they are excluded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

from purgatory.virtual.clocks import US_PER_S

_PER_MINUTE: Final = {"s": 60.0, "min": 1.0, "h": 1 / 60}


def rate_per_min(rate: str | float) -> float:
    """Parse a rate: "6/min", "0.1/s", "30/h", or a number per minute.

    Raises:
        ValueError: the rate is malformed.
    """
    if isinstance(rate, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*/\s*(s|min|h)\s*", rate)
        if match is None:
            raise ValueError(f'rate: "6/min", "0.1/s" or "30/h", not {rate!r}')
        return float(match[1]) * _PER_MINUTE[match[2]]
    if not isfinite(rate) or rate < 0:
        raise ValueError(f"rate: a number from 0 of faults per minute, not {rate!r}")
    return float(rate)


@dataclass(frozen=True)
class PlannedFault:
    """A fault of a world.

    Args:
        number: the number to exclude it by.
        at_us: when it begins, in microseconds since the world began.
        text: its description.
        begin: begins it; may return a coroutine.
    """

    number: int
    at_us: int
    text: str
    begin: Callable[[], object]

    def __str__(self) -> str:
        return f"{self.number:>4}  {self.at_us / US_PER_S:12.6f} s  {self.text}"


_MAX_NUMBER = 1_000_000
"""More faults than any plan has: a range beyond would fill memory."""


def parse_numbers(text: str) -> Sequence[int]:
    """Parse numbers and ranges such as "0-2,7" into sorted, unique numbers.

    Raises:
        ValueError: the text is malformed.
    """
    numbers: set[int] = set()
    for part in text.split(",") if text.strip() else ():
        low, dash, high = (end.strip() for end in part.partition("-"))
        ends = (low, high if dash else low)
        if not all(end.isascii() and end.isdecimal() and len(end) < 8 for end in ends):
            raise ValueError(f"{part.strip()!r}: the numbers of faults are given as 3,7 or 0-2,7")
        first, last = map(int, ends)
        if not first <= last < _MAX_NUMBER:
            raise ValueError(
                f"{part.strip()!r}: a range of faults goes up, to below {_MAX_NUMBER:,}"
            )
        numbers.update(range(first, last + 1))
    return sorted(numbers)


def format_numbers(numbers: Iterable[int]) -> str:
    """Return the shortest text of these numbers."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
