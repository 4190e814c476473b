"""Small programs of two or three threads around one purgatory, and what must hold at their end.

They are loaded by ``fresh_core``, so that their threads can be scheduled; read them as ordinary
code. What makes a condition true always tells of it: an outcome other than COMPLETED is allowed
only where another thread may have been first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from purgatory import Outcome
from tests.purgatory.probe import LONG_MS
from tests.purgatory.schedule_world import (
    CANCELLED,
    COMPLETED,
    EXPIRED,
    FAILED,
    PENDING,
    SHORT_MS,
    Program,
    Waiting,
    World,
)
from tests.purgatory.scheduler import fail, point

PROGRAMS: dict[str, Callable[[], Program]] = {}
"""All programs by name."""


def program(build: Callable[[], Program]) -> Callable[[], Program]:
    """Enter a program into the list."""
    PROGRAMS[build.__name__] = build
    return build


def ends(world: World, operation: Waiting, *allowed: Outcome) -> Callable[[], object]:
    """Return a check that ``operation`` has one of these outcomes."""
    return partial(world.assert_outcome, operation, *allowed)


# Watching, while something happens.


@program
def event_while_watching() -> Program:
    world, operation = one_operation()
    threads = {"watch": lambda: world.watch(operation, "a"), "event": event(world, operation)}
    return Program(world, threads, ends(world, operation, COMPLETED))


@program
def event_on_the_second_key_while_watching_two() -> Program:
    world, operation = one_operation()
    threads = {
        "watch": lambda: world.watch(operation, "a", "b"),
        "event": lambda: world.event(operation, "b"),
    }
    return Program(world, threads, ends(world, operation, COMPLETED))


@program
def expiry_while_watching() -> Program:
    world, operation = one_operation(delay_ms=SHORT_MS)
    threads = {"watch": lambda: world.watch(operation, "a", "b"), "expire": world.expire}
    return Program(world, threads, ends(world, operation, EXPIRED, PENDING))


@program
def event_while_watching_with_no_time_left() -> Program:
    world, operation = one_operation(delay_ms=0)
    threads = {"watch": lambda: world.watch(operation, "a"), "event": event(world, operation)}
    return Program(world, threads, ends(world, operation, COMPLETED, EXPIRED))


@program
def force_while_watching() -> Program:
    world, operation = one_operation()
    operation.may_overlap = True
    threads = {
        "watch": lambda: world.watch(operation, "a", "b"),
        "force": lambda: world.force(operation),
    }

    def check() -> None:
        world.assert_outcome(operation, COMPLETED)
        assert operation.wins == 1, "who forced it must be told so"

    return Program(world, threads, check)


@program
def cancel_while_watching() -> Program:
    world, operation = one_operation()
    threads = {
        "watch": lambda: world.watch(operation, "a", "b"),
        "cancel": lambda: world.cancel(operation),
    }
    return Program(world, threads, ends(world, operation, CANCELLED))


@program
def cancel_for_key_while_watching() -> Program:
    world, operation = one_operation()
    threads = {
        "watch": lambda: world.watch(operation, "a", "b"),
        "cancel": lambda: world.cancel_for_key("b"),
    }

    def check() -> None:
        world.assert_outcome(operation, CANCELLED if operation.wins else PENDING)

    return Program(world, threads, check)


@program
def event_and_expiry_while_watching() -> Program:
    world, operation = one_operation(delay_ms=SHORT_MS)
    threads = {
        "watch": lambda: world.watch(operation, "a"),
        "event": event(world, operation),
        "expire": world.expire,
    }
    return Program(world, threads, ends(world, operation, COMPLETED, EXPIRED))


@program
def two_halves_of_a_condition_while_watching() -> Program:
    world, operation = one_operation()
    threads = {"watch": lambda: world.watch(operation, "a", "b")} | halves(world, operation)
    return Program(world, threads, ends(world, operation, COMPLETED))


# One operation that waits, and two or three who are after it.


@program
def event_and_expiry() -> Program:
    world, operation = one_operation("a", delay_ms=SHORT_MS)
    threads = {"event": event(world, operation), "expire": world.expire}
    return Program(world, threads, ends(world, operation, COMPLETED, EXPIRED))


@program
def check_and_expiry_of_what_holds() -> Program:
    world, operation = one_operation("a", delay_ms=SHORT_MS)
    operation.ready = True
    threads = {"check": lambda: world.check(operation, "a"), "expire": world.expire}
    return Program(world, threads, ends(world, operation, COMPLETED))


@program
def two_checks_on_two_keys() -> Program:
    world, operation = one_operation("a", "b")
    operation.ready = True
    threads = {key: partial(world.check, operation, key) for key in ("a", "b")}

    def check() -> None:
        world.assert_outcome(operation, COMPLETED)
        assert operation.wins == 1, "nobody but these two can have completed it"

    return Program(world, threads, check)


@program
def two_halves_of_a_condition() -> Program:
    world, operation = one_operation("a", "b")
    return Program(world, halves(world, operation), ends(world, operation, COMPLETED))


@program
def force_and_cancel() -> Program:
    world, operation = one_operation("a", "b")
    threads = {
        "force": lambda: world.force(operation),
        "cancel": lambda: world.cancel(operation),
    }

    def check() -> None:
        world.assert_outcome(operation, COMPLETED, CANCELLED)
        assert operation.wins == 1, "one of the two has won"

    return Program(world, threads, check)


@program
def cancel_and_expiry() -> Program:
    world, operation = one_operation("a", delay_ms=SHORT_MS)
    threads = {"cancel": lambda: world.cancel(operation), "expire": world.expire}
    return Program(world, threads, ends(world, operation, CANCELLED, EXPIRED))


@program
def cancel_for_two_keys() -> Program:
    world, operation = one_operation("a", "b")
    threads = {key: partial(world.cancel_for_key, key) for key in ("a", "b")}
    return Program(world, threads, ends(world, operation, CANCELLED))


@program
def event_cancel_and_expiry() -> Program:
    world, operation = one_operation("a", delay_ms=SHORT_MS)
    threads = {
        "event": event(world, operation),
        "cancel": lambda: world.cancel_for_key("a"),
        "expire": world.expire,
    }
    return Program(world, threads, ends(world, operation, COMPLETED, CANCELLED, EXPIRED))


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


# A lock of the user's, that a stranger holds now and then.


@program
def users_lock_and_event() -> Program:
    world, operation, stranger = one_operation_with_lock()
    threads = {"stranger": stranger, "event": event(world, operation)}
    return Program(world, threads, ends(world, operation, COMPLETED))


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
def users_lock_and_expiry() -> Program:
    world, operation, stranger = one_operation_with_lock(delay_ms=SHORT_MS)
    threads = {"stranger": stranger, "expire": world.expire}
    return Program(world, threads, ends(world, operation, EXPIRED))


@program
def users_lock_event_and_watch() -> Program:
    lock = threading.Lock()
    world = World()
    operation = world.new(lock=lock)
    threads = {
        "stranger": lambda: world.hold(lock),
        "watch": lambda: world.watch(operation, "a"),
        "event": event(world, operation),
    }
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
def users_lock_event_and_expiry() -> Program:
    world, operation, stranger = one_operation_with_lock(delay_ms=SHORT_MS)
    threads = {"stranger": stranger, "event": event(world, operation), "expire": world.expire}
    return Program(world, threads, ends(world, operation, COMPLETED, EXPIRED))


@program
def users_lock_event_and_retries() -> Program:
    world, operation, stranger = one_operation_with_lock()
    threads = {
        "stranger": stranger,
        "event": event(world, operation),
        "retries": world.let_retries_come,
    }
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

    def go_on() -> None:
        second.ready = True
        world.check_all("a")

    def begin() -> None:
        first.ready = True
        world.check_all("a")

    first.hooks = {"on_complete": go_on}
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


# What the programs are made of.


def one_operation(*keys: str, delay_ms: int = LONG_MS) -> tuple[World, Waiting]:
    world = World()
    return world, world.new(*keys, delay_ms=delay_ms)


def one_operation_with_lock(
    delay_ms: int = LONG_MS,
) -> tuple[World, Waiting, Callable[[], object]]:
    """Return one that waits on "a", and a stranger who holds its lock now and then."""
    world, lock = World(), threading.Lock()
    return world, world.new("a", delay_ms=delay_ms, lock=lock), lambda: world.hold(lock)


def event(world: World, operation: Waiting) -> Callable[[], object]:
    return lambda: world.event(operation, "a")


def halves(world: World, operation: Waiting) -> dict[str, Callable[[], object]]:
    """Return two threads, each of which makes half of the condition true, and tells of it."""
    seen: set[str] = set()

    def condition() -> bool:
        left = "a" in seen
        point()
        return left and "b" in seen

    def half(key: str) -> None:
        seen.add(key)
        world.check(operation, key)

    operation.condition = condition
    return {key: partial(half, key) for key in ("a", "b")}


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
