"""A call of the table in each covering state, interrupted at one of its instructions.

In pure Python each step of the core may be interrupted; natively those of the Python around it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from purgatory import core
from tests.proofs.calls import CALLS, COVER, STATES, Scene, calls_in
from tests.proofs.drawn import draw, failure, seed
from tests.proofs.interrupts.interruptions import (
    Interrupt,
    Scenario,
    count_instructions,
    interrupt_everywhere,
)

CORE = (str(Path(str(core.__file__)).parent),)

ROWS = [
    f"{name}: {call}"
    for name, state in COVER.items()
    for call in (["watch"] if state.place == "new" else calls_in(state))
    if not CALLS[call].reads
]

SHARE = 0.12
PLACES = 6
"""In a quick run, how many of a call's instructions are interrupted."""


class SignalError(Exception):
    """Another exception of a signal's handler: it can be mistaken for an error of a callback."""


def scenario_of(row: str, may_be_mistaken: bool) -> Callable[[], Scenario]:
    state, _, call = row.partition(": ")

    def scenario() -> Scenario:
        scene = Scene(STATES[state], (call,))
        scene.world.may_be_mistaken = may_be_mistaken
        place = yield lambda: scene.act(call)
        scene.interrupts = int(place is not None)
        scene.may_be_mistaken = may_be_mistaken and place is not None
        scene.finish()
        scene.assert_over()

    return scenario


def assert_harmless(row: str, error: type[BaseException], places: int | None) -> None:
    """Assert that interrupts in a call do no harm; at all places, or at so many."""
    scenario = scenario_of(row, error is not Interrupt)
    length = count_instructions(scenario, CORE)
    if not length:
        return  # all of it is native
    step = 1 if places is None else 1 + length // places
    first = 1 + seed() % step
    try:
        interrupt_everywhere(scenario, error, first=min(first, length), step=step, where=CORE)
    except AssertionError as harm:
        command = f"PURGATORY_SEED={seed()} pytest {__file__}"
        raise AssertionError(failure("purgatory.core", f"{row}: {harm}", command)) from None


@pytest.mark.parametrize("error", [Interrupt, SignalError])
def test_interrupt_leaves_nothing_stuck_or_lost(error: type[BaseException]) -> None:
    for row in draw(ROWS, SHARE, f"interrupts {error.__name__}"):
        assert_harmless(row, error, PLACES)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("state", COVER)
def test_interrupt_anywhere_leaves_nothing_stuck_or_lost(state: str) -> None:
    for row in ROWS:
        if row.partition(": ")[0] == state:
            assert_harmless(row, Interrupt, None)
            assert_harmless(row, SignalError, 60)
