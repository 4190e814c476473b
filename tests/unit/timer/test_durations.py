"""Durations as callers give them: numbers whose unit the name tells, and timedeltas."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest

from purgatory import AsyncPurgatory, DelayedOperation, DelayedOperationPurgatory, Outcome
from timer import InlineExecutor, ManualClock, SystemTimer
from timer.durations import checked_interval_s, checked_ms, checked_timeout_s
from timer.executor import SingleThreadExecutor
from timer.wake import Wake

HALF_A_SECOND = timedelta(seconds=0.5)


class Waiting(DelayedOperation):
    def try_complete(self) -> bool:
        return False


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def purgatory(clock: ManualClock) -> DelayedOperationPurgatory:
    timer = SystemTimer("manual", clock=clock, executor=InlineExecutor())
    return DelayedOperationPurgatory("Fetch", timer=timer, reaper_enabled=False)


# Accepted values.


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        (250, 250),
        (timedelta(seconds=30), 30_000),
        (timedelta(microseconds=1), 1),  # never shorter than was asked for
        (timedelta(milliseconds=-1.5), -1),
        (timedelta.max, 86_400_000_000_000_000_000 // 1_000),
    ],
)
def test_milliseconds_are_an_integer_or_a_timedelta(given: Any, ms: int) -> None:
    assert checked_ms("delay_ms", given) == ms


@pytest.mark.parametrize(
    ("given", "seconds"), [(None, math.inf), (2, 2), (0.5, 0.5), (HALF_A_SECOND, 0.5), (-3.5, -3.5)]
)
def test_a_timeout_is_seconds_or_a_timedelta_or_none(given: Any, seconds: float) -> None:
    assert checked_timeout_s(given) == seconds


def test_a_timer_takes_timedeltas(clock: ManualClock) -> None:
    timer = SystemTimer("wheel", timedelta(milliseconds=1), 20, clock, InlineExecutor())
    task = timer.call_later(HALF_A_SECOND, int)
    assert task.delay_ms == 500
    task.delay_ms = timedelta(seconds=1)  # type: ignore[assignment]
    timer.add(task)
    clock.advance(timedelta(milliseconds=999))
    timer.advance_clock(timedelta(0))
    assert timer.size == 1
    clock.advance_to(timedelta(seconds=1))
    timer.advance_clock()
    assert timer.size == 0
    assert ManualClock(timedelta(seconds=2)).now_ms() == 2_000
    assert timer.close(timedelta(seconds=1)) == 0
    SingleThreadExecutor("worker").shutdown(timedelta(seconds=1))
    assert not Wake().wait(timedelta(milliseconds=1))


def test_a_purgatory_takes_timedeltas(
    purgatory: DelayedOperationPurgatory, clock: ManualClock
) -> None:
    operation = Waiting(timedelta(minutes=1))
    assert operation.delay_ms == 60_000
    purgatory.try_complete_else_watch(operation, ["log"])
    assert operation.wait(timedelta(0)) is Outcome.PENDING
    clock.advance(timedelta(minutes=1))
    purgatory.timer.advance_clock(0)
    assert operation.outcome is Outcome.EXPIRED
    with DelayedOperationPurgatory("Threads") as threaded, pytest.raises(TimeoutError):
        threaded.wait_for_threshold("log", 1, timeout=timedelta(milliseconds=1))
    assert purgatory.close(timeout=timedelta(seconds=1)) == 0


def test_a_purgatory_of_a_loop_takes_timedeltas() -> None:
    async def main() -> None:
        async with AsyncPurgatory("Fetch") as purgatory:
            tick = timedelta(milliseconds=1)
            with pytest.raises(TimeoutError, match=r"not within 0\.001 s"):
                await purgatory.wait(["log"], lambda: False, timeout=tick)
            with pytest.raises(TimeoutError):
                await purgatory.wait_for_threshold("log", 1, timeout=tick)
            assert await purgatory.aclose(timeout=timedelta(seconds=1)) == 0

    asyncio.run(main())


# Refused values, by name.


@pytest.mark.parametrize("given", [True, 0.5, math.nan, "250", None, Fraction(3)], ids=repr)
def test_milliseconds_of_another_type_are_refused(given: object) -> None:
    expected = "lag_ms must be a whole number of milliseconds, an int, or a timedelta, not "
    with pytest.raises(TypeError) as refusal:
        checked_ms("lag_ms", given)
    assert str(refusal.value).startswith(f"{expected}{given!r} ({type(given).__name__})")


def test_the_error_for_a_fraction_of_milliseconds_shows_a_timedelta() -> None:
    with pytest.raises(
        TypeError, match=r"not 0\.5 \(float\); 0\.5 s are timedelta\(seconds=0\.5\)"
    ):
        Waiting(0.5)  # type: ignore[arg-type]


def test_too_few_milliseconds_are_refused() -> None:
    with pytest.raises(ValueError, match="tick_ms must be at least 1, not 0"):
        SystemTimer("wheel", tick_ms=0)
    with pytest.raises(ValueError, match=r"start_ms must be at least 0, not datetime\.timedelta"):
        ManualClock(timedelta(seconds=-1))


@pytest.mark.parametrize("given", [True, "1", [], Fraction(3)], ids=repr)
def test_seconds_of_another_type_are_refused(given: Any) -> None:
    with pytest.raises(
        TypeError, match="timeout must be a number of seconds, a timedelta, or None"
    ):
        checked_timeout_s(given)
    with pytest.raises(TypeError, match="resync must be a number of seconds or a timedelta, not"):
        checked_interval_s("resync", given)


@pytest.mark.parametrize("given", [0, -1.5, timedelta(0)], ids=repr)
def test_an_interval_is_above_0(given: Any) -> None:
    with pytest.raises(ValueError, match="resync must be more than 0 seconds"):
        checked_interval_s("resync", given)
    assert checked_interval_s("resync", HALF_A_SECOND) == 0.5
