"""All public calls, the states in which they may meet, and what holds once all have ended.

One table serves all drivers: threads that are preempted, interrupts, allocations that fail, forks,
and the comparison of the native core with the one in pure Python. A new method or attribute that
is missing here fails ``test_calls``; a new kind of state is a dimension.

Loaded by ``fresh_core`` over a core whose threads are scheduled, and as an ordinary module.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any, NamedTuple

from purgatory import DelayedOperation, Outcome, PurgatoryClosedError, PurgatoryFullError
from purgatory.core.closing import ClosePolicy
from purgatory.core.trampoline import MAX_DEPTH, this_thread
from tests.proofs.core.scheduler import fail
from tests.unit.core.schedule_world import (
    CALLBACKS,
    CANCELLED,
    COMPLETED,
    EXPIRED,
    FAILED,
    LONG_MS,
    PENDING,
    SHORT_MS,
    CalledKey,
    Waiting,
    World,
    called,
)

NUMBER = 3
"""The threshold of an operation that has one."""

GIVE_UP_S = 0.004
"""The time that a close waits for a user's lock that nobody gives back meanwhile."""

RETRIES_MS = 100
"""In which time an operation whose lock was taken has been tried again."""


class State(NamedTuple):
    """The state of the operation, and of its purgatory, as the calls begin."""

    keys: int = 1
    threshold: str = "no"
    """Reached: its value was reported, and the condition did not hold for all that."""
    lock: str = "none"
    limit: str = "none"
    """``max_pending``: all places are taken, or all but one."""
    observer: str = "none"
    future: bool = False
    place: str = "watched"
    depth: str = "0"
    """Deep: the calls come from below more callbacks than run inside each other."""

    def __str__(self) -> str:
        different = {
            name: value
            for name, value in self._asdict().items()
            if value != State._field_defaults[name]
        }
        return " ".join(f"{name}={value}" for name, value in different.items()) or "plain"


DIMENSIONS: dict[str, tuple[Any, ...]] = {
    "keys": (1, 2),
    "threshold": ("no", "reached", "not"),
    "lock": ("none", "free", "held"),
    "limit": ("none", "full", "last place"),
    "observer": ("none", "set", "raises"),
    "future": (False, True),
    "place": ("new", "watched", "completed", "left"),
    "depth": ("0", "deep"),
}


def pairwise_cover() -> list[State]:
    """Return states in which each two levels of two dimensions meet; the same each time."""
    bits: dict[object, int] = {}
    every: list[tuple[State, int]] = []
    for levels in product(*DIMENSIONS.values()):
        pairs = combinations(enumerate(levels), 2)
        every.append((State(*levels), sum(bits.setdefault(one, 1 << len(bits)) for one in pairs)))
    missing = (1 << len(bits)) - 1
    chosen = []
    while missing:
        best, meeting = max(every, key=lambda one: (missing & one[1]).bit_count())
        missing &= ~meeting
        chosen.append(best)
    return chosen


COVER = {str(state): state for state in pairwise_cover()}

NAMED = {
    "on one key": State(),
    "on two keys": State(keys=2),
    "with a lock": State(lock="free"),
    "with a threshold": State(keys=0, threshold="not"),
    "with a threshold and a key": State(threshold="not", lock="free"),
    "new": State(keys=2, place="new"),
    "new with a lock": State(lock="free", place="new"),
    "new with a threshold": State(keys=0, threshold="not", place="new"),
}
"""States that are tried with more preemptions."""

STATES = NAMED | COVER


@dataclass
class Scene:
    """An operation in some state, and all that is told of it."""

    state: State
    names: tuple[str, ...] = ()
    """The calls that will be made."""
    world: World = field(init=False)
    operation: Waiting = field(init=False)
    users_lock: Any = field(init=False)
    told: list[Outcome] = field(default_factory=list)
    listeners: int = 0
    futures: list[Future[Outcome]] = field(default_factory=list)
    observed: Counter[int] = field(default_factory=Counter)
    kept: list[DelayedOperation] = field(default_factory=list)
    full: list[Waiting] = field(default_factory=list)
    """The operations for which there was no place."""
    interrupts: int = 0
    """The number of interrupted calls."""
    may_be_mistaken: bool = False
    """Whether that was an exception like those of callbacks, which are logged, and not raised."""
    is_nested: bool = False
    """Whether a call was made in the middle of another, on the same thread."""
    waits: int = 0
    """The number of calls that waited by an operation of their own."""
    _turns: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        state, names = self.state, self.names
        limit = None
        if state.limit != "none":
            limit = 1 + (state.limit == "last place" and state.place == "watched")
        self.world = world = World(limit, self._observer())
        self.users_lock = threading.Lock()
        delay_ms = SHORT_MS if "expiry" in names else LONG_MS
        lock = None if state.lock == "none" else self.users_lock
        self.operation = operation = world.new(delay_ms=delay_ms, lock=lock)
        calls = [CALLS[name] for name in names]
        operation.may_overlap = any(call.is_users for call in calls)
        operation.is_users = operation.may_overlap or state.place == "new"
        # Completed before it was submitted, or after it was abandoned, it is in no counters.
        operation.may_be_early = state.place != "watched" or "close by leaving" in names
        if state.threshold == "not":
            operation.condition = lambda: (
                operation.ready or (world.purgatory.value("n") or 0) >= NUMBER
            )
        else:
            operation.condition = lambda: operation.ready
        if state.threshold == "reached":
            world.purgatory.advance("n", NUMBER)
        if state.place != "new":
            self.submit()
            if state.threshold == "reached":
                world.purgatory.advance("n", NUMBER)
        elif state.limit == "full":
            world.new("z")
        if state.place == "completed":
            operation.wins += operation.force_complete()
        elif state.place == "left":
            world.purgatory.close("leave", 0)
        if state.lock == "held":
            self.users_lock.acquire()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys on which the operation waits for any event."""
        return ("a", "b")[: self.state.keys]

    @property
    def key(self) -> str:
        """A key of the operation: calls take them in turn."""
        keys = self.keys if self.state.threshold == "no" else (*self.keys, "n")
        return keys[self._turns.get(threading.get_ident(), 0) % len(keys)]

    def _observer(self) -> Callable[[DelayedOperation, str, int], object] | None:
        if self.state.observer == "none":
            return None

        def observe(operation: DelayedOperation, counted_as: str, wait_ns: int) -> None:
            called()
            self.kept.append(operation)
            self.observed[id(operation)] += 1
            if self.state.observer == "raises":
                raise LookupError("on purpose")

        return observe

    # The calls' parts.

    def submit(self) -> None:
        """Submit the operation, by a future if the state says so."""
        thresholds = {"n": NUMBER} if self.state.threshold != "no" else None
        if not self.state.future:
            self._submit(
                lambda: self.world.watch(self.operation, *self.keys, thresholds=thresholds),
                self.operation,
            )
            return

        def submit() -> None:
            keys: tuple[Hashable, ...] = tuple(map(CalledKey, self.keys))
            self.futures.append(self.world.purgatory.future(self.operation, keys, thresholds))

        self._submit(submit, self.operation)

    def come(self) -> None:
        """Submit another operation."""
        operation = self.world.new()
        operation.may_be_early = self.operation.may_be_early
        self._submit(lambda: self.world.watch(operation, self.key), operation)

    def _submit(self, submit: Callable[[], object], operation: Waiting) -> None:
        world = self.world
        try:
            submit()
        except (PurgatoryClosedError, PurgatoryFullError) as error:
            world.operations.remove(operation)
            world.refused.append(operation)
            if isinstance(error, PurgatoryFullError):
                self.full.append(operation)

    def listen(self) -> None:
        """Listen to the operation's end."""
        self.operation.call_when_completed(self.hear)
        self.listeners += 1  # otherwise it was interrupted, which its caller knows

    def hear(self) -> None:
        """Note that a listener was told."""
        called()
        self.told.append(self.operation.outcome)

    def wait(self, wait: Callable[[], object]) -> None:
        """Make a call that waits for no time at all, and may raise what such calls raise."""
        self.waits += 1
        with suppress(TimeoutError, PurgatoryClosedError, PurgatoryFullError):
            wait()

    def close(self, policy: ClosePolicy) -> None:
        """Close the purgatory."""
        if self.state.lock == "held" or self.is_nested:
            self.world.purgatory.close(policy, GIVE_UP_S)
        else:
            self.world.close(policy)

    def look(self) -> None:
        """Read all sizes, which must be possible ones."""
        purgatory, timer = self.world.purgatory, self.world.timer
        sizes = (purgatory.num_delayed, timer.size, purgatory.watched, purgatory.watched_keys)
        counted = purgatory.counters.outcomes
        most = len(self.world.operations) + len(self.world.refused) + self.waits
        # An operation with a retry is on the timer twice; on the lists once for each key.
        if not all(0 <= size <= 3 * most for size in sizes):
            fail(f"sizes that can't be: {sizes}")
        if sum(counted.values()) - counted["rejected"] > most or purgatory.oldest_pending_ns < 0:
            fail("counters that can't be")
        timer.next_expiration_ms()

    # The end.

    def act(self, name: str, number: int = 0) -> None:
        """Make a call of the table, the ``number``-th, from as deep as the state says."""
        self._turns[threading.get_ident()] = number
        if self.state.depth == "0":
            CALLS[name].act(self)
        else:
            with deep():
                CALLS[name].act(self)

    def finish(self) -> None:
        """Give back the user's lock, and let all retries come."""
        if self.state.lock == "held" and self.users_lock.locked():
            self.users_lock.release()
        self.world.pass_time(RETRIES_MS)
        if self.interrupts:
            # The next call finishes what is left, the next close what a close left.
            self.world.purgatory.check_and_complete("z")
            if self.world.purgatory.is_closed:
                self.world.purgatory.close("fail", GIVE_UP_S)

    def assert_over(self) -> None:
        """Assert that everything has its one end, and nothing is left."""
        self._assert_told()
        self._assert_outcome(self.operation, self._allowed())
        for other in self.world.operations:
            if other is not self.operation:
                self._assert_outcome(other, set(Outcome))
        self._let_expire()
        self._assert_refused()
        self._assert_futures()
        self._assert_counted()
        self._assert_free()

    def _allowed(self) -> set[Outcome]:
        """Return the outcomes that the calls may have led to, before the long timeouts pass."""
        state, names = self.state, self.names
        calls = [CALLS[name] for name in names]
        if state.place == "completed":
            return {COMPLETED}
        allowed = {outcome for call in calls for outcome in call.may_become}
        sure = any(call.may_become and self._is_sure(call) for call in calls)
        if not sure or state.place == "left" or not UNSURE.isdisjoint(names) or self.interrupts:
            allowed.add(PENDING)
        if self.operation in self.world.refused or self.interrupts:
            allowed.add(CANCELLED)
        if self.interrupts:
            allowed.add(FAILED)
        if state.place != "new" or "watch" in names:
            # A close that gave up on the user's lock; and a time that passes for all.
            if state.lock == "held" and any(name.startswith("close") for name in names):
                allowed.add(FAILED)
            if state.threshold == "not" and "advance" in names:
                allowed.add(COMPLETED)
        return allowed

    def _is_sure(self, call: Call) -> bool:
        if call.needs == "threshold":
            return self.state.threshold == "not"
        return not (call.needs == "watched" and self.state.place == "new")

    def _assert_told(self) -> None:
        told = len(self.told)  # before anybody waits, which sees to it that all are told
        operation, purgatory = self.operation, self.world.purgatory
        abandoned = purgatory.is_closed and operation in self.world.operations
        is_over = abandoned or operation.outcome is not PENDING
        if self.may_be_mistaken:
            return
        if not self.interrupts:
            assert told == (self.listeners if is_over else 0), f"{told} listeners were told"
        else:
            assert told >= (self.listeners if is_over else 0), f"{told} listeners were told"

    def _assert_outcome(self, operation: Waiting, allowed: set[Outcome]) -> None:
        outcome, finished = operation.outcome, operation.finished
        assert outcome in allowed, f"the outcome is {outcome.name}: {operation.calls}"
        if self.interrupts:
            assert len(finished) == len(set(finished)), f"{outcome.name}, but called {finished}"
        else:
            assert finished == CALLBACKS[outcome], f"{outcome.name}, but called {finished}"
        assert operation.wins <= 1, f"{operation.wins} calls report to have completed it"
        if outcome is not PENDING:
            assert operation.wait(0) is outcome, "waiters are not notified"

    def _let_expire(self) -> None:
        world = self.world
        pending = [one for one in world.operations if one.outcome is PENDING]
        if not world.purgatory.is_closed:
            world.pass_time(LONG_MS)
            for one in pending:
                if one._op_state is not None:
                    # Interrupted work that was left may end it otherwise.
                    left = set(Outcome) - {PENDING} if self.interrupts else {EXPIRED}
                    self._assert_outcome(one, left)

    def _assert_refused(self) -> None:
        for one in self.full:
            assert one.outcome is CANCELLED, f"refused, but {one.outcome.name}"
            assert not one.finished, f"refused, but called {one.finished}"

    def _assert_futures(self) -> None:
        for future in self.futures:
            outcome = self.operation.outcome
            if outcome is PENDING and not self.world.purgatory.is_closed:
                continue
            assert future.done(), f"the operation is {outcome.name}, its future {future._state}"
            if future.cancelled():
                continue
            error = future.exception(0)
            if error is None:
                # It was abandoned first, and completed by its user after that.
                assert future.result(0) is outcome
            else:
                assert isinstance(error, PurgatoryClosedError), error

    def _assert_counted(self) -> None:
        world = self.world
        outcomes = world.purgatory.counters.outcomes
        counted = sum(outcomes.values()) - outcomes["rejected"]
        completed = [one for one in world.operations if one.is_completed]
        early = sum(one.may_be_early for one in completed)
        assert (
            len(completed) - early - self.interrupts
            <= counted
            <= len(completed) + self.waits + len(world.refused) * bool(self.interrupts)
        ), f"{counted} outcomes were counted for {len(completed)} operations"
        rejected, refused = outcomes["rejected"], len(world.refused)
        may_be_left = sum(one.may_be_early for one in self.full) if world.purgatory.is_closed else 0
        assert (
            refused - may_be_left - self.interrupts
            <= rejected
            <= refused + self.waits + self.interrupts
        ), f"{rejected} rejections were counted for {refused} operations"
        for one in (*world.operations, *world.refused):
            assert self.observed[id(one)] <= 1, "an observer was told twice"
        is_observed = self.state.observer != "none" and not OF_OBSERVERS & {*self.names}
        if is_observed and not self.interrupts:
            told = sum(self.observed.values())
            assert told >= counted, f"{told} of {counted} were observed"

    def _assert_free(self) -> None:
        world = self.world
        purgatory = world.purgatory
        if self.operation.outcome is not PENDING or purgatory.is_closed:
            world.assert_empty()
        else:
            purgatory._check()
        state = purgatory._state
        assert not state.lock._is_owned(), "the state's lock is taken"
        assert not state.interrupted, "interrupted work is left"
        assert not state.admitted, f"{len(state.admitted)} places are taken"
        assert not self.users_lock.locked(), "the user's lock is taken"
        for one in (*world.operations, *world.refused):
            assert not one._op_has_owner(), "an operation has an owner"


@contextmanager
def deep() -> Iterator[None]:
    """Be below as many callbacks as run inside each other: what completes here is deferred."""
    trampoline = this_thread.trampoline
    trampoline.depth += MAX_DEPTH
    try:
        yield
    finally:
        trampoline.depth -= MAX_DEPTH
        if not trampoline.depth:
            try:
                trampoline.run_deferred()
            except BaseException:
                trampoline.run_deferred()  # as the outermost callback's caller does
                raise


@dataclass(frozen=True)
class Call:
    """A public call.

    Args:
        act: what it does.
        may_become: what it may make of the operation.
        needs: what it has to find: "watched", the operation on the lists or the timer; "lock",
            "threshold" and "future" in the state.
        is_users: whether it completes the operation whatever the purgatory does.
        reads: whether it changes nothing.
        covers: the method or attribute; by default the call's name.
    """

    act: Callable[[Scene], object]
    may_become: tuple[Outcome, ...] = ()
    needs: str = ""
    is_users: bool = False
    reads: bool = False
    covers: str = ""
    value: int | None = None


def _event(scene: Scene) -> None:
    scene.world.event(scene.operation, scene.key)


def _make_ready_and_try(scene: Scene) -> None:
    operation = scene.operation
    operation.ready = True
    scene.world.won(operation, operation.maybe_try_complete())


def _make_ready_between(scene: Scene) -> None:
    operation = scene.operation

    def make_ready() -> None:
        operation.ready = True

    scene.world.won(operation, operation.safe_try_complete_or_else(make_ready))


def _advance(value: int) -> Callable[[Scene], object]:
    return lambda scene: scene.world.purgatory.advance("n", value)


def _close(policy: ClosePolicy) -> Callable[[Scene], object]:
    return lambda scene: scene.close(policy)


def _fail_for_key(scene: Scene) -> None:
    scene.world.purgatory.fail_for_key(scene.key, LookupError("on purpose"))


def _run(scene: Scene) -> None:
    scene.operation.run()


def _cancel_futures(scene: Scene) -> None:
    for future in scene.futures:
        future.cancel()


def _wait_for_condition(scene: Scene) -> None:
    scene.wait(lambda: scene.world.purgatory.wait(["y"], lambda: True, 0))


def _wait_for_number(scene: Scene) -> None:
    scene.world.purgatory.advance("y", 1)
    scene.wait(lambda: scene.world.purgatory.wait_for_threshold("y", 1, 0))


def _another_future(scene: Scene) -> None:
    operation = scene.world.new()
    operation.may_be_early = scene.operation.may_be_early
    purgatory = scene.world.purgatory

    def submit() -> None:
        future = purgatory.future(operation, ["y"])
        if not future.cancel() and not purgatory.is_closed:
            fail(f"a future that can't be cancelled is {future}")

    scene._submit(submit, operation)


def _observe(observer: Callable[..., object] | None) -> Callable[[Scene], object]:
    return lambda scene: setattr(scene.world.purgatory, "on_completed", observer)


def _of_operation(name: str) -> Call:
    return Call(lambda scene: getattr(scene.operation, name), reads=True)


def _of_purgatory(name: str) -> Call:
    return Call(lambda scene: getattr(scene.world.purgatory, name), reads=True)


CALLS = {
    # Of an operation.
    "maybe_try_complete": Call(_make_ready_and_try, (COMPLETED,)),
    "safe_try_complete_or_else": Call(_make_ready_between, (COMPLETED,)),
    "force_complete": Call(
        lambda scene: scene.world.force(scene.operation), (COMPLETED,), is_users=True
    ),
    "cancel": Call(lambda scene: scene.world.cancel(scene.operation), (CANCELLED,)),
    "run": Call(_run, (EXPIRED,), needs="watched"),
    "listen": Call(Scene.listen, covers="call_when_completed"),
    "wait of an operation": Call(lambda scene: scene.operation.wait(0), covers="wait"),
    "delay_ms": Call(lambda scene: setattr(scene.operation, "delay_ms", LONG_MS)),
    "cancel a future": Call(_cancel_futures, (CANCELLED,), needs="future", covers="future"),
    **{name: _of_operation(name) for name in ("outcome", "is_completed", "error")},
    # Of a purgatory.
    "watch": Call(Scene.submit, covers="try_complete_else_watch"),
    "come": Call(Scene.come, covers="try_complete_else_watch"),
    "future": Call(_another_future),
    "event": Call(_event, (COMPLETED,), covers="check_and_complete"),
    "check": Call(
        lambda scene: scene.world.check(scene.operation, scene.key), covers="check_and_complete"
    ),
    "check_all": Call(lambda scene: scene.world.purgatory.check_all()),
    "advance": Call(_advance(NUMBER), (COMPLETED,), needs="threshold", value=NUMBER),
    "lower advance": Call(
        _advance(NUMBER - 1), needs="threshold", covers="advance", value=NUMBER - 1
    ),
    "forget": Call(lambda scene: scene.world.purgatory.forget("n"), needs="threshold"),
    "cancel_for_key": Call(
        lambda scene: scene.world.cancel_for_key(scene.key), (CANCELLED,), needs="watched"
    ),
    "complete_for_key": Call(
        lambda scene: scene.world.purgatory.complete_for_key(scene.key),
        (COMPLETED,),
        needs="watched",
    ),
    "fail_for_key": Call(_fail_for_key, (FAILED,), needs="watched"),
    "wait": Call(_wait_for_condition),
    "wait_for_threshold": Call(_wait_for_number),
    "close by expiry": Call(_close("expire"), (EXPIRED,), needs="watched", covers="close"),
    "close by failure": Call(_close("fail"), (FAILED,), needs="watched", covers="close"),
    "close by leaving": Call(_close("leave"), covers="close"),
    "on_completed": Call(_observe(lambda *told: called())),
    "no observer": Call(_observe(None), covers="on_completed"),
    "reaper": Call(lambda scene: setattr(scene.world.purgatory, "reaper", None)),
    "name": Call(lambda scene: setattr(scene.world.purgatory, "name", "another")),
    "broker_id": Call(lambda scene: setattr(scene.world.purgatory, "broker_id", 1)),
    "look": Call(Scene.look, reads=True, covers="num_delayed"),
    "keys": Call(lambda scene: scene.world.purgatory.keys(), reads=True),
    "value": Call(lambda scene: scene.world.purgatory.value("n"), reads=True),
    "pending_ends": Call(lambda scene: scene.world.purgatory.pending_ends(2), reads=True),
    "waiting_on": Call(lambda scene: scene.world.purgatory.waiting_on("a", 2), reads=True),
    "waiting_for_locks": Call(lambda scene: scene.world.purgatory.waiting_for_locks(), reads=True),
    "recent_faults": Call(lambda scene: scene.world.purgatory.recent_faults(), reads=True),
    **{
        name: _of_purgatory(name)
        for name in (
            *("watched", "watched_keys", "max_pending", "oldest_pending_ns", "is_closed"),
            *("owns_timer", "counters", "timer"),
        )
    },
    # Of the time, and of the user's lock.
    "expiry": Call(lambda scene: scene.world.expire(), (EXPIRED,), needs="watched", covers="run"),
    "stranger": Call(lambda scene: scene.world.hold(scene.users_lock), needs="lock", covers="wait"),
    "retries": Call(lambda scene: scene.world.let_retries_come(), needs="lock", covers="wait"),
}
"""All calls by name."""

DEFINED_BY_USERS = {"try_complete", "on_complete", "on_expiration", "on_failure"}
"""The callbacks: the library calls them, in each scene."""

UNSURE = {"close by leaving", "close by expiry", "close by failure", "forget", "wait"}
"""Calls that may keep others from completing the operation: it is refused, abandoned, or its value
is forgotten before it was checked."""

OF_OBSERVERS = {"on_completed", "no observer"}


def calls_in(state: State) -> list[str]:
    """Return the calls that may meet in this state, but for the one that submits."""
    unfit = {"watch"}
    has = {
        "threshold": state.threshold != "no",
        "lock": state.lock == "free",
        "future": state.future,
    }
    return [name for name, call in CALLS.items() if name not in unfit and has.get(call.needs, True)]


def pairs_in(name: str) -> Iterator[str]:
    """Yield the names of all pairs of calls that may meet in the state of this name."""
    state = STATES[name]
    calls = calls_in(state)
    firsts = ["watch"] if state.place == "new" else calls
    for number, first in enumerate(firsts):
        for second in calls if state.place == "new" else calls[number:]:
            if not (CALLS[first].reads and CALLS[second].reads):
                yield f"{name}: {first}, {second}"
