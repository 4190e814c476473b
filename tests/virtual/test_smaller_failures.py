"""How a failure is made smaller, with tests that are functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from purgatory.virtual.failure_report import RepeatedTest, WorldFailure
from purgatory.virtual.shrinking import NotReproducedError, shrink_failure

_TEST = RepeatedTest("test_it.py::test_it[seed3]", 3)


def _failure(test: RepeatedTest, kind: str = "AssertionError at test_it.py:7") -> WorldFailure:
    begun_faults = [number for number in range(8) if number not in test.without]
    return WorldFailure(
        test, kind, planned_faults=10, begun_faults=begun_faults, report=test.command
    )


def _tested(fails: Callable[[RepeatedTest], str | None]) -> tuple[list[RepeatedTest], int]:
    """The tests that failed one after the other, and how many attempts there were."""
    attempts = 0

    def attempt(test: RepeatedTest) -> WorldFailure | None:
        nonlocal attempts
        attempts += 1
        kind = fails(test)
        return None if kind is None else _failure(test, kind)

    kind = fails(_TEST)
    assert kind is not None
    found = shrink_failure(_failure(_TEST, kind), attempt)
    return [failure.test for failure in found], attempts


def test_faults_are_left_out_and_then_the_network_is_made_plain() -> None:
    steps, _ = _tested(lambda test: None if {2, 6} & set(test.without) else "the bug")
    assert steps[0] == _TEST
    assert steps[1] == replace(_TEST, without=[8, 9]), "what had not begun"
    assert steps[-2] == replace(_TEST, without=[0, 1, 3, 4, 5, 7, 8, 9])
    assert steps[-1] == replace(steps[-2], plain_network=True)


def test_a_network_that_is_needed_stays() -> None:
    steps, _ = _tested(lambda test: None if test.plain_network else "the bug")
    assert steps[-1] == replace(_TEST, without=[*range(10)])


def test_faults_that_had_not_begun_may_be_needed() -> None:
    steps, _ = _tested(lambda test: None if 9 in test.without else "the bug")
    assert steps[-1] == replace(_TEST, without=[*range(9)], plain_network=True)


def test_another_failure_is_not_taken_for_the_same() -> None:
    def fails(test: RepeatedTest) -> str:
        return "another bug" if 4 in test.without or test.plain_network else "the bug"

    steps, _ = _tested(fails)
    assert steps[-1] == replace(_TEST, without=[0, 1, 2, 3, 5, 6, 7, 8, 9])


def test_what_was_left_out_stays_so() -> None:
    test = replace(_TEST, without=[1, 2], plain_network=True)

    def attempt(tried: RepeatedTest) -> WorldFailure | None:
        assert {1, 2} <= set(tried.without)
        assert tried.plain_network
        return None if 5 in tried.without else _failure(tried)

    *_, last = shrink_failure(_failure(test), attempt)
    assert last.test.without == [0, 1, 2, 3, 4, 6, 7, 8, 9]


def test_a_failure_that_does_not_come_again_is_told() -> None:
    with pytest.raises(NotReproducedError, match="the test passed"):
        next(shrink_failure(_failure(_TEST), lambda test: None))
    other = _failure(_TEST, "another bug")
    with pytest.raises(NotReproducedError, match="another failure came: another bug, and not Ass"):
        next(shrink_failure(_failure(_TEST), lambda test: other))


def test_a_failure_that_comes_now_and_then_is_repeated() -> None:
    came = [None, _failure(_TEST, "another bug"), _failure(_TEST)]
    attempts = iter(came)
    assert next(shrink_failure(_failure(_TEST), lambda test: next(attempts), 3)) == came[2]
    attempts = iter(came)
    with pytest.raises(NotReproducedError, match="another failure came"):
        next(shrink_failure(_failure(_TEST), lambda test: next(attempts), 2))


def test_one_fault_of_many_takes_few_attempts() -> None:
    steps, attempts = _tested(lambda test: None if 3 in test.without else "the bug")
    assert steps[-1].without == [0, 1, 2, *range(4, 10)]
    assert attempts <= 10


def test_a_failure_goes_through_a_text() -> None:
    failure = _failure(replace(_TEST, without=[2]))
    assert WorldFailure.from_json(failure.to_json()) == failure
    with pytest.raises(ValueError, match="Expecting"):
        WorldFailure.from_json("")
