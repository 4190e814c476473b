"""The one rule for percentiles, so that simulation, analysis and live jobs agree on the same waits.

A percentile is interpolated between two neighbours in rank, as numpy and Spark's exact `percentile`
do: the share s of n waits lies at the rank s (n - 1), counted from 0. The longest wait is exact
even if waits are rounded to keep few counters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate

PERCENTILES = {
    "wait_p50_us": 0.5,
    "wait_p95_us": 0.95,
    "wait_p99_us": 0.99,
    "wait_p999_us": 0.999,
}
"""The columns of percentiles, and the share of operations with at most that wait."""

DECIMALS = 3
"""Decimals of a percentile. None of these percentiles has more between whole microseconds, so
rounding only removes the errors of floating point, which differ between engines."""


def percentiles(counts: Mapping[int, int], longest: int, shares: Iterable[float]) -> list[float]:
    """Return the waits, in microseconds, below which these shares of all waits lie.

    O(c log c), c = different waits. They are rounded to `DECIMALS`.

    Args:
        counts: how often each wait occurred, perhaps rounded down; at least one.
        longest: the longest wait, not rounded.
        shares: each from 0 to 1.
    """
    values = sorted(counts)
    up_to = list(accumulate(counts[value] for value in values))
    last = up_to[-1] - 1

    def at(rank: int) -> int:
        return longest if rank >= last else values[bisect_right(up_to, rank)]

    quantiles = []
    for share in shares:
        rank = share * last
        low, high = at(int(rank)), at(int(rank) + 1)
        quantiles.append(round(low + (high - low) * (rank - int(rank)), DECIMALS))
    return quantiles
