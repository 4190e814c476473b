"""Programs around a value that is waited for, and around listeners for its end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from purgatory import Outcome
from tests.proofs.core.scheduler import point
from tests.unit.core.schedule_world import (
    COMPLETED,
    LONG_MS,
    Program,
    Waiting,
    World,
    called,
    ends,
    one_operation,
    program,
)


@program
def two_halves_of_two_thresholds() -> Program:
    world = World()
    operation = world.new()
    value = world.purgatory.value

    def both() -> bool:
        reached = (value("a") or 0) >= 1
        point()
        return reached and (value("b") or 0) >= 1

    operation.condition = both
    world.watch_threshold(operation, "a", 1, "b", 1)
    threads = {key: partial(world.advance, operation, key, 1) for key in ("a", "b")}
    return Program(world, threads, ends(world, operation, COMPLETED))


@program
def two_listeners_come_while_it_completes() -> Program:
    return listening_while(lambda world, operation: world.force(operation), COMPLETED, 2)


def one_threshold(number: int, delay_ms: int = LONG_MS) -> tuple[World, Waiting]:
    """Return an operation that waits until the value of "a" is ``number``; it is not submitted."""
    world, operation = one_operation(delay_ms=delay_ms)
    operation.condition = lambda: (world.purgatory.value("a") or 0) >= number
    return world, operation


def listening_while(
    settle: Callable[[World, Waiting], object], outcome: Outcome, listeners: int = 1
) -> Program:
    """A thread completes an operation that waits for a threshold alone; others add listeners."""
    world, operation = one_operation()
    operation.may_overlap = True
    world.watch_threshold(operation, "a", 3)
    told: list[tuple[int, Outcome]] = []

    def listen(number: int) -> None:
        def hear() -> None:
            called()
            told.append((number, operation.outcome))

        operation.call_when_completed(hear)

    threads: dict[str, Callable[[], object]] = {
        f"listen {number}": partial(listen, number) for number in range(listeners)
    }

    def check() -> None:
        # First of all, since whoever waits for an operation sees to it that all are told.
        assert sorted(told, key=lambda one: one[0]) == [(n, outcome) for n in range(listeners)], (
            f"each listener is told once: {told}"
        )
        world.assert_outcome(operation, outcome)

    return Program(world, threads | {"settle": lambda: settle(world, operation)}, check)
