"""The scheduler finds what it is there to find: each fault that is put into the core is caught."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.core.explorer import all_schedules, random_schedules, run_program
from tests.core.fresh_core import load_core
from tests.core.mutants import MUTANTS, Mutant
from tests.core.scheduler import Fixed, Run

RANDOM_SCHEDULES = 500
"""How many are tried where one preemption was not enough."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.fault)
def test_the_scheduler_finds_the_fault(mutant: Mutant) -> None:
    core = load_core({mutant.module: mutant.replacements})
    failing = first_failure(core, mutant.program)
    assert failing is not None, f"{mutant.program} does not find it"
    again = run_program(core, mutant.program, Fixed(failing.schedule))
    assert again.failure == failing.failure, "its schedule repeats it"


def first_failure(core: ModuleType, program: str) -> Run | None:
    """Return the first run that fails, as the tests of the interleavings would find it."""
    return next((run for run in schedules(core, program) if run.failure is not None), None)


def schedules(core: ModuleType, program: str) -> Iterator[Run]:
    yield from all_schedules(core, program, preemptions=1)
    for _, run in random_schedules(core, program, range(RANDOM_SCHEDULES)):
        yield run
