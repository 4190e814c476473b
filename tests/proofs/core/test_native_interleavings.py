"""The native core under the interleavings of the Python that it calls, as ``test_interleavings`` of
the pure one.

Threads switch only in that Python: callbacks, keys that are hashed or compared, the clock, the
user's lock, the observer, listeners. These points are so few that all orders of two calls can be
tried.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import ModuleType

import pytest

from purgatory.core.backend import NATIVE
from tests.proofs.core import scheduler
from tests.proofs.core.explorer import FIRST_TURNS, every_schedule, random_schedule, run_program
from tests.proofs.core.fresh_core import load_native_core, on_no_chain
from tests.proofs.core.interleavings import told
from tests.proofs.core.scheduler import Fixed
from tests.proofs.core.test_interleavings import PAIRS, PROGRAMS, Count
from tests.proofs.drawn import draw

pytestmark = pytest.mark.skipif(not NATIVE, reason="the native parts are not in use")

ANY_NUMBER = 1_000
"""More preemptions than any run has points."""

FEW_POINTS = 14
"""Of a run that follows no schedule: with so many, all orders are some thousands at the most."""

SHARE = 0.35
"""The share of the pairs that a run tries: by night, all of them in more orders."""

FOUR = 4
"""Preemptions of programs with more points."""

AT_A_TIME = 2_500
SEEDS = [range(first, first + AT_A_TIME) for first in range(0, 50_000, AT_A_TIME)]


@pytest.fixture(autouse=True)
def _no_chain() -> Iterator[None]:
    with on_no_chain():
        yield


@pytest.fixture(scope="module")
def core() -> ModuleType:
    return load_native_core()


@pytest.fixture(scope="module")
def core_and_layers() -> ModuleType:
    """The same, with all points of the layers above that are in pure Python."""
    return load_native_core(every_step=True)


def assert_all_end_well(
    core: ModuleType, count: Count, names: Iterable[str], preemptions: int, kind: str
) -> None:
    """Assert that no schedule of these programs fails."""
    tried = 0
    for name in names:
        for run in every_schedule(core.build(name), preemptions):
            tried += 1
            assert run.failure is None, told(core, name, run)
    count(f"schedules of two threads of the native core, {kind}", tried)


@pytest.mark.parametrize("first", PAIRS)
def test_two_calls_are_correct_with_one_preemption(
    record_property: Count, core: ModuleType, first: str
) -> None:
    names = draw(PAIRS[first], SHARE, f"native {first}")
    assert_all_end_well(core, record_property, names, 1, "at most 1 preemption")


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", PAIRS)
def test_two_calls_are_correct_in_every_order(
    record_property: Count, core: ModuleType, first: str
) -> None:
    """Or, where those are too many, in every order with four preemptions."""
    few = {name for name in PAIRS[first] if points(core, name) <= FEW_POINTS}
    many = [name for name in PAIRS[first] if name not in few]
    assert_all_end_well(core, record_property, sorted(few), ANY_NUMBER, "every order")
    assert_all_end_well(core, record_property, many, FOUR, "at most 4 preemptions")


def points(core: ModuleType, name: str) -> int:
    """Return how many points a program has if each thread runs to its end, whoever begins."""
    build = core.build(name)
    return max(len(run_program(build, Fixed(deviations)).trace) for deviations in FIRST_TURNS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_written_programs_survive_two_preemptions(
    record_property: Count, core: ModuleType, name: str
) -> None:
    assert_all_end_well(core, record_property, [name], 2, "at most 2 preemptions")


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", PAIRS)
def test_two_calls_survive_a_preemption_of_any_python_line(
    record_property: Count, core_and_layers: ModuleType, first: str
) -> None:
    assert_all_end_well(
        core_and_layers, record_property, PAIRS[first], 2, "at most 2 preemptions anywhere"
    )


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(
            seeds,
            id=f"{seeds.start}-{seeds.stop - 1}",
            marks=[] if seeds.start == 0 else pytest.mark.exhaustive,
        )
        for seeds in SEEDS
    ],
)
def test_three_calls_are_correct_in_random_orders(
    record_property: Count, core: ModuleType, seeds: range
) -> None:
    for seed in seeds:
        name, run = random_schedule(core, seed)
        assert run.failure is None, f"seed {seed}, {told(core, name, run)}"
    record_property("schedules of three threads of the native core, at random", len(seeds))


def test_seed_repeats_a_schedule(core: ModuleType) -> None:
    first, second = ([random_schedule(core, seed) for seed in range(50)] for _ in "12")
    assert first == second
    assert len({run.schedule for _, run in first}) > 20


def test_native_core_is_switched_in_each_of_its_calls(
    core: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call from the native core has no frame between the caller's and the called function's."""
    places: set[str] = set()
    at = scheduler.at

    def noting_at(value: object, access: int) -> object:
        frame = sys._getframe(2)
        while frame.f_code.co_filename.endswith("schedule_world.py"):
            places.add(frame.f_code.co_name)
            assert frame.f_back is not None
            frame = frame.f_back
        return at(value, access)

    monkeypatch.setattr(scheduler, "at", noting_at)
    for calls in ("event, listen", "expiry, check"):
        run_program(core.build(f"with a threshold and a key: {calls}"), Fixed())
    assert places >= {"try_complete", "_note", "__hash__", "__eq__", "now_ns"}
