"""Small programs of two or three threads around one purgatory, with assertions at their end.

They are loaded by ``fresh_core``, so that their threads can be scheduled; read them as ordinary
code. A call that makes a condition true always notifies: an outcome other than COMPLETED is allowed
only if another thread may have been first.
"""

from __future__ import annotations

from functools import partial

from tests.proofs.core.scheduler import fail
from tests.unit.core.schedule_world import (
    COMPLETED,
    EXPIRED,
    FAILED,
    SHORT_MS,
    Program,
    Waiting,
    World,
    ends,
    event,
    halves,
    one_operation,
    program,
)

# Watching, while something happens.


@program
def event_while_watching_with_no_time_left() -> Program:
    world, operation = one_operation(delay_ms=0)
    threads = {"watch": lambda: world.watch(operation, "a"), "event": event(world, operation)}
    return Program(world, threads, ends(world, operation, COMPLETED, EXPIRED))


@program
def two_halves_of_a_condition_while_watching() -> Program:
    world, operation = one_operation()
    threads = {"watch": lambda: world.watch(operation, "a", "b")} | halves(world, operation)
    return Program(world, threads, ends(world, operation, COMPLETED))


# One operation that waits, and two or three threads that try to complete it.


@program
def two_halves_of_a_condition() -> Program:
    world, operation = one_operation("a", "b")
    return Program(world, halves(world, operation), ends(world, operation, COMPLETED))


@program
def two_halves_of_a_condition_and_expiry() -> Program:
    world, operation = one_operation("a", "b", delay_ms=SHORT_MS)
    threads = {"expire": world.expire} | halves(world, operation)
    return Program(world, threads, ends(world, operation, COMPLETED, EXPIRED))


@program
def two_who_wait_and_one_who_forces() -> Program:
    world, operation = one_operation("a")
    operation.may_overlap = True

    def wait() -> None:
        if operation.wait() is not COMPLETED or operation.finished != ["on_complete"]:
            fail(f"a waiter goes on, with {operation.outcome.name} and {operation.finished}")

    threads = {"wait": wait, "wait too": wait, "force": lambda: world.force(operation)}
    return Program(world, threads, ends(world, operation, COMPLETED))


@program
def a_check_that_raises_and_another_check() -> Program:
    world, operation = one_operation("a", "b")

    def broken() -> bool:
        raise LookupError("on purpose")

    operation.condition = broken
    threads = {key: partial(world.check, operation, key) for key in ("a", "b")}
    return Program(world, threads, ends(world, operation, FAILED))


@program
def a_completion_that_raises_and_expiry() -> Program:
    world, operation = one_operation("a", delay_ms=SHORT_MS)

    def broken() -> None:
        raise LookupError("on purpose")

    operation.hooks = {"on_complete": broken}
    threads = {"event": event(world, operation), "expire": world.expire}

    def check() -> None:
        assert operation.outcome is operation.wait(0) is FAILED
        assert operation.finished == ["on_complete", "on_failure"]

    return Program(world, threads, check)


# Two operations on one key.


@program
def two_operations_watched_on_one_key() -> Program:
    world = World()
    first, second = world.new(), world.new()
    threads = {
        "first": lambda: world.watch(first, "a"),
        "second": lambda: world.watch(second, "a"),
    }
    return Program(world, threads, lambda: assert_found_on_a(world, first, second))


@program
def two_leave_a_key() -> Program:
    world = World()
    first, second = world.new("a"), world.new("a")
    threads = {
        "first": lambda: world.cancel(first),
        "second": lambda: world.cancel(second),
    }
    return Program(world, threads, lambda: assert_found_on_a(world))


def assert_found_on_a(world: World, *operations: Waiting) -> None:
    """Assert that an event on "a" finds these, and all are counted."""
    assert world.purgatory.watched == len(operations)
    for operation in operations:
        operation.ready = True
    assert world.purgatory.check_and_complete("a") == len(operations)
