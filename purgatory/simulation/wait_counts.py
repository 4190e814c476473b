"""Counts of waits in bounded memory, and their percentiles with a stated error.

A wait is counted under its value as `rounded_waits` has it, so a percentile is exact up to 10 ms
and at most 0.1 % too small above; the longest wait is exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from purgatory.trace.percentiles import percentiles
from purgatory.trace.rounded_waits import EXACT_BELOW_US, rounded_us


class Waits:
    """How often each wait was seen."""

    __slots__ = ("_counts", "max_us", "sum_us")

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.max_us = 0
        self.sum_us = 0

    def add(self, wait_us: int) -> None:
        """Count a wait. O(1)."""
        self._counts[wait_us if wait_us < EXACT_BELOW_US else rounded_us(wait_us)] += 1
        self.sum_us += wait_us
        if wait_us > self.max_us:
            self.max_us = wait_us

    def add_all(self, waits_us: Sequence[int]) -> None:
        """Count several waits, at a fraction of what as many calls of `add` cost. O(waits)."""
        longest_us = max(waits_us, default=0)
        exact = longest_us < EXACT_BELOW_US
        self._counts.update(waits_us if exact else map(rounded_us, waits_us))
        self.sum_us += sum(waits_us)
        self.max_us = max(self.max_us, longest_us)

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
