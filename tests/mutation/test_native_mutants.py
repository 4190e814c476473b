"""Faults in the native parts: each can be put in, and the scheduler finds those that it is to find.

That tests notice the others is seen by ``python -m tests.mutation.native``, which takes long.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from purgatory.core.backend import NATIVE
from tests.mutation.native import build, can_build, chosen
from tests.mutation.native_mutants import MUTANTS, ROOT, NativeMutant
from tests.proofs.core.explorer import every_schedule, run_program
from tests.proofs.core.fresh_core import load_native_core, on_no_chain
from tests.proofs.core.scheduler import SCHEDULER, Fixed

PREEMPTIONS = 2


def test_each_fault_fits_its_source_and_has_a_name_of_its_own() -> None:
    for mutant in MUTANTS:
        assert mutant.source() != Path(ROOT, mutant.path).read_text(encoding="utf-8")
    assert len({mutant.fault for mutant in MUTANTS}) == len(MUTANTS)


def test_faults_are_chosen_by_words() -> None:
    assert chosen([]) == MUTANTS
    assert {mutant.path for mutant in chosen(["trampoline.pyx", "state.pyx"])} == {
        "purgatory/core/native/state.pyx",
        "purgatory/core/native/trampoline.pyx",
    }


@pytest.fixture(autouse=True)
def _no_chain() -> Iterator[None]:
    with on_no_chain():
        yield
        SCHEDULER.throw_threads_away()  # each keeps the mutant's trampoline


@pytest.fixture(scope="module")
def sources_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is compiled."""
    reason = can_build()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI builds the native parts, but {reason}")
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("native")
    for package in ("timer", "purgatory"):
        ignored = shutil.ignore_patterns("*.so", "*.c", "[!_]*.py", "__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    return folder


@pytest.mark.exhaustive
@pytest.mark.skipif(not NATIVE, reason="the native parts are not in use")
@pytest.mark.parametrize(
    "mutant", [one for one in MUTANTS if one.program is not None], ids=lambda one: one.fault
)
def test_the_scheduler_finds_the_fault_in_the_native_core(
    sources_alone: Path, mutant: NativeMutant
) -> None:
    assert mutant.program is not None
    library = build(sources_alone, mutant.path, mutant.source())
    module = mutant.path.removesuffix(".pyx").replace("/", ".")
    core = load_native_core({module: library})
    schedules = every_schedule(core.build(mutant.program), PREEMPTIONS)
    failing = next((run for run in schedules if run.failure is not None), None)
    assert failing is not None, f"{mutant.program} does not find it"
    again = run_program(core.build(mutant.program), Fixed(failing.schedule))
    assert again.failure == failing.failure, "its schedule repeats it"
