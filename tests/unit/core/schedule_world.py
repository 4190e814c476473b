"""Operations of the scheduled programs, which watch themselves, and the calls of threads on them.

Loaded by ``fresh_core`` together with the programs. ``point()`` marks where a callback or a user's
thread may be switched, beside the switch points of the core itself. The native core has none of
those, since threads switch only in the Python that it calls. With it, all of that Python has
points: keys, the clock, the observer, listeners; callbacks and locks have them anyway.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from purgatory import DelayedOperation, Outcome, PurgatoryClosedError
from purgatory.core.backend import NATIVE
from purgatory.core.closing import ClosePolicy
from purgatory.core.locks import LockLike
from purgatory.core.purgatory import CompletionObserver
from tests.proofs.core.scheduler import SCHEDULER, fail, point
from tests.unit.core.probe import Probe, Setting
from timer import ManualClock

SHORT_MS = 12
"""A timeout that one thread of a program makes pass; one level up in the wheel."""

LONG_MS = 1_000
"""A timeout that passes once all threads have ended; four levels up."""

WHEEL_SIZE = 5
"""Small: a wheel is made for each run."""

RETRIES_MS = 100
"""The time in which an operation whose lock was taken is retried."""

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
"""The callbacks of an outcome, once each."""


def called() -> None:
    """Let another thread run where the native core calls Python; in pure Python any step has its
    point."""
    if NATIVE:
        point()


def _call_observer(operation: DelayedOperation, counted_as: str, wait_ns: int) -> None:
    called()


class CalledKey(str):
    """A key that is its text, hashed and compared in Python."""

    __slots__ = ()

    def __hash__(self) -> int:
        called()
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        called()
        return super().__eq__(other)


class CalledClock(ManualClock):
    """A clock at each reading of which another thread may run."""

    def now_ns(self) -> int:
        called()
        return super().now_ns()


class Waiting(Probe):
    """An operation whose callbacks can be interrupted, and must not overlap."""

    condition: Callable[[], bool] | None = None
    inside: int | None = None
    may_be_called = True
    may_be_early = False
    """Whether it may be completed before it is submitted, and is then not counted."""
    may_overlap = False
    is_users = False
    """Whether its user may complete it at any time, also after a close: no close waits for that."""
    wins = 0

    def try_complete(self) -> bool:
        with self._alone():
            self.calls.append("try_complete")
            point()
            holds = self.ready if self.condition is None else self.condition()
            point()
            return holds and self.force_complete()

    def _note(self, stage: str) -> None:
        with self._alone():
            point()
            super()._note(stage)
            point()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        me, before = threading.get_ident(), self.inside
        if not self.may_be_called:
            fail("a callback after the purgatory was closed")
        if before not in (None, me) and not self.may_overlap:
            fail("two callbacks of one operation overlap")
        self.inside = me
        try:
            yield
        finally:
            self.inside = before


class World(Setting):
    """A setting, its operations, and the calls of threads on them."""

    def __init__(
        self, max_pending: int | None = None, on_completed: CompletionObserver | None = None
    ) -> None:
        if on_completed is None and NATIVE:
            on_completed = _call_observer
        super().__init__(
            wheel_size=WHEEL_SIZE,
            clock=CalledClock() if NATIVE else None,
            on_completed=on_completed,
            max_pending=max_pending,
        )
        self.operations: list[Waiting] = []
        self.may_be_mistaken = False  # a signal's exception, for one of `on_failure`
        self.refused: list[Waiting] = []
        SCHEDULER.operations.clear()

    def new(
        self, *keys: Hashable, delay_ms: int = LONG_MS, lock: LockLike | None = None
    ) -> Waiting:
        """Make an operation; submit it if there are keys."""
        operation = Waiting(delay_ms, lock)
        claims = getattr(operation, "_op_claims", operation)  # natively there are none
        SCHEDULER.number(len(self.operations), operation, claims)
        self.operations.append(operation)
        if keys:
            self.watch(operation, *keys)
        return operation

    # The calls of a thread.

    def watch(
        self, operation: Waiting, *keys: Hashable, thresholds: Mapping[str, int] | None = None
    ) -> None:
        """Submit ``operation``."""
        if NATIVE:
            keys = tuple(map(CalledKey, keys))
            if thresholds is not None:
                thresholds = {CalledKey(key): number for key, number in thresholds.items()}
        self.won(operation, self.purgatory.try_complete_else_watch(operation, keys, thresholds))

    def watch_if_open(
        self, operation: Waiting, *keys: Hashable, thresholds: Mapping[str, int] | None = None
    ) -> None:
        """Submit ``operation``, unless the purgatory was closed."""
        try:
            self.watch(operation, *keys, thresholds=thresholds)
        except PurgatoryClosedError:
            self.operations.remove(operation)
            self.refused.append(operation)

    def watch_threshold(self, operation: Waiting, *pairs: Hashable) -> None:
        """Submit ``operation``, to wait for values alone: key, number, key, number."""
        thresholds = dict(zip(pairs[::2], pairs[1::2], strict=True))
        self.watch(operation, thresholds=thresholds)  # type: ignore[arg-type]

    def advance(self, operation: Waiting, key: Hashable, value: int) -> None:
        """Tell of the value of a key that ``operation`` alone waits on."""
        point()
        self.won(operation, self.purgatory.advance(key, value))

    def event(self, operation: Waiting, key: Hashable) -> None:
        """Make the condition true, and then tell of it."""
        operation.ready = True
        self.check(operation, key)

    def check(self, operation: Waiting, key: Hashable) -> None:
        """Report an event on a key of ``operation`` and of no other ready operation.

        Another one may have come, and been completed by whoever had it in hand: by this call, if a
        verdict on it was noted meanwhile.
        """
        point()
        completed = self.purgatory.check_and_complete(key)
        if completed > len(self.operations):
            fail(f"{completed} completed, and there are {len(self.operations)}")
        self.won(operation, min(completed, 1))

    def check_all(self, key: Hashable) -> None:
        """Tell of an event on a key that several wait on."""
        point()
        self.purgatory.check_and_complete(key)

    def expire(self) -> None:
        """Let the short timeouts pass."""
        self.clock.advance(SHORT_MS)
        self.timer.advance_clock(0)

    def let_retries_come(self) -> None:
        """Let operations whose lock was taken retry, now and then."""
        for _ in range(2):
            point()
            self.clock.advance(RETRIES_MS)
            self.timer.advance_clock(0)

    def force(self, operation: Waiting) -> None:
        """Complete it without asking."""
        self.won(operation, operation.force_complete())

    def cancel(self, operation: Waiting) -> None:
        """Take it off."""
        self.won(operation, operation.cancel())

    def cancel_for_key(self, key: Hashable) -> None:
        """Cancel the operations that wait on ``key``."""
        for operation in self.purgatory.cancel_for_key(key):
            assert isinstance(operation, Waiting), operation
            self.won(operation, 1)

    def close(self, policy: ClosePolicy) -> None:
        """Close the purgatory, after which nothing of it runs."""
        self.purgatory.close(policy)
        known = [operation for operation in self.operations if not operation.is_users]
        for operation in known:
            operation.may_be_called = False
        # Not ``watched``: a submission may have yet to take off an operation that completed
        # meanwhile.
        if self.purgatory.num_delayed:
            fail(f"closed, and still {self.purgatory.num_delayed} operations pending")
        for operation in known:
            outcome, finished = operation.outcome, operation.finished
            mistaken = self.may_be_mistaken and outcome is FAILED and not finished
            if finished != CALLBACKS[outcome] and not mistaken:
                fail(f"closed, and of {outcome.name} only {finished} was called")

    def hold(self, lock: LockLike) -> None:
        """Hold a user's lock for a while, twice, knowing nothing of operations."""
        for _ in range(2):
            lock.acquire(True)
            point()
            lock.release()

    def won(self, operation: Waiting, count: int) -> None:
        """Record that a call reports to have completed ``operation``."""
        operation.wins += count

    # Invariants at the end.

    def assert_outcome(self, operation: Waiting, *allowed: Outcome) -> None:
        """Assert that it has one of these outcomes, that its listener was called once, and no two
        calls won."""
        outcome = operation.outcome
        assert outcome in allowed, f"the outcome is {outcome.name}: {operation.calls}"
        finished = operation.finished
        assert finished == CALLBACKS[outcome], f"{outcome.name}, but called {finished}"
        assert operation.wins <= 1, f"{operation.wins} calls report to have completed it"
        if outcome is CANCELLED:
            assert operation.wins == 1, "cancelled, but no call says so"
        completed = outcome is not PENDING
        assert (operation.wait(0) is not PENDING) == completed, "waiters are not notified"

    def assert_completed_are_off_the_timer(self) -> None:
        """Assert that the timer holds no operation that was completed, or abandoned by closing."""
        pending = any(operation.outcome is PENDING for operation in self.operations)
        if not pending or self.purgatory.is_closed:
            assert self.timer.size == 0, f"{self.timer.size} tasks left on the timer"

    def assert_nothing_left(self) -> None:
        """Assert that no list or wheel holds anything, once every timeout has passed."""
        pending = [operation for operation in self.operations if operation.outcome is PENDING]
        if pending and not self.purgatory.is_closed:
            self.pass_time(LONG_MS)
            for operation in pending:
                self.assert_outcome(operation, EXPIRED)
        self.assert_empty()
        self.assert_counted_once()

    def assert_counted_once(self) -> None:
        """Assert that each completed operation is in the counters, once."""
        outcomes = self.purgatory.counters.outcomes
        counted = sum(count for outcome, count in outcomes.items() if outcome != "rejected")
        completed = [operation for operation in self.operations if operation.is_completed]
        early = sum(operation.may_be_early for operation in completed)
        assert len(completed) - early <= counted <= len(completed), (
            f"{counted} outcomes were counted for {len(completed)} operations"
        )


@dataclass(frozen=True)
class Program:
    """Threads, and the assertions once all have ended."""

    world: World
    threads: Mapping[str, Callable[[], object]]
    check: Callable[[], object]

    def assert_all(self) -> None:
        """Assert the program's own end, and that nothing is left."""
        self.world.assert_completed_are_off_the_timer()
        self.world.pass_time(RETRIES_MS)
        self.check()
        self.world.assert_nothing_left()


PROGRAMS: dict[str, Callable[[], Program]] = {}
"""All programs by name."""


def program(build: Callable[[], Program]) -> Callable[[], Program]:
    """Enter a program into the list."""
    PROGRAMS[build.__name__] = build
    return build


def ends(world: World, operation: Waiting, *allowed: Outcome) -> Callable[[], object]:
    """Return a check that ``operation`` has one of these outcomes."""
    return partial(world.assert_outcome, operation, *allowed)


def one_operation(*keys: str, delay_ms: int = LONG_MS) -> tuple[World, Waiting]:
    world = World()
    return world, world.new(*keys, delay_ms=delay_ms)


def event(world: World, operation: Waiting) -> Callable[[], object]:
    return lambda: world.event(operation, "a")


def halves(world: World, operation: Waiting) -> dict[str, Callable[[], object]]:
    """Return two threads, each of which makes half of the condition true, and reports it."""
    seen: set[str] = set()

    def condition() -> bool:
        left = "a" in seen
        point()
        return left and "b" in seen

    def half(key: str) -> None:
        point()
        seen.add(key)
        world.check(operation, key)

    operation.condition = condition
    return {key: partial(half, key) for key in ("a", "b")}
