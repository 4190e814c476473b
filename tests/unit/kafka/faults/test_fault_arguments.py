"""Faults with wrong arguments, and random draws by right ones."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from statistics import fmean, median, quantiles
from typing import Any

import pytest
from kio.schema.errors import ErrorCode as WireError

from purgatory.kafka.errors import ClusterError, ErrorCode
from purgatory.kafka.faults import (
    DelayResponses,
    JumpClock,
    LoseResponses,
    ReturnError,
    SlowFollower,
    Throttle,
    parse_fault,
)


def test_errors_have_the_numbers_of_the_protocol() -> None:
    assert {one.name.upper(): int(one) for one in WireError} == dict(ErrorCode.__members__)


@pytest.mark.parametrize(
    ("error", "right"),
    [
        ("NOT_LEADER", "Kafka has no such error; the nearest are NOT_LEADER_OR_FOLLOWER,"),
        ("not-leader-or-follower", "the nearest are NOT_LEADER_OR_FOLLOWER,"),
        ("COORDINATOR_LOADING", "the nearest are COORDINATOR_LOAD_IN_PROGRESS,"),
        ("", "Kafka has no such error; the nearest are"),
        (6, "Kafka has no such error; the nearest are"),
        (None, "error or errors: one of them"),
        ("NONE", "is not an error"),
    ],
)
def test_unknown_error_is_reported_with_the_nearest_names(error: Any, right: str) -> None:
    with pytest.raises(ClusterError, match=right):
        ReturnError(error=error)


def test_api_is_named_in_camel_or_snake_case() -> None:
    names = ["OffsetForLeaderEpoch", "offset_for_leader_epoch", "offset-for-leader-epoch"]
    assert {LoseResponses(api=name).api for name in names} == {"offset_for_leader_epoch"}
    fault = ReturnError(api="Produce", error="NOT_LEADER_OR_FOLLOWER", topic="orders", count=3)
    assert fault.applies_to(1, "produce", None) and not fault.applies_to(1, "fetch", None)
    assert (fault.error_code, fault.chosen) == (6, {"topic": "orders"})


def _drawn(**arguments: Any) -> list[float]:
    fault, random = DelayResponses(**arguments), Random(5)
    return [fault.draw_ms(random) for _ in range(4_000)]


def test_delays_have_the_requested_distribution() -> None:
    assert set(_drawn(by_ms=7)) == {7}
    uniform = _drawn(by_ms=10, distribution="uniform", to_ms=30)
    assert 10 <= min(uniform) < 10.1 and 29.9 < max(uniform) <= 30
    assert 19.5 < fmean(uniform) < 20.5
    exponential = _drawn(by_ms=40, distribution="exponential")
    assert 38 < fmean(exponential) < 42 and 26 < median(exponential) < 30
    lognormal = _drawn(by_ms=10, distribution="lognormal", p75_ms=20)
    assert 9 < median(lognormal) < 11 and 18 < quantiles(lognormal, n=4)[2] < 22
    assert set(_drawn(by_ms=0, distribution="exponential")) == {0}
    assert set(_drawn(by_ms=0, distribution="lognormal", p75_ms=5)) == {0}


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ({"distribution": "gauss"}, "one of fixed, uniform, exponential, lognormal"),
        ({"distribution": 5}, "one of fixed, uniform, exponential, lognormal"),
        ({"distribution": "uniform"}, "it takes to_ms"),
        ({"distribution": "uniform", "to_ms": 4}, "by_ms=5 or more"),
        ({"distribution": "lognormal"}, "it takes p75_ms"),
        ({"distribution": "lognormal", "p75_ms": "9"}, "milliseconds"),
        ({"p75_ms": 9}, "that is for distribution='lognormal'"),
        ({"distribution": "exponential", "to_ms": 9}, "that is for distribution='uniform'"),
        ({"seed": 1.5}, "a whole number"),
    ],
)
def test_invalid_distribution_is_reported(arguments: dict[str, Any], right: str) -> None:
    with pytest.raises(ClusterError, match=right):
        parse_fault({"kind": "delay_responses", "by_ms": 5, **arguments})


def test_times_may_be_timedeltas() -> None:
    slow = SlowFollower(1, timedelta(microseconds=250), for_s=timedelta(minutes=1))
    assert slow == SlowFollower(1, 0.25, for_s=60)
    assert slow.settings == {"broker": 1, "lag_ms": 0.25}  # plain data, for JSON
    delay = DelayResponses(
        by_ms=timedelta(seconds=1), distribution="uniform", to_ms=timedelta(seconds=2)
    )
    assert (delay.by_ms, delay.to_ms) == (1_000, 2_000)
    assert Throttle(throttle_ms=timedelta(milliseconds=1.5)).throttle_ms == 2  # never shorter
    assert JumpClock(1, timedelta(hours=-1)).jump_ms == -3_600_000


@pytest.mark.parametrize(
    ("kind", "arguments", "right"),
    [
        ("slow_follower", {"lag_ms": timedelta(seconds=-1)}, "lag_ms=-1000: .* or a timedelta"),
        ("slow_follower", {"lag_ms": "2s"}, "lag_ms='2s': a number of milliseconds, .*timedelta"),
        ("kill", {"for_s": timedelta(0)}, "for_s=0: a number of seconds above 0, or a timedelta"),
        ("kill", {"lost_records": timedelta(1)}, r"lost_records=datetime.*: a whole number"),
    ],
)
def test_invalid_times_are_named(kind: str, arguments: dict[str, Any], right: str) -> None:
    with pytest.raises(ClusterError, match=right):
        parse_fault({"kind": kind, "broker": 1, **arguments})
