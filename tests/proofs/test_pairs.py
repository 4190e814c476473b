"""Two calls at once in each of the covering states, one of which is preempted once.

``calls.py`` has the calls, the states and what holds at the end. A run makes a part of all pairs,
another one with each commit; the nightly run makes all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from types import ModuleType

import pytest

from purgatory.core.backend import NATIVE
from tests.proofs.calls import COVER, pairs_in
from tests.proofs.core.explorer import all_schedules, every_schedule, run_program
from tests.proofs.core.fresh_core import load_core, load_native_core, on_no_chain
from tests.proofs.core.interleavings import told
from tests.proofs.core.scheduler import Random
from tests.proofs.drawn import draw, failure, seed

Count = Callable[[str, object], None]
"""Pytest's ``record_property``; ``tests/conftest.py`` adds up what begins with "schedules"."""

PAIRS = list(chain.from_iterable(map(pairs_in, COVER)))
SHARE = 0.04
TRIPLES = 1_000

CORES = ["pure", pytest.param("native", marks=pytest.mark.skipif(not NATIVE, reason="not built"))]


@pytest.fixture(scope="module", params=CORES)
def core(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    if request.param == "pure":
        yield load_core()
    else:
        with on_no_chain():
            # Python code above the native parts has its switch points too.
            yield load_native_core(every_step=True)


def assert_pairs_end_well(core: ModuleType, count: Count, names: Iterable[str]) -> None:
    """Assert that no schedule of these pairs fails."""
    schedules = every_schedule if core.is_native() else all_schedules
    tried = 0
    for name in names:
        for run in schedules(core.build(name), 1):
            tried += 1
            assert run.failure is None, failure_of(core, name, run)
    count("schedules of two calls in the covering states", tried)


def failure_of(core: ModuleType, name: str, run: object) -> str:
    what, _, command = told(core, name, run).partition("\n  ")  # type: ignore[arg-type]
    kind = "native" if core.is_native() else "pure"
    return failure(f"purgatory.core, {kind}", what, command)


@pytest.mark.slow
def test_two_calls_end_well_with_a_preemption(core: ModuleType, record_property: Count) -> None:
    assert_pairs_end_well(core, record_property, draw(PAIRS, SHARE, "pairs"))


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("state", COVER)
def test_all_pairs_of_calls_end_well_with_a_preemption(
    core: ModuleType, record_property: Count, state: str
) -> None:
    assert_pairs_end_well(core, record_property, pairs_in(state))


def test_three_calls_end_well_at_random(core: ModuleType, record_property: Count) -> None:
    names = core.random_triples(seed(), TRIPLES)
    for number, name in enumerate(names):
        run = run_program(core.build(name), Random(seed() + number))
        assert run.failure is None, failure_of(core, name, run)
    record_property("schedules of three calls in the covering states", TRIPLES)
