"""Two or three concurrent calls on one operation in some state: all pairs, and any three.

Each call lists the outcomes that it may lead to. The operation's outcome must be one of these, and
may be PENDING only if none of the calls was sure to complete it. ``World`` checks the rest:
callbacks run once, one call wins, lists and timer are empty.

Loaded by ``fresh_core``, as the programs are.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations_with_replacement

from purgatory import Outcome
from purgatory.core.backend import NATIVE
from purgatory.core.closing import ClosePolicy
from tests.proofs.core.scheduler import fail
from tests.unit.core.schedule_world import (
    CANCELLED,
    COMPLETED,
    EXPIRED,
    FAILED,
    LONG_MS,
    PENDING,
    PROGRAMS,
    SHORT_MS,
    Program,
    Waiting,
    World,
    called,
)

NUMBER = 3
"""The threshold of operations that wait for one."""


@dataclass
class Scene:
    """An operation in some state, a lock that a stranger may hold, and the notified listeners."""

    world: World
    operation: Waiting
    keys: tuple[str, ...]
    thresholds: dict[str, int] | None
    users_lock: threading.Lock
    told: list[Outcome] = field(default_factory=list)
    listeners: int = 0


@dataclass(frozen=True)
class Call:
    """The call of one thread.

    Args:
        act: what it does.
        outcomes: what it may make of the operation.
        needs_it_watched: whether it finds the operation on the lists or the timer alone.
        is_users: whether it is the user's own, which runs callbacks whatever the purgatory does.
        value: what it says that the value of "a" is.
    """

    act: Callable[[Scene, str], object]
    outcomes: tuple[Outcome, ...] = ()
    needs_it_watched: bool = False
    is_users: bool = False
    value: int | None = None


@dataclass(frozen=True)
class State:
    """The state of the operation as the calls begin."""

    keys: tuple[str, ...] = ("a",)
    thresholds: bool = False
    has_lock: bool = False
    is_new: bool = False


STATES = {
    "on one key": State(),
    "on two keys": State(("a", "b")),
    "with a lock": State(has_lock=True),
    "with a threshold": State((), thresholds=True),
    "with a threshold and a key": State(("b",), thresholds=True, has_lock=True),
    "new": State(("a", "b"), is_new=True),
    "new with a lock": State(has_lock=True, is_new=True),
    "new with a threshold": State((), thresholds=True, is_new=True),
}

OF_THREE_THREADS = [name for name, program in PROGRAMS.items() if len(program().threads) == 3]

# The calls. ``key`` is one of the operation's: threads take them in turn.


def _watch(scene: Scene, key: str) -> None:
    scene.world.watch_if_open(scene.operation, *scene.keys, thresholds=scene.thresholds)


def _event(scene: Scene, key: str) -> None:
    scene.world.event(scene.operation, key)


def _check(scene: Scene, key: str) -> None:
    scene.world.check(scene.operation, key)


def _ask(scene: Scene, key: str) -> None:
    scene.operation.ready = True
    scene.world.won(scene.operation, scene.operation.maybe_try_complete())


def _advance(value: int) -> Callable[[Scene, str], None]:
    return lambda scene, key: scene.world.advance(scene.operation, "a", value)


def _close(policy: ClosePolicy) -> Callable[[Scene, str], None]:
    return lambda scene, key: scene.world.close(policy)


def _listen(scene: Scene, key: str) -> None:
    scene.listeners += 1

    def hear() -> None:
        called()
        scene.told.append(scene.operation.outcome)

    scene.operation.call_when_completed(hear)


def _come(scene: Scene, key: str) -> None:
    operation = scene.world.new()
    operation.may_be_early = scene.operation.may_be_early
    scene.world.watch_if_open(operation, key)


def _look(scene: Scene, key: str) -> None:
    purgatory, timer = scene.world.purgatory, scene.world.timer
    sizes = (purgatory.num_delayed, timer.size, purgatory.watched, purgatory.watched_keys)
    most = len(scene.world.operations)
    # An operation with a retry is on the timer twice; on the lists once for each key.
    if not all(0 <= size <= 2 * most for size in sizes):
        fail(f"sizes that can't be: {sizes}")
    counted = purgatory.counters.outcomes
    if sum(counted.values()) - counted["rejected"] > most or purgatory.oldest_pending_ns < 0:
        fail("counters that can't be")
    timer.next_expiration_ms()


def _fail_all(scene: Scene, key: str) -> None:
    scene.world.purgatory.fail_for_key(key, LookupError("on purpose"))


CALLS = {
    "watch": Call(_watch),
    "event": Call(_event, (COMPLETED,)),
    "check": Call(_check),
    "maybe_try_complete": Call(_ask, (COMPLETED,)),
    "force_complete": Call(
        lambda scene, key: scene.world.force(scene.operation), (COMPLETED,), is_users=True
    ),
    "cancel": Call(lambda scene, key: scene.world.cancel(scene.operation), (CANCELLED,)),
    "cancel_for_key": Call(
        lambda scene, key: scene.world.cancel_for_key(key), (CANCELLED,), needs_it_watched=True
    ),
    "complete_for_key": Call(
        lambda scene, key: scene.world.purgatory.complete_for_key(key),
        (COMPLETED,),
        needs_it_watched=True,
    ),
    "fail_for_key": Call(_fail_all, (FAILED,), needs_it_watched=True),
    "expiry": Call(lambda scene, key: scene.world.expire(), (EXPIRED,), needs_it_watched=True),
    "close by expiry": Call(_close("expire"), (EXPIRED,), needs_it_watched=True),
    "close by failure": Call(_close("fail"), (FAILED,), needs_it_watched=True),
    "close by leaving": Call(_close("leave")),
    "advance": Call(_advance(NUMBER), (COMPLETED,), value=NUMBER),
    "lower advance": Call(_advance(NUMBER - 1), value=NUMBER - 1),
    "forget": Call(lambda scene, key: scene.world.purgatory.forget("a")),
    "stranger": Call(lambda scene, key: scene.world.hold(scene.users_lock)),
    "retries": Call(lambda scene, key: scene.world.let_retries_come()),
    "listen": Call(_listen),
    "come": Call(_come),
    "look": Call(_look),
}
OF_THRESHOLDS = ("advance", "lower advance", "forget")
OF_LOCKS = ("stranger", "retries")
UNSURE = {"close by leaving", "close by expiry", "close by failure", "forget"}
"""Calls that may keep others from completing it: it is refused, abandoned, or its value is
forgotten before it was checked."""


def calls_in(state: State) -> list[str]:
    """Return the calls that may meet in this state, but for the one that submits."""
    unfit = {"watch"}
    if not state.thresholds:
        unfit.update(OF_THRESHOLDS)
    if not state.has_lock:
        unfit.update(OF_LOCKS)
    return [name for name in CALLS if name not in unfit]


def pairs() -> Iterator[str]:
    """Yield the names of all pairs of calls, in each state in which they may meet."""
    for name, state in STATES.items():
        calls = calls_in(state)
        met = (
            (("watch", other) for other in calls)
            if state.is_new
            else combinations_with_replacement(calls, 2)
        )
        for first, second in met:
            yield f"{name}: {first}, {second}"


def three_at_random(rng: random.Random) -> str:
    """Return the name of a program of three threads: any three calls, or now and then a written
    one."""
    if rng.random() < 0.1:
        return rng.choice(OF_THREE_THREADS)
    name, state = rng.choice(list(STATES.items()))
    calls = rng.choices(calls_in(state), k=3)
    if state.is_new:
        calls[0] = "watch"
    return f"{name}: {', '.join(calls)}"


def is_native() -> bool:
    """Whether the core under these programs is the native one."""
    return NATIVE


def is_program(name: str) -> bool:
    """Whether ``build`` knows it."""
    state, _, calls = name.partition(": ")
    known = state in STATES and all(call in CALLS for call in calls.split(", "))
    return known or name in PROGRAMS


def build(name: str) -> Callable[[], Program]:
    """Return a factory of the program of this name: a written one, or a state and its calls."""
    return PROGRAMS.get(name) or partial(_scene_program, name)


def _scene_program(name: str) -> Program:
    state_name, _, rest = name.partition(": ")
    names = rest.split(", ")
    state, calls = STATES[state_name], [CALLS[call] for call in names]
    scene = _scene(state, short="expiry" in names)
    keys = (*scene.keys, *(scene.thresholds or ()))
    scene.operation.may_overlap = any(call.is_users for call in calls)
    scene.operation.is_users = scene.operation.may_overlap or state.is_new
    # Completed before it was submitted, or after it was abandoned, it is in no counters.
    scene.operation.may_be_early = state.is_new or "close by leaving" in names
    threads = {
        f"{call_name} ({number})": partial(CALLS[call_name].act, scene, keys[number % len(keys)])
        for number, call_name in enumerate(names)
    }
    values = [call.value for call in calls if call.value is not None and "forget" not in names]
    allowed = _allowed(state, names)
    check = partial(_assert_end, scene, allowed, max(values, default=None))
    return Program(scene.world, threads, check)


def _scene(state: State, short: bool) -> Scene:
    world, lock = World(), threading.Lock()
    operation = world.new(
        delay_ms=SHORT_MS if short else LONG_MS, lock=lock if state.has_lock else None
    )
    thresholds = {"a": NUMBER} if state.thresholds else None
    if state.thresholds:
        operation.condition = lambda: operation.ready or (world.purgatory.value("a") or 0) >= NUMBER
    scene = Scene(world, operation, state.keys, thresholds, lock)
    if not state.is_new:
        world.watch(operation, *state.keys, thresholds=thresholds)
    return scene


def _allowed(state: State, names: list[str]) -> set[Outcome]:
    calls = [CALLS[name] for name in names]
    allowed = {outcome for call in calls for outcome in call.outcomes}
    sure = any(call.outcomes and not (call.needs_it_watched and state.is_new) for call in calls)
    if not sure or not UNSURE.isdisjoint(names):
        allowed.add(PENDING)
    return allowed


def _assert_end(scene: Scene, allowed: set[Outcome], value: int | None) -> None:
    world, operation = scene.world, scene.operation
    told = len(scene.told)  # before a thread waits, whose listener notifies all
    world.assert_outcome(operation, *allowed)
    abandon = world.purgatory.is_closed and operation in world.operations
    over = abandon or operation.outcome is not PENDING
    assert told == (scene.listeners if over else 0), f"{told} of those who listen were told"
    if value is not None:
        assert world.purgatory.value("a") == value, "a value never falls"
    for other in world.operations:
        if other is not operation:
            world.assert_outcome(other, PENDING, *allowed)
