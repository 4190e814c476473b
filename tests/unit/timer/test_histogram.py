"""Counts of durations by bucket."""

from __future__ import annotations

import math
import threading

import pytest

from timer.histogram import MAX_PENDING, Histogram

MS = 1_000_000


def test_value_counts_in_the_first_bucket_that_covers_it() -> None:
    histogram = Histogram([0.5, 1, 2])
    for value_ns in (0, MS // 2, MS // 2 + 1, MS, MS + 1, 2 * MS, 2 * MS + 1, 10**12):
        histogram.observe(value_ns)
    snapshot = histogram.snapshot()
    assert list(snapshot.bounds_ms) == [0.5, 1, 2]
    assert list(snapshot.counts) == [2, 2, 2, 2]
    assert snapshot.total == 8
    assert snapshot.sum_ms == pytest.approx(0.5 + 0.5 + 1 + 1 + 2 + 2 + 1_000_000, abs=1e-5)


def test_a_new_histogram_is_empty() -> None:
    assert Histogram([1]).snapshot() == ((1,), (0, 0), 0.0)


def test_a_snapshot_does_not_change() -> None:
    histogram = Histogram([1])
    before = histogram.snapshot()
    histogram.observe(5)
    assert before.total == 0


@pytest.mark.parametrize("bounds_ms", [[], [2, 1], [1, 1], [1, 2, 2]], ids=repr)
def test_bounds_that_do_not_ascend_are_refused_by_value(bounds_ms: list[float]) -> None:
    with pytest.raises(ValueError, match="must ascend and not be empty") as info:
        Histogram(bounds_ms)
    assert repr(bounds_ms) in str(info.value)


def test_values_from_many_threads_are_all_counted() -> None:
    histogram = Histogram([1, 2])

    def observe() -> None:
        for _ in range(1_000):
            histogram.observe(3 * MS)

    threads = [threading.Thread(target=observe) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert histogram.snapshot() == ((1, 2), (0, 0, 4_000), 12_000.0)


@pytest.mark.pure
def test_pending_values_stay_bounded_without_a_reader() -> None:
    histogram = Histogram([1])
    most = 0
    for _ in range(10 * MAX_PENDING):
        histogram.observe(MS)
        most = max(most, len(histogram._pending_ns))
    assert most == MAX_PENDING
    assert histogram.snapshot() == ((1,), (10 * MAX_PENDING, 0), 10.0 * MAX_PENDING)


def test_a_quantile_is_the_upper_bound_of_the_bucket_where_it_lies() -> None:
    histogram = Histogram((1, 2, 5))
    assert histogram.snapshot().quantile_ms(0.99) == 0
    for value_us in (500, 500, 500, 500, 500, 1_500, 1_500, 1_500, 1_500, 9_000):
        histogram.observe(value_us * 1_000)
    quantiles = [histogram.snapshot().quantile_ms(share) for share in (0.5, 0.6, 0.9, 0.99)]
    assert quantiles == [1, 2, 2, math.inf]
