"""The interrupts that tests make come everywhere, and find what they are there to find."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.proofs.interrupts import account
from tests.proofs.interrupts.account import Account
from tests.proofs.interrupts.instructions import LEAVING, LEAVING_BY_AN_ERROR
from tests.proofs.interrupts.interruptions import (
    Interrupt,
    Scenario,
    count_instructions,
    interrupt_everywhere,
    interrupt_twice,
)

HERE = (str(account.__file__),)


def test_each_instruction_is_interrupted_once_and_a_with_holds() -> None:
    def scenario() -> Scenario:
        made = Account()
        place = yield made.move_carefully
        assert not made.lock.locked()
        assert place is not None or made.moves == [1]

    report = interrupt_everywhere(scenario, where=HERE)
    assert report.interrupts == len(report.places) == count_instructions(scenario, HERE) > 5
    assert LEAVING in report.passed.values()
    assert all(place.function == "Account.move_carefully" for place in report.places)


def test_leaving_a_with_by_an_error_is_known() -> None:
    def scenario() -> Scenario:
        made = Account()

        def call() -> None:
            with pytest.raises(LookupError):
                made.move_and_fail()

        yield call
        assert not made.lock.locked()

    report = interrupt_everywhere(scenario, where=HERE)
    assert LEAVING_BY_AN_ERROR in report.passed.values()


def test_a_lock_that_stays_taken_is_found_and_the_instruction_named() -> None:
    def scenario() -> Scenario:
        made = Account()
        yield made.move_carelessly
        assert not made.lock.locked(), "the lock is held"

    with pytest.raises(AssertionError, match=r"Account.move_carelessly, before .*lock is held"):
        interrupt_everywhere(scenario, where=HERE)


def test_an_exception_that_the_call_swallows_counts_as_an_interrupt() -> None:
    class Swallowed(Exception):
        pass

    def swallow() -> None:
        with suppress(Swallowed):
            Account().clean_up()

    def scenario() -> Scenario:
        yield swallow

    report = interrupt_everywhere(scenario, Swallowed, where=HERE)
    assert {place.function for place in report.places} >= {"Account.__init__", "Account.clean_up"}


def test_second_interrupt_is_raised_in_the_first_ones_cleanup_and_in_later_calls() -> None:
    found: set[str] = set()

    def scenario() -> Scenario:
        made = Account()
        first = yield made.move_in_two_steps
        second = yield made.move_carefully
        if first is not None and made.moves and "clean_up" in first.function:
            found.add("cleaning up")
        if first is not None and second is not None:
            found.add("later call")

    interrupt_twice(scenario, pairs=100, where=HERE)
    assert found == {"cleaning up", "later call"}


def test_an_unrelated_exception_is_no_interrupt() -> None:
    def scenario() -> Scenario:
        def call() -> None:
            raise Interrupt

        yield call

    with pytest.raises(Interrupt):
        interrupt_everywhere(scenario, where=HERE)


def test_calls_that_have_no_instruction_that_counts_are_no_proof() -> None:
    def scenario() -> Scenario:
        yield dict

    with pytest.raises(AssertionError, match="nothing was tried"):
        interrupt_everywhere(scenario, where=HERE)
