"""Programs with a lock of the user's, and with completions that cause completions."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.unit.core.schedule_world import (
    CANCELLED,
    COMPLETED,
    LONG_MS,
    Program,
    Waiting,
    World,
    ends,
    event,
    one_operation,
    program,
)

# A lock of the user's, that a stranger holds now and then.


@program
def users_lock_that_stays_taken_and_two_events() -> Program:
    world, lock = World(), threading.Lock()
    operation = world.new("a", lock=lock)
    lock.acquire()
    threads = {"event": event(world, operation), "event too": event(world, operation)}

    def cancel() -> None:
        world.won(operation, operation.cancel())
        world.assert_outcome(operation, CANCELLED)

    return Program(world, threads, cancel)


@program
def users_lock_under_which_the_event_is_told() -> Program:
    lock = threading.Lock()
    world = World()
    operation = world.new("a", lock=lock)

    def handler() -> None:
        with lock:
            world.event(operation, "a")

    threads = {"stranger": lambda: world.hold(lock), "handler": handler}
    return Program(world, threads, ends(world, operation, COMPLETED))


@program
def users_lock_event_and_cancel() -> Program:
    world, operation, stranger = one_operation_with_lock()
    threads = {
        "stranger": stranger,
        "event": event(world, operation),
        "cancel": lambda: world.cancel(operation),
    }
    return Program(world, threads, ends(world, operation, COMPLETED, CANCELLED))


@program
def users_lock_that_is_taken_until_retries_came() -> Program:
    world, lock = World(), threading.Lock()
    operation = world.new("a", lock=lock)
    lock.acquire()

    def stranger() -> None:
        world.let_retries_come()
        lock.release()

    threads = {"event": event(world, operation), "stranger": stranger}
    return Program(world, threads, ends(world, operation, COMPLETED))


@program
def users_lock_of_two_operations() -> Program:
    lock = threading.Lock()
    world = World()
    first, second = world.new("a", lock=lock), world.new("b", lock=lock)
    threads = {
        "first": lambda: world.event(first, "a"),
        "second": lambda: world.event(second, "b"),
    }
    return Program(world, threads, both_completed(world, first, second))


# Completions that cause completions.


@program
def completions_that_check_each_others_key() -> Program:
    return each_checks_the_other(None, None)


@program
def completions_under_two_users_locks_that_check_each_others_key() -> Program:
    return each_checks_the_other(threading.Lock(), threading.Lock())


@program
def completion_that_checks_its_own_key() -> Program:
    world = World()
    first, second = world.new("a"), world.new("a")

    def resume() -> None:
        second.ready = True
        world.check_all("a")

    def begin() -> None:
        first.ready = True
        world.check_all("a")

    first.hooks = {"on_complete": resume}
    threads = {"event": begin, "check": lambda: world.check_all("a")}
    return Program(world, threads, both_completed(world, first, second))


@program
def completion_that_watches_the_next() -> Program:
    world, first = one_operation("a")
    second = world.new()
    first.hooks = {"on_complete": lambda: world.watch(second, "b")}
    threads = {
        "first": lambda: world.event(first, "a"),
        "second": lambda: world.event(second, "b"),
    }
    return Program(world, threads, both_completed(world, first, second))


def one_operation_with_lock(
    delay_ms: int = LONG_MS,
) -> tuple[World, Waiting, Callable[[], object]]:
    """Return an operation that waits on "a", and a stranger that holds its lock now and then."""
    world, lock = World(), threading.Lock()
    return world, world.new("a", delay_ms=delay_ms, lock=lock), lambda: world.hold(lock)


def each_checks_the_other(
    first_lock: threading.Lock | None, second_lock: threading.Lock | None
) -> Program:
    world = World()
    first, second = world.new("a", lock=first_lock), world.new("b", lock=second_lock)
    first.hooks = {"on_complete": lambda: world.event(second, "b")}
    second.hooks = {"on_complete": lambda: world.event(first, "a")}
    threads = {
        "first": lambda: world.event(first, "a"),
        "second": lambda: world.event(second, "b"),
    }
    return Program(world, threads, both_completed(world, first, second))


def both_completed(world: World, first: Waiting, second: Waiting) -> Callable[[], object]:
    def check() -> None:
        for operation in (first, second):
            world.assert_outcome(operation, COMPLETED)

    return check
