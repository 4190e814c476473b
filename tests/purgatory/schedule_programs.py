"""Small programs of two or three threads around one purgatory, and what must hold at their end.

They are loaded by ``fresh_core``, so that their threads can be scheduled; read them as ordinary
code. ``point()`` marks where a callback or a user's thread may be interrupted, beside the switch
points of the core itself. A check at the end fails by AssertionError.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from purgatory import LockLike, Outcome
from tests.purgatory.probe import LONG_MS, Probe, Setting
from tests.purgatory.scheduler import fail, point

SHORT_MS = 500
"""A timeout that one thread of a program makes pass."""

RETRIES_MS = 100
"""In which time what met a taken lock has been tried again."""

COMPLETED, EXPIRED, CANCELLED, FAILED, PENDING = (
    Outcome.COMPLETED,
    Outcome.EXPIRED,
    Outcome.CANCELLED,
    Outcome.FAILED,
    Outcome.PENDING,
)

CALLBACKS = {
    PENDING: [],
    COMPLETED: ["on_complete"],
    EXPIRED: ["on_complete", "on_expiration"],
    CANCELLED: [],
    FAILED: ["on_failure"],
}
"""What is called, once each, for an outcome."""


class Waiting(Probe):
    """An operation whose callbacks can be interrupted, and must not overlap."""

    may_overlap = False
    inside: int | None = None
    wins = 0

    def try_complete(self) -> bool:
        with self._alone():
            self.calls.append("try_complete")
            point()
            ready = self.holds()
            point()
            return ready and self.force_complete()

    def holds(self) -> bool:
        """Whether the condition holds; a program may say otherwise."""
        return self.ready

    def _note(self, stage: str) -> None:
        with self._alone():
            point()
            super()._note(stage)
            point()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        me, before = threading.get_ident(), self.inside
        if before not in (None, me) and not self.may_overlap:
            fail("two callbacks of one operation overlap")
        self.inside = me
        try:
            yield
        finally:
            self.inside = before


class World(Setting):
    """A setting, its operations, and what threads do to them."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Waiting] = []
        self.closed = False

    def new(
        self, *keys: Hashable, delay_ms: int = LONG_MS, lock: LockLike | None = None
    ) -> Waiting:
        """Make an operation; submit it if there are keys."""
        operation = Waiting(delay_ms, lock)
        self.operations.append(operation)
        if keys:
            self.submit(operation, *keys)
        return operation

    def watch(self, operation: Waiting, *keys: Hashable) -> None:
        """Submit an operation on a thread of the program."""
        self.won(operation, self.purgatory.try_complete_else_watch(operation, keys))

    def won(self, operation: Waiting, count: int) -> None:
        """Note that a call says it settled ``operation``."""
        operation.wins += count

    def event(self, operation: Waiting, key: Hashable) -> None:
        """Make the condition true, and then tell of it."""
        operation.ready = True
        self.check(operation, key)

    def check(self, operation: Waiting, key: Hashable) -> None:
        """Tell of an event on a key that ``operation`` alone waits on."""
        point()
        self.won(operation, self.purgatory.check_and_complete(key))

    def expire(self) -> None:
        """Let the short timeouts pass."""
        self.clock.advance(SHORT_MS)
        self.timer.advance_clock(0)

    def cancel_for_key(self, key: Hashable) -> None:
        """Cancel who waits on ``key``."""
        for operation in self.purgatory.cancel_for_key(key):
            assert isinstance(operation, Waiting), operation
            self.won(operation, 1)

    def assert_ended(self, operation: Waiting, *allowed: Outcome) -> None:
        """Assert that it has one of these outcomes, once, and that retries were enough for it."""
        self.pass_time(RETRIES_MS)
        outcome = operation.outcome
        assert outcome in allowed, f"the outcome is {outcome.name}: {operation.calls}"
        finished = operation.finished
        assert finished == CALLBACKS[outcome], f"{outcome.name}, but called {finished}"
        assert operation.wins <= 1, f"{operation.wins} calls say that they settled it"
        if outcome is CANCELLED:
            assert operation.wins == 1, "cancelled, but no call says so"
        settled = outcome is not PENDING
        assert (operation.wait(0) is not PENDING) == settled, "those who wait are not told"

    def assert_nothing_left(self) -> None:
        """Assert that no list or wheel holds anything, once every timeout has passed."""
        outcomes = [operation.outcome for operation in self.operations]
        if PENDING in outcomes and not self.closed:
            self.pass_time(LONG_MS)
            for operation, outcome in zip(self.operations, outcomes, strict=True):
                if outcome is PENDING:
                    self.assert_ended(operation, EXPIRED)
        self.assert_empty()
        counted = sum(self.purgatory.counters.outcomes.values())
        assert counted <= len(self.operations), "an operation was counted twice"


@dataclass(frozen=True)
class Program:
    """Threads, and what must hold when all have ended."""

    world: World
    threads: Mapping[str, Callable[[], object]]
    check: Callable[[], object]

    def assert_all(self) -> None:
        """Assert the program's own end, and that nothing is left."""
        self.check()
        self.world.assert_nothing_left()


def event_while_watching() -> Program:
    world = World()
    operation = world.new()
    return Program(
        world,
        {
            "watch": lambda: world.watch(operation, "a"),
            "event": lambda: world.event(operation, "a"),
        },
        lambda: world.assert_ended(operation, COMPLETED),
    )


def event_while_watching_two_keys() -> Program:
    world = World()
    operation = world.new()
    return Program(
        world,
        {
            "watch": lambda: world.watch(operation, "a", "b"),
            "event": lambda: world.event(operation, "b"),
        },
        lambda: world.assert_ended(operation, COMPLETED),
    )


def event_and_expiry() -> Program:
    world = World()
    operation = world.new("a", delay_ms=SHORT_MS)
    return Program(
        world,
        {"event": lambda: world.event(operation, "a"), "expire": world.expire},
        lambda: world.assert_ended(operation, COMPLETED, EXPIRED),
    )


def force_and_cancel() -> Program:
    world = World()
    operation = world.new("a", "b")

    def force() -> None:
        world.won(operation, operation.force_complete())

    def cancel() -> None:
        world.won(operation, operation.cancel())

    def check() -> None:
        world.assert_ended(operation, COMPLETED, CANCELLED)
        assert operation.wins == 1, "one of the two has won"

    return Program(world, {"force": force, "cancel": cancel}, check)


PROGRAMS: dict[str, Callable[[], Program]] = {
    function.__name__: function
    for function in (
        event_while_watching,
        event_while_watching_two_keys,
        event_and_expiry,
        force_and_cancel,
    )
}
