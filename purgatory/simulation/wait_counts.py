"""Counts of waits in bounded memory, and their percentiles with a stated error.

A wait is counted under its value in microseconds, exact up to 9,999 us, and rounded down to four
significant digits above: at most 9,000 counters per power of ten, however many waits. So a
percentile is exact up to 10 ms and at most 0.1 % too small above; the longest wait is exact.
"""

from __future__ import annotations

from collections import Counter

from purgatory.trace.percentiles import percentiles

_EXACT_BELOW_US = 10_000
MAX_RELATIVE_ERROR = 0.001
"""By how much a percentile above 10 ms may be too small, as a share of it."""


def rounded_us(wait_us: int) -> int:
    """The counter of a wait: itself below 10,000 us, four significant digits above."""
    if wait_us < _EXACT_BELOW_US:
        return wait_us
    unit = 10
    while wait_us >= _EXACT_BELOW_US * unit:
        unit *= 10
    return wait_us - wait_us % unit


class Waits:
    """How often each wait was seen."""

    __slots__ = ("_counts", "max_us", "sum_us")

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.max_us = 0
        self.sum_us = 0

    def add(self, wait_us: int, times: int = 1) -> None:
        """Count a wait, that of one or of several. O(1)."""
        self._counts[wait_us if wait_us < _EXACT_BELOW_US else rounded_us(wait_us)] += times
        self.sum_us += wait_us * times
        if wait_us > self.max_us:
            self.max_us = wait_us

    def update(self, other: Waits) -> None:
        """Add all of another's waits. O(its different values)."""
        self._counts.update(other._counts)
        self.sum_us += other.sum_us
        self.max_us = max(self.max_us, other.max_us)

    @property
    def count(self) -> int:
        """How many waits were counted."""
        return self._counts.total()

    @property
    def mean_us(self) -> float | None:
        """Their exact mean, in microseconds; None if there are none."""
        count = self.count
        return self.sum_us / count if count else None

    def percentiles(self, *shares: float) -> list[float | None]:
        """The waits below which the given shares lie, in microseconds; None if there are none.

        O(c log c), c = different values.
        """
        if not self._counts:
            return [None] * len(shares)
        return [*percentiles(self._counts, self.max_us, shares)]
