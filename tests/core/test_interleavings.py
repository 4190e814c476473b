"""Two or three threads around one purgatory, through the interleavings of their steps.

One outcome, no completion lost, no deadlock, nothing left on any list: after each schedule of each
of sixty programs. All schedules with one preemption are tried for each program of two threads, all
with two for the smallest (some 6,500 in sum), and 50 seeded random ones for every program (3,000 in
sum). With ``PURGATORY_SCHEDULES=20000`` each program runs under so many random schedules.

A failure prints the program and its schedule. To repeat it, run from the project's folder::

    from tests.core.explorer import run_program
    from tests.core.fresh_core import load_core
    from tests.core.scheduler import Fixed
    print(run_program(load_core(), "force_and_cancel", Fixed("12>1 30>0")).failure)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests.core.explorer import all_schedules, random_schedules
from tests.core.fresh_core import load_core

PROGRAMS: dict[str, Callable[[], Any]] = load_core().PROGRAMS

RANDOM_SCHEDULES = int(os.environ.get("PURGATORY_SCHEDULES", "50"))
"""How many random schedules each program runs under."""

OF_TWO_THREADS = [name for name, build in PROGRAMS.items() if len(build().threads) == 2]

SMALL = [
    "cancel_for_two_keys",
    "event_while_watching",
    "force_and_cancel",
    "two_halves_of_a_condition",
    "users_lock_and_event",
]
"""Programs with few enough schedules to try all with two preemptions."""


@pytest.fixture(scope="module")
def core() -> ModuleType:
    return load_core()


@pytest.mark.parametrize("name", SMALL)
def test_every_schedule_with_two_preemptions_ends_well(core: ModuleType, name: str) -> None:
    for run in all_schedules(core, name, preemptions=2):
        assert run.failure is None, f"{name}, schedule {run.schedule!r}: {run.failure}"


@pytest.mark.parametrize("name", [name for name in OF_TWO_THREADS if name not in SMALL])
def test_every_schedule_with_one_preemption_ends_well(core: ModuleType, name: str) -> None:
    for run in all_schedules(core, name, preemptions=1):
        assert run.failure is None, f"{name}, schedule {run.schedule!r}: {run.failure}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_seeded_random_schedules_end_well(core: ModuleType, name: str) -> None:
    for seed, run in random_schedules(core, name, range(RANDOM_SCHEDULES)):
        assert run.failure is None, f"{name}, seed {seed}, schedule {run.schedule!r}: {run.failure}"
