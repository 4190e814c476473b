"""Runs a program under many schedules: all with few preemptions, or seeded random ones.

Why not each schedule need be run
---------------------------------
Steps of two threads that don't conflict can be exchanged without effect (see ``accesses``). Say
that thread A is preempted before its step s, and resumes after B's steps S. If s conflicts with
none of S, then A can as well run s first: another schedule, with as many preemptions or fewer, the
same end, and A preempted one step later. Repeated, this terminates, since the first turns get
longer each time: at a schedule where each preemption has a reason, a step of the other thread's
turn that conflicts with the step before which the thread was preempted. Only those schedules are
run. The others, with as many preemptions, end as one of these.

A run's points are examined from the last to the first, to find the reasons beforehand. B does the
same whether A is preempted before s or after s, unless s conflicts with B's steps: without a
conflict, no schedule need be run.

This holds for two threads. ``test_scheduler`` compares it with running all schedules.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Protocol

from tests.proofs.core.accesses import conflict, is_point, mask, mask_of
from tests.proofs.core.scheduler import SCHEDULER, Fixed, Random, Run, Strategy


class Program(Protocol):
    """Threads, and the assertions once all have ended."""

    @property
    def threads(self) -> Mapping[str, Callable[[], object]]:
        """The threads' calls, by their names."""

    def assert_all(self) -> None:
        """Check the assertions at the end."""


Build = Callable[[], Program]
"""Makes a new program: a program is run once."""

NATIVE_RATES = (0.05, 0.1, 0.2, 0.5)
"""The rate of switches in random schedules of the native core: it has a tenth of the points."""

FIRST_TURNS: list[dict[int, int]] = [{}, {0: 1}]
"""The thread that begins, of two."""


def run_program(build: Build, strategy: Strategy) -> Run:
    """Run a program under one strategy, and check its end."""
    program = build()
    run = SCHEDULER.run(program.threads, strategy)
    if run.failure is None:
        try:
            program.assert_all()
        except (AssertionError, RuntimeError) as error:
            run.failure = f"{type(error).__name__} at the end: {error}"
    return run


def all_schedules(build: Build, preemptions: int) -> Iterator[Run]:
    """Run every schedule of two threads in which a runnable thread is preempted so many times at
    most; but for those of which it is known that they end like one of these."""
    for deviations in FIRST_TURNS:
        run = run_program(build, Fixed(deviations))
        yield run
        yield from _with_reason(build, run, deviations, 0, 0, preemptions)


def _with_reason(
    build: Build, run: Run, deviations: dict[int, int], begin: int, reason: int, left: int
) -> Iterator[Run]:
    """Run what ``run``, which follows ``deviations``, may be preempted to after ``begin``.

    Args:
        begin: where its last turn that was preempted to begins.
        reason: the mask of the step that was preempted there, which that turn must conflict with
            before it is preempted itself; or 0.
        left: how many preemptions are left.
    """
    if not left:
        return
    trace = run.trace
    ends = [place for place, _ in run.turns[1:]] + [len(trace)]
    following = 0  # the other thread runs from here on, until it ends or has to wait
    for (start, thread), end in reversed(list(zip(run.turns, ends, strict=True))):
        if end <= begin:
            return
        first = start + 1
        if start == begin and reason:
            first = _first_conflict(trace, start, end, reason)
        other = 1 - thread
        can_go_on = _can_go_on(run, other)
        after = end
        for place in range(end - 1, start, -1):
            if not is_point(trace[place]):
                continue
            step = mask_of(trace[place:after])
            after = place
            if place < first:
                break
            if not can_go_on(place) or not conflict(step, following):
                continue
            preempting = {**deviations, place: other}
            another = run_program(build, Fixed(preempting))
            yield another
            following = _turn_at(another, place)
            yield from _with_reason(build, another, preempting, place, step, left - 1)
        following = mask_of(trace[start:end])


def _first_conflict(trace: list[int], start: int, end: int, reason: int) -> int:
    """Return the place after the first access of a turn that conflicts with ``reason``."""
    for place in range(start, end):
        if conflict(mask(trace[place]), reason):
            return place + 1
    return end


def _turn_at(run: Run, place: int) -> int:
    """Return the mask of all that the turn does that begins at ``place``."""
    end = min((begin for begin, _ in run.turns if begin > place), default=len(run.trace))
    return mask_of(run.trace[place:end])


def _can_go_on(run: Run, thread: int) -> Callable[[int], bool]:
    """Return whether ``thread`` was runnable at a place."""
    changes = [(place, can) for place, changed, can in run.can_go_on if changed == thread]

    def can_go_on(place: int) -> bool:
        known = [can for changed, can in changes if changed <= place]
        return known[-1] if known else True

    return can_go_on


def every_schedule(build: Build, preemptions: int) -> Iterator[Run]:
    """Run every schedule of two threads with so many preemptions at most, without exception."""
    waiting = [(deviations, preemptions) for deviations in FIRST_TURNS]
    while waiting:
        deviations, left = waiting.pop()
        run = run_program(build, Fixed(deviations))
        yield run
        if left:
            preemptions_of_it = _preemptions(run, max(deviations, default=0))
            waiting += (({**deviations, place: to}, left - 1) for place, to in preemptions_of_it)


def _preemptions(run: Run, after: int) -> Iterator[tuple[int, int]]:
    """Yield where a thread may be preempted after a place, and to which."""
    ends = [place for place, _ in run.turns[1:]] + [len(run.trace)]
    for (start, thread), end in zip(run.turns, ends, strict=True):
        can_go_on = _can_go_on(run, 1 - thread)
        for place in range(max(start, after) + 1, end):
            if is_point(run.trace[place]) and can_go_on(place):
                yield place, 1 - thread


def random_schedules(build: Build, seeds: range) -> Iterator[tuple[int, Run]]:
    """Run one random schedule for each seed."""
    for seed in seeds:
        yield seed, run_program(build, Random(seed))


def random_schedule(core: ModuleType, seed: int) -> tuple[str, Run]:
    """Run the schedule of three threads of this seed; return the program's name as well."""
    name: str = core.three_at_random(random.Random(seed))
    strategy = Random(seed, NATIVE_RATES) if core.is_native() else Random(seed)
    return name, run_program(core.build(name), strategy)


def shrunk(build: Build, failing: Run) -> Run:
    """Return a run that fails as well, if one does, without some of the deviations."""
    for number in failing.deviations:
        fewer = {other: one for other, one in failing.deviations.items() if other != number}
        run = run_program(build, Fixed(fewer))
        if run.failure is not None and len(run.deviations) < len(failing.deviations):
            return shrunk(build, run)
    return failing
