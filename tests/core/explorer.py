"""Runs a program under many schedules: all with few preemptions, or seeded random ones."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from tests.core.scheduler import Fixed, Random, Run, Scheduler, Strategy
from tests.core.switch_points import trace_core


def run_program(core: ModuleType, name: str, strategy: Strategy) -> Run:
    """Run one program of ``core`` under one strategy, and check its end."""
    program = core.PROGRAMS[name]()
    run = Scheduler(strategy, trace_core).run(program.threads)
    if run.failure is None:
        try:
            program.assert_all()
        except (AssertionError, RuntimeError) as error:
            run.failure = f"{type(error).__name__} at the end: {error}"
    return run


def all_schedules(core: ModuleType, name: str, preemptions: int) -> Iterator[Run]:
    """Run each schedule in which a thread that could go on is made to wait so many times at most.

    Which thread goes on when one ends or has to wait is tried in every way, too.
    """
    waiting: list[tuple[dict[int, int], int]] = [({}, preemptions)]
    while waiting:
        deviations, left = waiting.pop()
        run = run_program(core, name, Fixed(deviations))
        yield run
        first = max(deviations, default=-1) + 1
        for step, decision in enumerate(run.decisions[first:], first):
            cost = 0 if decision.current is None else 1
            if cost <= left:
                waiting += (
                    ({**deviations, step: other}, left - cost)
                    for other in decision.runnable
                    if other != decision.default
                )


def random_schedules(core: ModuleType, name: str, seeds: range) -> Iterator[tuple[int, Run]]:
    """Run one random schedule for each seed."""
    for seed in seeds:
        yield seed, run_program(core, name, Random(seed))
