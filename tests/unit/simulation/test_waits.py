"""Percentiles of waits, against the exact ones."""

from __future__ import annotations

import random

import numpy as np
import pytest

from purgatory.simulation.latencies import Waits
from purgatory.trace.rounded_waits import MAX_RELATIVE_ERROR, round_us


def waits_of(values: list[int]) -> Waits:
    waits = Waits()
    for value in values:
        waits.add(value)
    return waits


@pytest.mark.parametrize(
    ("wait_us", "counted_as"),
    [
        (0, 0),
        (9_999, 9_999),
        (10_000, 10_000),
        (10_009, 10_000),
        (99_999, 99_990),
        (100_000, 100_000),
        (1_234_567, 1_234_000),
        (30_000_123, 30_000_000),
    ],
)
def test_a_wait_is_exact_below_10_ms_and_has_four_digits_above(
    wait_us: int, counted_as: int
) -> None:
    assert round_us(wait_us) == counted_as


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_are_within_the_stated_error(seed: int) -> None:
    chance = random.Random(seed)
    values = [int(chance.lognormvariate(8, 3)) for _ in range(chance.randrange(1, 3_000))]
    shares = [0.0, 0.25, 0.5, 0.95, 0.99, 1.0]
    measured = waits_of(values).percentiles(*shares)
    exact = np.percentile(values, [100 * share for share in shares])
    for got, expected in zip(measured, exact, strict=True):
        assert got is not None
        assert expected * (1 - MAX_RELATIVE_ERROR) - 1e-6 <= got <= expected + 1e-6


def test_the_longest_wait_is_exact() -> None:
    waits = waits_of([5, 1_500_123])
    assert waits.max_us == 1_500_123
    assert waits.percentiles(1.0) == [1_500_123]


def test_no_waits_have_no_percentile() -> None:
    assert Waits().percentiles(0.5) == [None]


def test_waits_add_up() -> None:
    first, second = waits_of([1, 2]), waits_of([2, 900_000])
    first.update(second)
    assert (first.count, first.max_us) == (4, 900_000)
    assert first.percentiles(0.5) == [2]
