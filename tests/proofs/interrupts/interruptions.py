"""Interrupts a call at each of its instructions, one run after the other.

A scenario is a generator function: the setup, a ``yield`` of the call to interrupt, and then checks
that nothing is stuck or lost:

    def scenario() -> Scenario:
        timer = SystemTimer("test", clock=ManualClock(), executor=InlineExecutor())
        task = CountedTask(5)
        yield lambda: timer.add(task)          # interrupted at its n-th instruction
        timer.clock.advance(5)
        timer.advance_clock()                  # undisturbed
        assert task.runs <= 1 and timer.size == 0

    def test_an_interrupted_add_leaves_no_lock_taken() -> None:
        interrupt_everywhere(scenario)

``interrupt_everywhere`` runs it for n = 1, 2, 3 ... until the call ends undisturbed. The interrupt
itself is caught around the call; the ``yield`` returns where it was raised, or None. Any other
exception, from the call or from the checks, is a failure, which names the instruction.

A scenario may yield several calls: the instructions are counted through. ``interrupt_twice`` raises
at two of them: the second while the first is being cleaned up after, or in a later call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

from tests.proofs.interrupts.instructions import Place
from tests.proofs.interrupts.tracing import LIBRARY, Tracer

Scenario: TypeAlias = Generator[Callable[[], object], Place | None, None]

SHOWN_FAILURES = 10


class Interrupt(BaseException):
    """The exception of a signal's handler: like KeyboardInterrupt, no Exception."""


@dataclass
class Report:
    """The result of ``interrupt_everywhere``.

    Attributes:
        interrupts: how many runs were interrupted.
        places: the instructions before which that was.
        failures: the runs that failed: where they were interrupted, and by what they failed.
    """

    interrupts: int = 0
    places: set[Place] = field(default_factory=set)
    failures: list[tuple[list[Place], BaseException]] = field(default_factory=list)

    def raise_failures(self) -> None:
        """Raise an AssertionError that names the failures, or says that nothing was interrupted."""
        assert self.interrupts, "no instruction was interrupted, so nothing was tried"
        if not self.failures:
            return
        lines = [f"{len(self.failures)} of {self.interrupts} interrupts did harm:"]
        for places, error in self.failures[:SHOWN_FAILURES]:
            lines.append(f"  {' and '.join(map(str, places))}: {type(error).__name__}: {error}")
        # Not chained: where an interrupt came before an instruction without a line, pytest would
        # stumble over the traceback.
        raise AssertionError("\n".join(lines)) from None


def interrupt_everywhere(
    scenario: Callable[[], Scenario],
    error: Callable[[], BaseException] = Interrupt,
    first: int = 1,
    step: int = 1,
    where: Collection[str] = LIBRARY,
) -> Report:
    """Interrupt the scenario's calls before each of their instructions in turn.

    Args:
        scenario: returns a new generator for each run.
        error: returns the exception to raise; code may catch an Exception, like RecursionError.
        first: the first instruction.
        step: 1 for each instruction; n for each n-th, where a call is too long for a quick test.
        where: the files that count, and the folders whose files do, without their subwhere.

    Returns:
        A report without failures.

    Raises:
        AssertionError: runs failed, with their instructions; or no run was interrupted.
    """
    report = Report()
    for number in count(first, step):
        if not _run(scenario, error, (number,), where, report):
            break
    report.raise_failures()
    return report


def interrupt_twice(
    scenario: Callable[[], Scenario],
    pairs: int,
    seed: int = 1,
    error: Callable[[], BaseException] = Interrupt,
    where: Collection[str] = LIBRARY,
) -> Report:
    """Interrupt the scenario's calls before two of their instructions, for a sample of pairs.

    Args:
        scenario: makes a new generator for each run.
        pairs: how many.
        seed: of the sample.
        error: makes what is raised.
        where: the files that count, and the folders whose files do, without their subwhere.
    """
    report = Report()
    rng = random.Random(seed)
    length = count_instructions(scenario, where)
    for _ in range(pairs):
        first = rng.randint(1, length)
        # Half of the second ones come soon after: in what cleans up.
        second = first + rng.randint(1, 40 if rng.random() < 0.5 else length)
        _run(scenario, error, (first, second), where, report)
    report.raise_failures()
    return report


def count_instructions(scenario: Callable[[], Scenario], where: Collection[str] = LIBRARY) -> int:
    """Return how many instructions the scenario's calls have, when nothing interrupts them."""
    tracer = Tracer(Interrupt, (), where)
    _go_through(scenario, tracer, Interrupt)
    return tracer.count


def _run(
    scenario: Callable[[], Scenario],
    error: Callable[[], BaseException],
    numbers: tuple[int, ...],
    where: Collection[str],
    report: Report,
) -> bool:
    """Run once, and say whether there was an interrupt."""
    tracer = Tracer(error, numbers, where)
    try:
        _go_through(scenario, tracer, type(error()))
    except Exception as failure:
        report.failures.append((tracer.raised, failure))
    except BaseException as interrupted_from_outside:
        # A test that hangs is ended by its timeout: say where that run was interrupted.
        interrupted_from_outside.add_note(f"interrupted at {' and '.join(map(str, tracer.raised))}")
        raise
    report.places.update(tracer.raised)
    report.interrupts += bool(tracer.raised)
    return bool(tracer.raised)


def _go_through(
    scenario: Callable[[], Scenario], tracer: Tracer, caught: type[BaseException]
) -> None:
    running = scenario()
    answer: Place | None = None
    try:
        call = next(running)
        while True:
            before = len(tracer.raised)
            try:
                with tracer.tracing():
                    call()
            except caught:
                if len(tracer.raised) == before:
                    raise
            answer = tracer.raised[-1] if len(tracer.raised) > before else None
            call = running.send(answer)
    except StopIteration:
        pass
