"""Shrinking of failures, with plain functions as tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from purgatory.virtual.failure_report import RepeatedTest, WorldFailure
from purgatory.virtual.schedules import parse_schedule
from purgatory.virtual.shrinking import AttemptsError, NotReproducedError, Shrinking

_TEST = RepeatedTest("test_it.py::test_it", 3)


_DEVIATIONS = {3: 1, 7: 2, 9: 1, 12: 1}


def _failure(test: RepeatedTest, kind: str = "AssertionError at test_it.py:7") -> WorldFailure:
    begun_faults = [number for number in range(8) if number not in test.without]
    schedule = parse_schedule(test.schedule, None)
    planned = schedule.planned if schedule and schedule.planned else _DEVIATIONS
    return WorldFailure(
        test,
        kind,
        planned_faults=10,
        begun_faults=begun_faults,
        uses_network=True,
        deviations=planned if schedule else {},
        report=test.command,
    )


def _tested(
    fails: Callable[[RepeatedTest], str | None], first: RepeatedTest = _TEST, attempts: int = 300
) -> tuple[RepeatedTest, int]:
    """The smallest failed test, and the number of attempts."""

    def attempt(test: RepeatedTest) -> WorldFailure | None:
        kind = fails(test)
        return None if kind is None else _failure(test, kind)

    kind = fails(first)
    assert kind is not None
    shrinking = Shrinking(_failure(first, kind), attempt, attempts)
    shrinking.shrink()
    return shrinking.smallest.test, shrinking.attempts


def test_faults_are_excluded_before_the_network_is_made_plain() -> None:
    smallest, _ = _tested(lambda test: None if {2, 6} & set(test.without) else "the bug")
    assert smallest == replace(_TEST, without=[0, 1, 3, 4, 5, 7, 8, 9], plain_network=True)


def test_needed_network_settings_are_kept() -> None:
    smallest, _ = _tested(lambda test: None if test.plain_network else "the bug")
    assert smallest == replace(_TEST, without=[*range(10)])


def test_faults_that_had_not_begun_may_be_needed() -> None:
    smallest, _ = _tested(lambda test: None if 9 in test.without else "the bug")
    assert smallest == replace(_TEST, without=[*range(9)], plain_network=True)


def test_different_failure_does_not_count_as_the_same() -> None:
    def fails(test: RepeatedTest) -> str:
        return "another bug" if 4 in test.without or test.plain_network else "the bug"

    smallest, _ = _tested(fails)
    assert smallest == replace(_TEST, without=[0, 1, 2, 3, 5, 6, 7, 8, 9])


def test_omitted_faults_stay_omitted() -> None:
    def fails(tried: RepeatedTest) -> str | None:
        assert {1, 2} <= set(tried.without)
        assert tried.plain_network
        return None if 5 in tried.without else "the bug"

    smallest, _ = _tested(fails, replace(_TEST, without=[1, 2], plain_network=True))
    assert smallest.without == [0, 1, 2, 3, 4, 6, 7, 8, 9]


def test_schedule_deviations_are_removed_last() -> None:
    tried: list[RepeatedTest] = []

    def fails(test: RepeatedTest) -> str | None:
        tried.append(test)
        return "the bug" if test.schedule == "random" or "7:2" in test.schedule else None

    smallest, _ = _tested(fails, replace(_TEST, schedule="random"))
    assert smallest == replace(_TEST, without=[*range(10)], plain_network=True, schedule="7:2")
    assert [test.schedule for test in tried[:5]] == ["random"] * 5


def test_later_deviations_shift_when_an_earlier_one_is_removed() -> None:
    def fails(test: RepeatedTest) -> str | None:
        needed = {"7:2", "9:1"} <= {*test.schedule.split(",")}
        return "the bug" if test.schedule == "random" or needed or test.schedule == "8:1" else None

    smallest, _ = _tested(fails, replace(_TEST, schedule="random"))
    assert smallest.schedule == "8:1"


def test_unneeded_schedule_is_removed() -> None:
    smallest, _ = _tested(lambda test: "the bug", replace(_TEST, schedule="pct:3"))
    assert smallest == replace(_TEST, without=[*range(10)], plain_network=True)


def test_attempts_have_a_limit() -> None:
    with pytest.raises(AttemptsError):
        _tested(lambda test: None if {2, 6} & set(test.without) else "the bug", attempts=4)
    failure = _failure(_TEST)
    shrinking = Shrinking(failure, lambda test: _failure(test, failure.kind), 3)
    assert (
        "(3 attempts, and no more: --virtual-shrink-attempts 15 looks further)" in shrinking.run()
    )


def test_failure_that_does_not_repeat_is_reported() -> None:
    with pytest.raises(NotReproducedError, match="the test passed"):
        Shrinking(_failure(_TEST), lambda test: None).shrink()
    other = _failure(_TEST, "another bug")
    with pytest.raises(NotReproducedError, match="another failure came: another bug, and not Ass"):
        Shrinking(_failure(_TEST), lambda test: other).shrink()


def test_one_fault_of_many_takes_few_attempts() -> None:
    smallest, attempts = _tested(lambda test: None if 3 in test.without else "the bug")
    assert smallest.without == [0, 1, 2, *range(4, 10)]
    assert attempts <= 10
