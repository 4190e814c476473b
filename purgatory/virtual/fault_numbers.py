"""Numbers of faults as text: "0-2,7"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_MOST = 1_000_000
"""No plan has so many faults: a number above is a mistake, and a range to it would fill memory."""


def numbers_of(text: str) -> Sequence[int]:
    """Return the numbers that a text names, each once, the lowest first; none in an empty one.

    Raises:
        ValueError: it is no such text; says what one is.
    """
    numbers: set[int] = set()
    for part in text.split(",") if text.strip() else ():
        low, dash, high = (one.strip() for one in part.partition("-"))
        ends = (low, high if dash else low)
        if not all(end.isascii() and end.isdecimal() and len(end) < 8 for end in ends):
            raise ValueError(f"{part.strip()!r}: the numbers of faults are given as 3,7 or 0-2,7")
        first, last = map(int, ends)
        if not first <= last < _MOST:
            raise ValueError(f"{part.strip()!r}: a range of faults goes up, to below {_MOST:,}")
        numbers.update(range(first, last + 1))
    return sorted(numbers)


def text_of(numbers: Iterable[int]) -> str:
    """Return the shortest text that names these numbers."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
