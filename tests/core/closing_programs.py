"""Programs in which a purgatory is closed while others use it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from purgatory import ClosePolicy, Outcome
from tests.core.schedule_world import (
    COMPLETED,
    EXPIRED,
    FAILED,
    PENDING,
    SHORT_MS,
    Program,
    World,
    event,
    one_operation,
    program,
)


@program
def close_by_expiry_while_watching() -> Program:
    return close_while_watching("expire", EXPIRED)


@program
def close_by_failure_while_watching() -> Program:
    return close_while_watching("fail", FAILED)


@program
def close_by_leaving_while_watching() -> Program:
    return close_while_watching("leave", PENDING)


@program
def close_by_leaving_while_watching_with_no_time_left() -> Program:
    world, operation = one_operation(delay_ms=0)
    threads = {
        "watch": lambda: world.watch_if_open(operation, "a", "b"),
        "close": lambda: world.close("leave"),
    }
    return Program(world, threads, lambda: world.assert_outcome(operation, EXPIRED, PENDING))


@program
def close_and_event_while_watching() -> Program:
    world, operation = one_operation()
    threads = {
        "watch": lambda: world.watch_if_open(operation, "a", "b"),
        "event": event(world, operation),
        "close": lambda: world.close("fail"),
    }

    def check() -> None:
        refused = operation not in world.operations
        world.assert_outcome(operation, *([PENDING] if refused else [COMPLETED, FAILED]))

    return Program(world, threads, check)


@program
def close_by_leaving_and_event() -> Program:
    world, operation = one_operation("a")
    threads = {"close": lambda: world.close("leave"), "event": event(world, operation)}
    return Program(world, threads, lambda: world.assert_outcome(operation, COMPLETED, PENDING))


@program
def close_by_leaving_while_the_users_lock_is_taken_and_event() -> Program:
    world, lock = World(), threading.Lock()
    operation = world.new("a", lock=lock)
    lock.acquire()

    def close() -> None:
        world.close("leave")
        lock.release()

    threads = {"event": event(world, operation), "close": close}
    return Program(world, threads, lambda: world.assert_outcome(operation, COMPLETED, PENDING))


@program
def close_and_event() -> Program:
    world, operation = one_operation("a")
    threads = {"close": lambda: world.close("fail"), "event": event(world, operation)}
    return Program(world, threads, lambda: world.assert_outcome(operation, COMPLETED, FAILED))


@program
def close_and_expiry() -> Program:
    world, operation = one_operation("a", delay_ms=SHORT_MS)
    threads = {"close": lambda: world.close("fail"), "expire": world.expire}
    return Program(world, threads, lambda: world.assert_outcome(operation, EXPIRED, FAILED))


@program
def close_and_users_lock() -> Program:
    return close_with_users_lock({})


@program
def close_users_lock_and_event() -> Program:
    return close_with_users_lock({"event": lambda world: event(world, world.operations[0])()})


@program
def close_twice() -> Program:
    world, operation = one_operation("a", "b")
    threads = {"close": lambda: world.close("expire"), "close too": lambda: world.close("fail")}
    return Program(world, threads, lambda: world.assert_outcome(operation, EXPIRED, FAILED))


def close_while_watching(policy: ClosePolicy, outcome: Outcome) -> Program:
    world, operation = one_operation()
    threads = {
        "watch": lambda: world.watch_if_open(operation, "a", "b"),
        "close": lambda: world.close(policy),
    }

    def check() -> None:
        refused = operation not in world.operations
        world.assert_outcome(operation, PENDING if refused else outcome)

    return Program(world, threads, check)


def close_with_users_lock(more: dict[str, Callable[[World], object]]) -> Program:
    world, lock = World(), threading.Lock()
    operation = world.new("a", lock=lock)
    threads: dict[str, Callable[[], object]] = {
        "stranger": lambda: world.hold(lock),
        "close": lambda: world.close("fail"),
    }
    for name, work in more.items():
        threads[name] = lambda work=work: work(world)  # type: ignore[misc]
    return Program(world, threads, lambda: world.assert_outcome(operation, COMPLETED, FAILED))
