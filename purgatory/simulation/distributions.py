"""Random quantities, drawn from tables so that every machine draws the same.

A sample computed afresh would depend on the machine's own `exp` and `log`, which may differ in the
last bit. Here the quantiles are computed once and rounded to whole nanoseconds (or bytes), and each
draw picks one of them: the same on every machine, and several times cheaper. The price: no sample
lies beyond the outermost of `TABLE_SIZE` quantiles, the 0.99997 one. Median and 75th percentile are
exact.

Every entity has a random stream of its own (`stream`), so that an additional fault or consumer does
not change the others' draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from random import Random
from statistics import NormalDist

from purgatory.simulation.scenario import Spread

_BITS = 14
TABLE_SIZE = 1 << _BITS
"""The number of quantiles in a table."""

_Z75 = NormalDist().inv_cdf(0.75)


def stream(seed: int, *entity: object) -> Random:
    """The random stream of one entity: the same for the same seed and name, on any machine."""
    return Random(":".join(str(part) for part in (seed, *entity)))


def log_normal_table(p50: float, p75: float, scale: float = 1.0) -> tuple[int, ...]:
    """The quantiles of a log-normal distribution, as integers.

    Args:
        p50: the median, above 0, or 0 for a quantity that is always 0.
        p75: the 75th percentile, at least `p50`.
        scale: what to multiply by before rounding: 1e6 makes nanoseconds of milliseconds.
    """
    return _log_normal_table(p50, p75, scale)


@lru_cache(maxsize=64)
def _log_normal_table(p50: float, p75: float, scale: float) -> tuple[int, ...]:
    if p50 == p75:
        return (round(p50 * scale),)
    mu, sigma = math.log(p50 * scale), math.log(p75 / p50) / _Z75
    normal = NormalDist()
    return tuple(
        round(math.exp(mu + sigma * normal.inv_cdf((index + 0.5) / TABLE_SIZE)))
        for index in range(TABLE_SIZE)
    )


@lru_cache(maxsize=64)
def exponential_table(mean: float) -> tuple[int, ...]:
    """The quantiles of an exponential distribution with the given mean, as integers."""
    raw = [-math.log1p(-(index + 0.5) / TABLE_SIZE) for index in range(TABLE_SIZE)]
    # A finite table has a slightly smaller mean than the distribution; the rate must be exact.
    correction = TABLE_SIZE / math.fsum(raw)
    return tuple(round(value * correction * mean) for value in raw)


def sampler(spread: Spread, random: Random, scale: float = 1.0) -> Callable[[], int]:
    """A function that draws from a log-normal spread, as an integer in `1 / scale` of its unit."""
    return table_sampler(log_normal_table(spread.p50, spread.p75, scale), random)


def table_sampler(table: tuple[int, ...], random: Random) -> Callable[[], int]:
    """A function that draws one of a table's entries, each with the same probability."""
    if len(table) == 1:
        constant = table[0]
        return lambda: constant
    if len(table) != TABLE_SIZE:
        raise ValueError(f"a table has 1 or {TABLE_SIZE} entries, not {len(table)}")
    bits = random.getrandbits
    return lambda: table[bits(_BITS)]
