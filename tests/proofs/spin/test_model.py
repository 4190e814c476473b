"""Spin finds nothing wrong with the model of the protocol, and each rule that is broken."""

from __future__ import annotations

import os

import pytest

from tests.proofs.spin import model
from tests.proofs.spin.configurations import BROKEN, RIGHT, Configuration
from tests.proofs.spin.steps import described_breaks

BY_DAY = {"FROM_OUTSIDE", "THRESHOLDS", "FORGET"}
"""The other results change with the model alone: they are searched by night."""

CONFIGURATIONS = [
    pytest.param(one, id=one.name, marks=[] if one.name in BY_DAY else [pytest.mark.exhaustive])
    for one in RIGHT
]
SAMPLE = {
    "BREAK_NO_SECOND_CHECK",
    "BREAK_COMPLETING_UNCLAIMED",
    "BREAK_LOCK_WAITED_FOR",
    "BREAK_CLOSE_LEAVES_CHECKS",
}
BROKEN_ONES = [
    pytest.param(one, id=one.name, marks=[] if one.broken in SAMPLE else [pytest.mark.exhaustive])
    for one in BROKEN
]


@pytest.fixture(autouse=True)
def _tools() -> None:
    missing = model.missing_tools()
    if missing:
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)


@pytest.mark.slow
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_the_protocol_holds(configuration: Configuration) -> None:
    assert model.ask(configuration).error == ""


@pytest.mark.parametrize("configuration", BROKEN_ONES)
def test_a_broken_rule_is_found(configuration: Configuration) -> None:
    error = model.ask(configuration).error
    assert error and error in described_breaks()[configuration.broken]


def test_each_failure_of_spin_is_reported() -> None:
    right, [wrong, *_] = RIGHT[0], BROKEN
    assert model.is_as_it_should_be(right, model.Answer("", 1, 0.1))
    assert "WRONG: deadlock" in model.line_of(right, model.Answer("deadlock", 1, 0.1))
    assert "WRONG: nothing was found" in model.line_of(wrong, model.Answer("", 1, 0.1))


def test_a_search_that_was_cut_short_proves_nothing() -> None:
    said = "error: max search depth too small\n 5 states, stored\nerrors: 0"
    with pytest.raises(RuntimeError, match="not complete"):
        model.read_answer(RIGHT[0], said, 0.1)
