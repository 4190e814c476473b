"""Counts of durations by bucket: what lateness and waits are exported as.

Ground rules
------------
* ``observe`` may be called from any thread: counts and sum change together under one lock.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple


class HistogramSnapshot(NamedTuple):
    """The state at one moment: ``counts[i]`` values were at most ``bounds_ms[i]``, and above those
    of the bucket before; the last count is of what was more than all bounds."""

    bounds_ms: tuple[float, ...]
    counts: tuple[int, ...]
    sum_ms: float

    @property
    def total(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def quantile_ms(self, share: float) -> float:
        """Return a bound that ``share`` of the values don't exceed: 0.99 for the p99.

        It is the upper bound of the bucket where the quantile lies, so never too low; infinite in
        the last bucket, and 0 without values.
        """
        missing = share * self.total
        for bound_ms, count in zip((*self.bounds_ms, math.inf), self.counts, strict=True):
            missing -= count
            if count and missing <= 0:
                return bound_ms
        return 0.0


class Histogram:
    """A histogram with fixed bounds.

    Args:
        bounds_ms: the upper bound of each bucket in milliseconds, ascending; one more bucket takes
            what is above the last.
    """

    __slots__ = ("_bounds_ms", "_bounds_ns", "_counts", "_lock", "_sum_ns")

    def __init__(self, bounds_ms: Sequence[float]) -> None:
        if not bounds_ms or list(bounds_ms) != sorted(set(bounds_ms)):
            raise ValueError(f"bounds_ms must ascend and not be empty, not {list(bounds_ms)!r}")
        self._bounds_ms = tuple(bounds_ms)
        self._bounds_ns = [int(bound * 1_000_000) for bound in bounds_ms]
        self._counts = [0] * (len(bounds_ms) + 1)
        self._sum_ns = 0
        self._lock = threading.RLock()

    def observe(self, value_ns: int) -> None:
        """Count a duration of ``value_ns`` nanoseconds. O(log buckets)."""
        index = bisect_left(self._bounds_ns, value_ns)
        with self._lock:
            self._counts[index] += 1
            self._sum_ns += value_ns

    def snapshot(self) -> HistogramSnapshot:
        """Return counts and sum as of one moment."""
        with self._lock:
            return HistogramSnapshot(self._bounds_ms, tuple(self._counts), self._sum_ns / 1_000_000)
