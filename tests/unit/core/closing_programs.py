"""Programs in which a purgatory is closed while others use it."""

from __future__ import annotations

import threading

from tests.unit.core.schedule_world import (
    COMPLETED,
    EXPIRED,
    PENDING,
    Program,
    World,
    event,
    one_operation,
    program,
)


@program
def close_by_leaving_while_watching_with_no_time_left() -> Program:
    world, operation = one_operation(delay_ms=0)
    threads = {
        "watch": lambda: world.watch_if_open(operation, "a", "b"),
        "close": lambda: world.close("leave"),
    }
    return Program(world, threads, lambda: world.assert_outcome(operation, EXPIRED, PENDING))


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
