"""The scheduler finds planted faults: each fault that is put into the core is caught."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.proofs.core.explorer import all_schedules, random_schedule, random_schedules, run_program
from tests.proofs.core.fresh_core import load_core
from tests.proofs.core.scheduler import Fixed, Run
from tests.unit.core.mutants import MUTANTS, Mutant

pytestmark = pytest.mark.once

RANDOM_SCHEDULES = 2_000
"""Schedules that are tried of a program of three threads; the slowest mutant needs 545."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.fault)
def test_the_scheduler_finds_the_fault(mutant: Mutant) -> None:
    core = load_core({mutant.module: mutant.replacements})
    failing = first_failure(core, mutant.program)
    assert failing is not None, f"{mutant.program} does not find it"
    again = run_program(core.build(mutant.program), Fixed(failing.schedule))
    assert again.failure == failing.failure, "its schedule repeats it"


def first_failure(core: ModuleType, program: str) -> Run | None:
    """Return the first run that fails, as the tests of the interleavings would find it."""
    return next((run for run in schedules(core, program) if run.failure is not None), None)


def schedules(core: ModuleType, program: str) -> Iterator[Run]:
    build = core.build(program)
    if len(build().threads) == 2:
        yield from all_schedules(build, preemptions=2)
    else:
        for _, run in random_schedules(build, range(RANDOM_SCHEDULES)):
            yield run


@pytest.mark.parametrize(
    "fault",
    [
        "no second check after the watching",
        "the claim is given back before the outcome is noted",
        "no retry where the user's lock is taken (KAFKA-8334)",
    ],
)
def test_random_schedules_of_three_threads_find_the_fault_too(fault: str) -> None:
    (mutant,) = (one for one in MUTANTS if one.fault == fault)
    core = load_core({mutant.module: mutant.replacements})
    assert any(random_schedule(core, seed)[1].failure is not None for seed in range(5_000))
