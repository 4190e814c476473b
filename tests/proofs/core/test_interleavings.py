"""Two calls at once on one operation, through all interleavings of their steps.

One outcome, callbacks that run once and never overlap, no completion lost, no deadlock, nothing
left on any list or on the timer: after each schedule of each pair of calls, in each state that an
operation may be in (``schedule_calls``), and of each program that is written out beside it. How
many schedules there were is said at the end of the run.

A failure prints its program and schedule, and the command that repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

import pytest

from tests.proofs.core.explorer import all_schedules
from tests.proofs.core.fresh_core import load_core
from tests.proofs.core.interleavings import told
from tests.proofs.drawn import draw

CORE = load_core()

PROGRAMS = [name for name, build in CORE.PROGRAMS.items() if len(build().threads) == 2]

PAIRS: dict[str, list[str]] = {
    first: list(names)
    for first, names in groupby(CORE.pairs(), lambda name: name.partition(", ")[0])
}
"""The names of all pairs of calls, by the state and the first of the two."""

SHARE = 0.2
"""The share of the pairs that a run tries: by night, all of them with three preemptions."""

OF_SUBMISSIONS = 0.25
"""The share of the calls during a submission that a run tries with two preemptions."""

Count = Callable[[str, object], None]
"""Pytest's ``record_property``; ``tests/conftest.py`` adds up what begins with "schedules"."""


def assert_all_end_well(count: Count, names: Iterable[str], preemptions: int) -> None:
    """Assert that no schedule of these programs fails."""
    tried = 0
    for name in names:
        for run in all_schedules(CORE.build(name), preemptions):
            tried += 1
            assert run.failure is None, told(CORE, name, run)
    count(f"schedules of two threads, at most {preemptions} preemptions", tried)


@pytest.mark.slow
@pytest.mark.parametrize("state", CORE.STATES)
def test_two_calls_are_correct_with_one_preemption(record_property: Count, state: str) -> None:
    names = [name for name in CORE.pairs() if name.partition(": ")[0] == state]
    names = draw(names, SHARE, state)
    assert_all_end_well(record_property, names, preemptions=1)


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("state", ["new", "new with a lock", "new with a threshold"])
def test_call_during_a_submission_survives_two_preemptions(
    record_property: Count, state: str
) -> None:
    names = draw(PAIRS[f"{state}: watch"], OF_SUBMISSIONS, state)
    assert_all_end_well(record_property, names, preemptions=2)


@pytest.mark.parametrize("name", PROGRAMS)
def test_written_programs_are_correct_with_one_preemption(
    record_property: Count, name: str
) -> None:
    assert_all_end_well(record_property, [name], preemptions=1)


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", PAIRS)
def test_two_calls_are_correct_with_three_preemptions(record_property: Count, first: str) -> None:
    assert_all_end_well(record_property, PAIRS[first], preemptions=3)


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PROGRAMS)
def test_written_programs_survive_three_preemptions(record_property: Count, name: str) -> None:
    assert_all_end_well(record_property, [name], preemptions=3)
