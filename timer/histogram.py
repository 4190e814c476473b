"""Histograms, counts of durations by bucket: the form in which lateness and waits are exported.

Ground rules
------------
* ``observe`` may be called from any thread, and takes no lock as a rule: it appends the value in
  one step of the interpreter. Pending values are counted under the lock, many at a time, and before
  anybody looks: counts and sum change together.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from timer.backend import NATIVE, describe_as
from timer.locks import module_lock

MAX_PENDING = 50
"""The number of values that are kept before they are counted."""

_lock = module_lock()


class HistogramSnapshot(NamedTuple):
    """The state at one moment: ``counts[i]`` values were at most ``bounds_ms[i]``, and above those
    of the bucket before; the last count is of what was more than all bounds."""

    bounds_ms: tuple[float, ...]
    counts: tuple[int, ...]
    sum_ms: float

    @property
    def total(self) -> int:
        """The number of values so far."""
        return sum(self.counts)

    def quantile_ms(self, quantile: float) -> float:
        """Return a bound that ``quantile`` of the values don't exceed: 0.99 for the p99.

        The bound is the upper one of the quantile's bucket, so never too low; infinite in the last
        bucket, and 0 without values.
        """
        remaining = quantile * self.total
        for bound_ms, count in zip((*self.bounds_ms, math.inf), self.counts, strict=True):
            remaining -= count
            if count and remaining <= 0:
                return bound_ms
        return 0.0


class _PureHistogram:
    """The counts, in pure Python."""

    __slots__ = ("_bounds_ms", "_bounds_ns", "_counts", "_pending_ns", "_sum_ns")

    def __init__(self, bounds_ms: Sequence[float]) -> None:
        self._bounds_ms = tuple(bounds_ms)
        self._bounds_ns = [int(bound * 1_000_000) for bound in bounds_ms]
        self._counts = [0] * (len(bounds_ms) + 1)
        self._sum_ns = 0
        self._pending_ns: deque[int] = deque()

    def observe(self, value_ns: int) -> None:
        """Count a duration of ``value_ns`` nanoseconds. O(log buckets)."""
        pending_ns = self._pending_ns
        pending_ns.append(value_ns)
        if len(pending_ns) > MAX_PENDING:
            with _lock:
                self._count_pending()

    def counted(self) -> tuple[tuple[int, ...], int]:
        """Return the counts, and the sum in nanoseconds."""
        with _lock:
            self._count_pending()
            return tuple(self._counts), self._sum_ns

    def _count_pending(self) -> None:
        pending_ns = self._pending_ns
        while pending_ns:
            value_ns = pending_ns.popleft()
            self._counts[bisect_left(self._bounds_ns, value_ns)] += 1
            self._sum_ns += value_ns


if TYPE_CHECKING or not NATIVE:
    Counts = _PureHistogram
else:
    from timer.native.histogram import NativeHistogram as Counts

    describe_as(Counts, _PureHistogram)


class Histogram(Counts):
    """A histogram with fixed bounds.

    Args:
        bounds_ms: the upper bound of each bucket in milliseconds, ascending; one more bucket takes
            what is above the last.
    """

    __slots__ = ()

    def __init__(self, bounds_ms: Sequence[float]) -> None:
        if not bounds_ms or list(bounds_ms) != sorted(set(bounds_ms)):
            raise ValueError(f"bounds_ms must ascend and not be empty, not {list(bounds_ms)!r}")
        super().__init__(bounds_ms)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.snapshot().total} values>"

    def snapshot(self) -> HistogramSnapshot:
        """Return counts and sum as of one moment."""
        counts, sum_ns = self.counted()
        return HistogramSnapshot(self._bounds_ms, counts, sum_ns / 1_000_000)
