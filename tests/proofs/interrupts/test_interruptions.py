"""The interrupts that tests make come everywhere, and find what they are there to find."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.proofs.interrupts import account
from tests.proofs.interrupts.account import Account
from tests.proofs.interrupts.interruptions import (
    Interrupt,
    Scenario,
    count_instructions,
    interrupt_everywhere,
    interrupt_twice,
)

HERE = (str(account.__file__),)


def test_each_instruction_is_interrupted_once() -> None:
    def scenario() -> Scenario:
        made = Account()
        place = yield made.move_carefully
        assert place is not None or made.moves == [1]

    report = interrupt_everywhere(scenario, where=HERE)
    assert report.interrupts == len(report.places) == count_instructions(scenario, HERE) > 10
    assert all(place.function == "Account.move_carefully" for place in report.places)


@pytest.mark.parametrize("name", ["move_carefully", "move_and_return", "move_and_fail"])
def test_a_scoped_lock_is_free_wherever_its_block_is_interrupted(name: str) -> None:
    def scenario() -> Scenario:
        made = Account()
        call = getattr(made, name)

        def suppressing() -> None:
            with suppress(LookupError):
                call()

        yield suppressing
        assert not made.lock.locked()

    interrupt_everywhere(scenario, where=HERE)


def test_a_lock_that_stays_taken_is_found_and_the_instruction_named() -> None:
    def scenario() -> Scenario:
        made = Account()
        yield made.move_carelessly
        assert not made.plain_lock.locked(), "the lock is held"

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


def test_second_interrupt_is_raised_in_cleanup_and_later_calls() -> None:
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
