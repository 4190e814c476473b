"""The native core and the one in pure Python get the same calls, and are left in the same state."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from purgatory.core.backend import NATIVE
from tests.proofs.core.fresh_core import load_core, load_native_core, on_no_chain
from tests.proofs.drawn import failure, seed

pytestmark = pytest.mark.skipif(not NATIVE, reason="the native parts are not in use")

SEQUENCES = 600


@pytest.fixture(scope="module")
def cores() -> Iterator[tuple[ModuleType, ModuleType]]:
    with on_no_chain():
        yield load_core(), load_native_core()


def sequence(core: ModuleType, number: int) -> tuple[str, list[str]]:
    """Return a state, and three to six calls in it."""
    rng = random.Random(f"{seed()} {number}")
    name, state = rng.choice(list(core.COVER.items()))
    calls = core.calls_in(state)
    names = [rng.choice(calls) for _ in range(rng.randint(3, 6))]
    return name, ["watch", *names] if state.place == "new" else names


def result(core: ModuleType, state: str, names: list[str]) -> dict[str, Any]:
    """Make the calls; return what can be seen then."""
    scene = core.Scene(core.STATES[state], tuple(names))
    raised = []
    for number, name in enumerate(names):
        try:
            scene.act(name, number)
        except Exception as error:
            raised.append((name, type(error).__name__))
    scene.finish()
    counters = scene.world.purgatory.counters
    return {
        "raised": raised,
        "outcomes": [one.outcome.name for one in scene.world.operations],
        "refused": [one.outcome.name for one in scene.world.refused],
        "calls": [one.calls for one in scene.world.operations],
        "told": [outcome.name for outcome in scene.told],
        "futures": [future._state for future in scene.futures],
        "observed": scene.observed.total(),
        "counted": counters.outcomes,
        "checks": counters.checks,
        "missed": counters.missed_wakeups,
        "pending": scene.world.purgatory.num_delayed,
        "watched": scene.world.purgatory.watched,
        "timer": scene.world.timer.size,
    }


def test_cores_are_left_alike_by_the_same_calls(cores: tuple[ModuleType, ModuleType]) -> None:
    pure, native = cores
    for number in range(SEQUENCES):
        state, names = sequence(pure, number)
        one, other = result(pure, state, names), result(native, state, names)
        different = {key: (one[key], other[key]) for key in one if one[key] != other[key]}
        command = f"PURGATORY_SEED={seed()} pytest {__file__}"
        what = f"{state}: {', '.join(names)}: {different}"
        assert not different, failure("purgatory.core, pure and native", what, command)
