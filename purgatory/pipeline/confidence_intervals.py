"""Confidence intervals by Student's t: of a mean over seeds, and of the difference of two means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist, variance

_EXACT_UP_TO = 100


def welch_half_width(
    first: Sequence[float], second: Sequence[float], confidence: float
) -> float | None:
    """Half of the interval of confidence around the difference of two means (Welch).

    The degrees of freedom are rounded down, so the interval is at least as wide as it must be.

    Args:
        first, second: a value of each run.
        confidence: between 0 and 1.

    Returns:
        None if the spread between runs is unknown: with one run of a kind, or if all of each kind
        have the same value.
    """
    if min(len(first), len(second)) < 2:
        return None
    errors = [variance(values) / len(values) for values in (first, second)]
    if not any(errors):
        return None
    spread = sum(
        error**2 / (len(values) - 1) for error, values in zip(errors, (first, second), strict=True)
    )
    freedom = max(1, math.floor(sum(errors) ** 2 / spread)) if spread else 1
    return t_quantile((1 + confidence) / 2, freedom) * math.sqrt(sum(errors))


@lru_cache(maxsize=1024)
def t_quantile(share: float, freedom: int) -> float:
    """The quantile of Student's t: below it lies the given share.

    Args:
        share: above 0.5 and below 1.
        freedom: the degrees of freedom, at least 1: one less than there are values.

    Returns:
        Exact to 1e-9 up to 100 degrees of freedom, and to 1e-4 above.
    """
    if freedom > _EXACT_UP_TO:
        z = NormalDist().inv_cdf(share)
        return z + (z**3 + z) / (4 * freedom)
    low, high = 0.0, 1.0
    while _below(high, freedom) < share:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _below(middle, freedom) < share else (low, middle)
    return (low + high) / 2


def _below(t: float, freedom: int) -> float:
    """The share below t > 0: the finite series for whole degrees of freedom."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    term = 1.0 if freedom % 2 == 0 else cosine
    total = 0.0 if freedom == 1 else term
    first = 1 if freedom % 2 == 0 else 2
    for number in range(first, freedom - 2, 2):
        term *= cosine * cosine * number / (number + 1)
        total += term
    if freedom % 2 == 0:
        between = math.sin(angle) * total
    else:
        between = 2 / math.pi * (angle + math.sin(angle) * total)
    return 0.5 + between / 2
