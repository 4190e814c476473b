"""Three concurrent calls on one operation, each under a seeded random schedule.

``test_interleavings`` documents the assertions. A seed determines a program and its schedule: a
failure prints it, and the command that repeats it with as few preemptions as possible.
"""

from __future__ import annotations

import pytest

from tests.proofs.core.explorer import random_schedule
from tests.proofs.core.fresh_core import load_core
from tests.proofs.core.interleavings import told
from tests.proofs.core.test_interleavings import Count

AT_A_TIME = 4_000

IN_CI = 4_000
IN_ALL = 1_000_000

SEEDS = [range(first, first + AT_A_TIME) for first in range(0, IN_ALL, AT_A_TIME)]


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(
            seeds,
            id=f"{seeds.start}-{seeds.stop - 1}",
            marks=[] if seeds.stop <= IN_CI else pytest.mark.exhaustive,
        )
        for seeds in SEEDS
    ],
)
def test_three_calls_are_correct_in_random_orders(record_property: Count, seeds: range) -> None:
    core = load_core()
    for seed in seeds:
        name, run = random_schedule(core, seed)
        assert run.failure is None, f"seed {seed}, {told(core, name, run)}"
    record_property("schedules of three threads, at random", len(seeds))


def test_seed_repeats_a_schedule() -> None:
    core = load_core()
    first, second = ([random_schedule(core, seed) for seed in range(50)] for _ in "12")
    assert first == second
    assert len({run.schedule for _, run in first}) > 40
