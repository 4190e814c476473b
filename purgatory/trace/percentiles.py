"""The one rule for percentiles: the same waits have the same ones in a simulation, in an analysis
and live.

Between two neighbours in rank a percentile is interpolated, as numpy and Spark's exact `percentile`
do: the share s of n waits lies at the rank s (n - 1), counted from 0. Where waits are rounded to
keep few counters, the longest still counts as it was.
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
"""The columns of percentiles, and the share of operations that waited at most that long."""

DECIMALS = 3
"""To how many a percentile is rounded. Between whole microseconds none of these has more, so that
rounding removes what floating point adds, which is another in each engine."""


def percentiles(counts: Mapping[int, int], longest: int, shares: Iterable[float]) -> list[float]:
    """Return the waits, in microseconds, below which these shares of all waits lie.

    O(c log c), c = different waits. They are rounded to `DECIMALS`.

    Args:
        counts: how often each wait was seen, perhaps rounded down; at least one.
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
