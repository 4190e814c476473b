"""Chance: the asked percentiles, from a stream per entity, the same everywhere."""

from __future__ import annotations

import statistics

import pytest

from purgatory.simulation.distributions import (
    TABLE_SIZE,
    exponential_table,
    log_normal_table,
    sampler,
    stream,
    table_sampler,
)
from purgatory.simulation.scenario import Spread


def test_log_normal_table_has_the_given_percentiles() -> None:
    table = log_normal_table(1.0, 2.0, 1e6)
    assert len(table) == TABLE_SIZE and list(table) == sorted(table)
    assert statistics.median(table) == pytest.approx(1e6, rel=1e-3)
    assert table[TABLE_SIZE * 3 // 4] == pytest.approx(2e6, rel=1e-3)


def test_equal_percentiles_are_a_constant() -> None:
    assert log_normal_table(0.25, 0.25, 1e6) == (250_000,)
    assert sampler(Spread(p50=0.0, p75=0.0), stream(1, "x"))() == 0


def test_exponential_table_has_the_given_mean() -> None:
    table = exponential_table(5e7)
    assert statistics.fmean(table) == pytest.approx(5e7, rel=1e-6)
    assert statistics.median(table) == pytest.approx(5e7 * 0.6931, rel=1e-3)


def test_samples_follow_the_table() -> None:
    draw = sampler(Spread(p50=1.0, p75=2.0), stream(3, "lag"), 1e6)
    drawn = sorted(draw() for _ in range(20_000))
    assert drawn[10_000] == pytest.approx(1e6, rel=0.05)
    assert drawn[15_000] == pytest.approx(2e6, rel=0.05)


def test_a_table_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="1 or 16384 entries, not 3"):
        table_sampler((1, 2, 3), stream(1, "x"))


def test_a_stream_depends_on_seed_and_entity_only() -> None:
    # The numbers themselves: they must never change, or every seed means another run.
    lag = stream(1, "follower", 2, "lag")
    assert [lag.getrandbits(14) for _ in range(3)] == [199, 6633, 15330]
    assert stream(1, "a").random() != stream(1, "b").random()
    assert stream(1, "a").random() != stream(2, "a").random()
