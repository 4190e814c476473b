"""An interrupt at any instruction of the purgatory: nothing is stuck, nothing is lost.

Each call is interrupted before each of its instructions in turn. Then one of three things happens:
an event on every key, the timeouts expire, the purgatory is closed. Each of them finishes the
interrupted call: every operation is completed once, its waiters are notified, no ownership, claim
or user's lock stays taken, and all sizes are zero.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    Outcome,
    PurgatoryClosedError,
    PurgatoryFullError,
    core,
)
from purgatory.core import operation as operation_module
from purgatory.core import retry as retry_module
from purgatory.core.locks import LockLike
from purgatory.core.outcome import DONE
from tests.proofs.interrupts.interruptions import Interrupt, Scenario, interrupt_everywhere
from tests.unit.core.probe import LONG_MS, pass_time
from tests.unit.core.recorded_life import IN_THE_TABLE, recorded_moves
from timer import InlineExecutor, ManualClock, SystemTimer

CORE = (str(Path(str(core.__file__)).parent),)
"""The timer has tests of its own."""

THE_OPERATION = (str(operation_module.__file__), str(retry_module.__file__))

SHORT_MS = 50

CALLBACKS: dict[Outcome, list[list[str]]] = {
    Outcome.COMPLETED: [["on_complete"]],
    Outcome.EXPIRED: [["on_complete", "on_expiration"]],
    Outcome.CANCELLED: [[]],
    Outcome.FAILED: [
        ["on_failure"],
        ["on_complete", "on_failure"],
        ["on_complete", "on_expiration", "on_failure"],
        [],
        ["on_complete"],
        ["on_complete", "on_expiration"],
    ],
}
"""The callbacks that may have run. One that an interrupt keeps from beginning counts as begun."""


class SignalError(Exception):
    """Another exception of a signal's handler: it can be mistaken for an error of a callback."""


class Waiting(DelayedOperation):
    """Completes once it is ready, or the world is."""

    def __init__(self, world: World, delay_ms: int = LONG_MS, lock: LockLike | None = None) -> None:
        super().__init__(delay_ms, lock)
        self.world = world
        self.ready = False
        self.raises = False
        self.calls: list[str] = []
        self.told = 0
        self.then: Callable[[], object] | None = None

    def try_complete(self) -> bool:
        return (self.ready or self.world.ready) and self.force_complete()

    def on_complete(self) -> None:
        self.calls.append("on_complete")
        if self.raises:
            raise OSError("the disk is full")
        if self.then is not None:
            self.then()

    def on_expiration(self) -> None:
        self.calls.append("on_expiration")

    def on_failure(self, error: BaseException) -> None:
        self.calls.append("on_failure")

    def tell(self) -> None:
        self.told += 1


class World:
    """A purgatory on a clock that stands still, and all that was given to it."""

    a_listener_may_fail = False

    def __init__(self, max_pending: int | None = None) -> None:
        self.clock = ManualClock()
        self.timer = SystemTimer("test", clock=self.clock, executor=InlineExecutor())
        self.completed: list[int] = []
        self.purgatory = self.make_purgatory(
            max_pending=max_pending,
            on_completed=lambda operation, counted_as, wait_ns: self.completed.append(
                id(operation)
            ),
        )
        self.ready = False
        self.locks: list[Any] = []
        self.made: list[Waiting] = []
        self.interrupts = 1

    def make_purgatory(self, **options: Any) -> DelayedOperationPurgatory:
        return DelayedOperationPurgatory("test", timer=self.timer, reaper_enabled=False, **options)

    def lock(self) -> Any:
        self.locks.append(threading.Lock())
        return self.locks[-1]

    def new(self, delay_ms: int = LONG_MS, lock: LockLike | None = None) -> Waiting:
        operation = Waiting(self, delay_ms, lock)
        self.made.append(operation)
        operation.call_when_completed(operation.tell)
        return operation

    def park(self, delay_ms: int = LONG_MS, lock: LockLike | None = None) -> Waiting:
        operation = self.new(delay_ms, lock)
        self.purgatory.try_complete_else_watch(operation, ["a", "b"])
        return operation

    def park_for(self, number: int) -> Waiting:
        operation = self.new()
        self.purgatory.try_complete_else_watch(operation, ["b"], {"n": number})
        return operation

    def pass_time(self, delta_ms: int) -> None:
        pass_time(self.clock, self.timer, delta_ms)

    def assert_over(self) -> None:
        """Assert that everything has its one end, and nothing is left."""
        purgatory = self.purgatory
        purgatory._check()
        assert (purgatory.watched, purgatory.watched_keys, purgatory.num_delayed) == (0, 0, 0)
        assert not purgatory._state.lock._is_owned(), "a turn did not end"
        assert not purgatory._state.interrupted
        assert not any(lock.locked() for lock in self.locks), "a user's lock stays taken"
        taken = [one for one in self.made if one._op_state is purgatory._state]
        for one in taken:
            assert one.outcome is not Outcome.PENDING, "it waits for ever"
            assert one.calls in CALLBACKS[one.outcome], (one.outcome, one.calls)
            assert one._op_stage == DONE
            assert one.told >= 1 or self.a_listener_may_fail, "the waiting caller was not notified"
            assert one.wait(0) is one.outcome
            assert self.completed.count(id(one)) <= 1
        counted = purgatory.counters.outcomes
        assert abs(sum(counted.values()) - len(taken)) <= self.interrupts, counted
        self.pass_time(10 * LONG_MS)
        assert self.timer.size == 0, "a task stays on the timer"


def an_event(world: World) -> None:
    world.ready = True
    for key in "ab":
        world.purgatory.check_and_complete(key)
    world.purgatory.advance("n", 1_000)
    world.pass_time(100)  # retries


def time_passes(world: World) -> None:
    world.pass_time(2 * LONG_MS)


def closing(world: World) -> None:
    world.purgatory.close("fail")


THEN = [an_event, time_passes, closing]

Call = Callable[[World], Iterator[Callable[[], object]]]


def submit(world: World) -> Iterator[Callable[[], object]]:
    yield lambda: world.purgatory.try_complete_else_watch(world.new(), ["a", "b"], {"n": 5})


def submit_what_completes(world: World) -> Iterator[Callable[[], object]]:
    operation = world.new()
    operation.ready = True
    yield lambda: world.purgatory.try_complete_else_watch(operation, ["a"])


def submit_with_a_lock(world: World) -> Iterator[Callable[[], object]]:
    operation = world.new(lock=world.lock())
    yield lambda: world.purgatory.try_complete_else_watch(operation, ["a"])


def submit_where_the_lock_is_taken(world: World) -> Iterator[Callable[[], object]]:
    lock = world.lock()
    operation = world.new(lock=lock)
    with lock:
        yield lambda: world.purgatory.try_complete_else_watch(operation, ["a"])


def check(world: World) -> Iterator[Callable[[], object]]:
    for _ in range(3):
        world.park().ready = True
    yield lambda: world.purgatory.check_and_complete("a")


def check_in_vain(world: World) -> Iterator[Callable[[], object]]:
    world.park()
    world.park()
    yield lambda: world.purgatory.check_and_complete("a")


def check_with_a_lock(world: World) -> Iterator[Callable[[], object]]:
    world.park(lock=world.lock()).ready = True
    yield lambda: world.purgatory.check_and_complete("a")


def check_where_the_lock_is_taken(world: World) -> Iterator[Callable[[], object]]:
    lock = world.lock()
    world.park(lock=lock).ready = True
    with lock:
        yield lambda: world.purgatory.check_and_complete("a")


def check_what_raises(world: World) -> Iterator[Callable[[], object]]:
    operation = world.park()
    operation.ready = operation.raises = True
    yield lambda: world.purgatory.check_and_complete("a")


def check_a_chain(world: World) -> Iterator[Callable[[], object]]:
    """Deeper than callbacks run inside each other."""
    links = [world.new() for _ in range(18)]
    for number, link in enumerate(links):
        world.purgatory.try_complete_else_watch(link, [number, "a"])
        link.ready = True
        link.then = lambda after=number + 1: world.purgatory.check_and_complete(after)
    yield lambda: world.purgatory.check_and_complete(0)


def expire(world: World) -> Iterator[Callable[[], object]]:
    world.park(SHORT_MS), world.park(SHORT_MS, world.lock())
    world.clock.advance(SHORT_MS)
    yield lambda: world.timer.advance_clock(0)


def expire_one(world: World) -> Iterator[Callable[[], object]]:
    world.park(SHORT_MS)
    world.clock.advance(SHORT_MS)
    yield lambda: world.timer.advance_clock(0)


def retry(world: World) -> Iterator[Callable[[], object]]:
    lock = world.lock()
    operation = world.park(lock=lock)
    with lock:
        operation.ready = True
        world.purgatory.check_and_complete("a")
    world.clock.advance(1)
    yield lambda: world.timer.advance_clock(0)


def advance(world: World) -> Iterator[Callable[[], object]]:
    for number in (1, 5, 5, 9):
        world.park_for(number).ready = True
    yield lambda: world.purgatory.advance("n", 5)


def forget(world: World) -> Iterator[Callable[[], object]]:
    world.park_for(3)
    world.purgatory.advance("n", 4)
    yield lambda: world.purgatory.forget("n")


def complete_for_key(world: World) -> Iterator[Callable[[], object]]:
    world.park(), world.park()
    yield lambda: world.purgatory.complete_for_key("a")


def fail_for_key(world: World) -> Iterator[Callable[[], object]]:
    world.park(), world.park()
    yield lambda: world.purgatory.fail_for_key("a", OSError("gone"))


def cancel_for_key(world: World) -> Iterator[Callable[[], object]]:
    world.park(), world.park_for(4)
    yield lambda: world.purgatory.cancel_for_key("b")


def force(world: World) -> Iterator[Callable[[], object]]:
    yield world.park().force_complete


def cancel(world: World) -> Iterator[Callable[[], object]]:
    yield world.park().cancel


def maybe_try(world: World) -> Iterator[Callable[[], object]]:
    operation = world.park()
    operation.ready = True
    yield operation.maybe_try_complete


def safe_try(world: World) -> Iterator[Callable[[], object]]:
    operation = world.park()
    yield lambda: operation.safe_try_complete_or_else(lambda: setattr(operation, "ready", True))


def wait(world: World) -> Iterator[Callable[[], object]]:
    operation = world.park()
    yield lambda: operation.wait(0)
    assert operation._op_listeners is not None
    assert len(operation._op_listeners) == 1, "an interrupted wait leaves its listener"


def listen(world: World) -> Iterator[Callable[[], object]]:
    operation = world.park()
    yield lambda: operation.call_when_completed(operation.tell)


def wait_for_a_value(world: World) -> Iterator[Callable[[], object]]:
    world.purgatory.advance("n", 7)
    yield lambda: world.purgatory.wait_for_threshold("n", 7, 0)


def wait_for_a_condition(world: World) -> Iterator[Callable[[], object]]:
    yield lambda: world.purgatory.wait(["a"], lambda: True, 0)


def future(world: World) -> Iterator[Callable[[], object]]:
    yield lambda: world.purgatory.future(world.new(), ["a"])


def cancel_a_future(world: World) -> Iterator[Callable[[], object]]:
    made = world.purgatory.future(world.new(), ["a"])
    yield made.cancel


def read_sizes(world: World) -> Iterator[Callable[[], object]]:
    world.park()
    purgatory = world.purgatory
    yield lambda: (purgatory.num_delayed, purgatory.watched, purgatory.watched_keys)
    yield lambda: (purgatory.oldest_pending_ns, purgatory.counters, purgatory.value("n"))


def refuse(world: World) -> Iterator[Callable[[], object]]:
    world.__init__(max_pending=1)  # type: ignore[misc]
    world.park()

    def submit() -> None:
        with suppress(PurgatoryFullError):
            world.park()

    yield submit


CALLS: list[Call] = [
    *(submit, submit_what_completes, submit_with_a_lock, submit_where_the_lock_is_taken),
    *(check, check_in_vain, check_with_a_lock, check_where_the_lock_is_taken),
    *(
        check_what_raises,
        expire,
        retry,
        advance,
        forget,
        complete_for_key,
        fail_for_key,
        cancel_for_key,
    ),
    *(
        force,
        cancel,
        maybe_try,
        safe_try,
        wait,
        listen,
        wait_for_a_value,
        wait_for_a_condition,
        future,
    ),
    *(cancel_a_future, read_sizes, refuse),
]


def scenario_of(
    call: Call, then: Callable[[World], None], a_listener_may_fail: bool = False
) -> Callable[[], Scenario]:
    def scenario() -> Scenario:
        world = World()
        world.a_listener_may_fail = a_listener_may_fail
        yield from call(world)
        then(world)
        world.assert_over()

    return scenario


def in_python(*calls: Call) -> list[Any]:
    """Return these as parameters: no instruction of ours is run in Python by some of them, over the
    native core."""
    native = (check_in_vain, listen, expire_one)
    return [
        pytest.param(call, marks=pytest.mark.pure) if call in native else call for call in calls
    ]


IN_PYTHON = in_python(*CALLS)


@pytest.mark.parametrize("call", IN_PYTHON)
def test_an_interrupt_leaves_nothing_stuck_or_lost(call: Call) -> None:
    """At a sample of all places; life goes on in another way with each call."""
    number = CALLS.index(call)
    report = interrupt_everywhere(
        scenario_of(call, THEN[number % 3]), first=1 + number % 4, step=4, where=CORE
    )
    assert report.interrupts > 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("then", THEN)
@pytest.mark.parametrize("call", IN_PYTHON)
def test_an_interrupt_anywhere_leaves_nothing_stuck_or_lost(
    call: Call, then: Callable[[World], None]
) -> None:
    report = interrupt_everywhere(scenario_of(call, then), where=CORE)
    assert report.interrupts > 10


@pytest.mark.parametrize("error", [Interrupt, SignalError, RecursionError])
@pytest.mark.parametrize("call", in_python(expire_one, retry))
def test_timer_alone_completes_an_interrupted_expiry(
    call: Call, error: type[BaseException]
) -> None:
    """Even where it is broken off before its first step, and no other call follows."""
    scenario = scenario_of(call, time_passes, a_listener_may_fail=error is not Interrupt)
    interrupt_everywhere(scenario, error, where=THE_OPERATION)


@pytest.mark.parametrize("error", [SignalError, RecursionError])
@pytest.mark.parametrize("call", IN_PYTHON)
def test_error_that_callbacks_may_raise_does_no_harm(call: Call, error: type[Exception]) -> None:
    """At a sample of all places: such an error may be taken for one of a callback, and logged."""
    number = CALLS.index(call)
    scenario = scenario_of(call, THEN[number % 3], a_listener_may_fail=True)
    interrupt_everywhere(scenario, error, first=1 + number % 10, step=10, where=CORE)


@pytest.mark.parametrize("policy", ["expire", "fail", "leave"])
def test_a_close_that_is_interrupted_is_finished_by_the_next(policy: Any) -> None:
    close_interrupted(policy, first=1 + len(policy), step=19)


@pytest.mark.exhaustive
@pytest.mark.parametrize("policy", ["expire", "fail", "leave"])
def test_a_close_that_is_interrupted_anywhere_is_finished_by_the_next(policy: Any) -> None:
    close_interrupted(policy, first=1, step=1)


def close_interrupted(policy: Any, first: int, step: int) -> None:
    def scenario() -> Scenario:
        world = World()
        world.park(), world.park(lock=world.lock()), world.park_for(3)
        yield lambda: world.purgatory.close(policy)
        world.purgatory.close(policy)
        purgatory = world.purgatory
        purgatory._check()
        assert (purgatory.watched, purgatory.num_delayed) == (0, 0)
        assert not purgatory._state.lock._is_owned()
        assert purgatory._closing is None or not purgatory._closing._closers
        for one in world.made:
            assert one.told >= 1
            assert (one.outcome is Outcome.PENDING) == (policy == "leave" and not one.calls)
        world.pass_time(10 * LONG_MS)
        assert world.timer.size == 0
        with pytest.raises(PurgatoryClosedError):
            world.park()

    interrupt_everywhere(scenario, first=first, step=step, where=CORE)


@pytest.mark.parametrize("call", [check_what_raises, expire, cancel, fail_for_key, refuse])
def test_an_interrupt_makes_no_move_that_is_not_in_the_table(call: Call) -> None:
    with recorded_moves() as moves:
        number = CALLS.index(call)
        interrupt_everywhere(scenario_of(call, an_event), first=1 + number % 5, step=5, where=CORE)
    assert moves <= IN_THE_TABLE


def test_an_interrupt_in_a_chain_of_completions_is_finished() -> None:
    """Deep in it, callbacks are put off until its end."""
    interrupt_everywhere(scenario_of(check_a_chain, closing), first=7, step=97, where=CORE)
