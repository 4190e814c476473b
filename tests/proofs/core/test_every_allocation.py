# mypy: disable-error-code="func-returns-value"
"""At each allocation under each public call, the collector runs a finalizer or a signal comes.

``gc.set_threshold(1)`` has the collector come at every other object that it keeps track of, within
native code too on Python 3.11; later Pythons put it off until Python code runs. The garbage that it
finds then is one object, whose finalizer uses the purgatory and the timer that the call is about.
Each call is made again and again: the finalizer acts at the first of these places, then at the
second, until the call ends before it. As native code that goes wrong there ends the process, each
kind of finalizer has a process of its own.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from purgatory import (
    AsyncPurgatory,
    DelayedOperation,
    DelayedOperationPurgatory,
    OperationReusedError,
    PurgatoryClosedError,
    PurgatoryFullError,
    WaitCancelledError,
    describe,
)
from purgatory.core.backend import NATIVE
from timer import InlineExecutor, ManualClock, SystemTimer, TimerClosedError, TimerTask
from timer.histogram import Histogram

ROOT = Path(__file__).parents[3]
NATIVELY = pytest.mark.skipif(not NATIVE, reason="the native parts are not in use")
REFUSALS = (OperationReusedError, PurgatoryClosedError, PurgatoryFullError, TimerClosedError)


class Key:
    """Is hashed and compared in Python: there the collector may come on any version."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        return hash([self.name][0])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and [self.name] == [other.name]


class Waiting(DelayedOperation):
    """Completes once it is ready."""

    def __init__(self, delay_ms: int = 60_000) -> None:
        super().__init__(delay_ms)
        self.ready = False
        self.calls: list[str] = []

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        self.calls.append("on_complete")

    def on_failure(self, error: BaseException) -> None:
        self.calls.append("on_failure")


class Work(TimerTask):
    """Does nothing."""

    def run(self) -> None:
        """Nothing is to be done."""


class World:
    """A purgatory and a timer with something of each kind on them."""

    def __init__(self) -> None:
        self.clock = ManualClock(15)
        self.is_left = self.began_anew = False
        self.purgatory = self.new_purgatory()
        assert isinstance(self.purgatory.timer, SystemTimer)
        self.timer = self.purgatory.timer
        self.operations: list[Waiting] = []
        self.purgatory.advance("w", 5)
        for delay_ms in (5, 5, 60_000):
            self.submit(Waiting(delay_ms), "k", Key("a"))
        self.submit(Waiting(), "b", 1, 2, Key("c"))
        self.submit(Waiting(), n=7)
        self.submit(Waiting(), n=2**62)
        self.first = self.operations[0]
        self.new = Waiting()
        self.work = Work(5)
        self.timer.add(self.work)
        self.tasks = [self.timer.call_later(delay_ms, int) for delay_ms in (5, 5, 500, 100_000)]
        self.histogram = Histogram((1, 2))

    def new_purgatory(self) -> DelayedOperationPurgatory:
        timer = self.new_timer()
        return DelayedOperationPurgatory("p", timer=timer, reaper_enabled=False, max_pending=20)

    def new_timer(self) -> SystemTimer:
        return SystemTimer("t", clock=self.clock, executor=InlineExecutor())

    def submit(self, operation: Waiting, *keys: Any, n: int | None = None) -> None:
        self.operations.append(operation)
        thresholds = None if n is None else {"n": n, Key("m"): n}
        self.purgatory.try_complete_else_watch(operation, keys, thresholds)

    def leave(self) -> Literal["leave"]:
        """Return how to close: pending operations may stay pending."""
        self.is_left = True
        return "leave"

    def pass_time(self) -> None:
        self.clock.advance(10)
        self.timer.advance_clock()

    def assert_sound(self) -> None:
        """Assert that nothing is lost, and in the end nothing is left."""
        purgatory, timer = self.purgatory, self.timer
        purgatory._check()  # which finishes interrupted work
        if not timer._closed:
            self.clock.advance(10)
            timer.advance_clock()
        timer._check()
        purgatory.close("expire")
        timer.close()
        purgatory._check()
        timer._check()
        assert (purgatory.watched, purgatory.watched_keys, purgatory.num_delayed) == (0, 0, 0)
        assert timer.size == 0
        for operation in [*self.operations, self.new]:
            if operation._op_state is not None:
                left = self.is_left and operation._op_was_abandoned()
                assert operation.is_completed or left, "it was lost"
                assert len(operation.calls) <= 1, operation.calls


class Loop:
    """Calls a given function at a given moment: asyncio's own has places of its own."""

    def __init__(self) -> None:
        self.asked: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[..., object], *args: object, context: Any = None) -> Any:
        self.asked.append(partial(callback, *args))

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay_s: float, callback: Callable[[], object], context: Any = None
    ) -> Any:
        itself: Any = self
        return asyncio.TimerHandle(delay_s, callback, (), itself)  # the clock stands still

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing is to be done."""

    def create_future(self) -> Any:
        itself: Any = self
        return asyncio.Future(loop=itself)

    def is_closed(self) -> bool:
        return False

    def get_debug(self) -> bool:
        return False

    def run_asked(self) -> None:
        while self.asked:
            self.asked.pop(0)()


@contextmanager
def running(loop: Any) -> Iterator[None]:
    asyncio._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(None)


class AsyncWorld(World):
    """The same on an event loop."""

    def new_purgatory(self) -> DelayedOperationPurgatory:
        self.loop = Loop()
        with running(self.loop):
            self.on_loop = AsyncPurgatory("p", max_pending=20, clock=self.clock)
        self.is_ready = False
        return self.on_loop.core

    def drive(
        self,
        coroutine: Coroutine[Any, Any, object],
        event: Callable[[], object] = lambda: None,
    ) -> None:
        """Run it until it waits; the event completes the waiting operation."""
        try:
            with running(self.loop), suppress(StopIteration, TimeoutError, WaitCancelledError):
                told = coroutine.send(None)
                event()
                self.loop.run_asked()
                assert told.done() or self.began_anew, "nobody told it"
                if told.done():
                    coroutine.send(None)
        except ValueError:
            pass  # of a call that fails all
        finally:
            coroutine.close()

    def make_ready(self) -> None:
        self.is_ready = self.new.ready = True
        self.on_loop.notify("k")


CALLS: dict[str, Callable[[World], object]] = {
    # Of a timer.
    "add": lambda world: world.timer.add(world.work),
    "add, to a new level": lambda world: world.timer.add(Work(10**9)),
    "call_later": lambda world: world.timer.call_later(0, int),
    "advance_clock": World.pass_time,
    "advance_clock, far": lambda world: (world.clock.advance(10**6), world.timer.advance_clock()),
    "snapshot": lambda world: world.timer.snapshot(),
    "size": lambda world: world.timer.size,
    "levels_in_use": lambda world: world.timer.levels_in_use,
    "buckets_occupied": lambda world: world.timer.buckets_occupied,
    "next_expiration_ms": lambda world: world.timer.next_expiration_ms(),
    "lateness": lambda world: world.timer.lateness.snapshot(),
    "failures": lambda world: world.timer.failures,
    "on_earlier": lambda world: setattr(world.timer, "on_earlier", None),
    "close, of a timer": lambda world: world.timer.close(),
    # Of a task, and of a histogram.
    "delay_ms": lambda world: (setattr(world.work, "delay_ms", 10**30), world.work.delay_ms),
    "cancel": lambda world: [task.cancel() for task in [world.work, *world.tasks]],
    "observe": lambda world: [world.histogram.observe(10**number) for number in range(30)],
    "counted": lambda world: world.histogram.counted(),
    "snapshot, of a histogram": lambda world: world.histogram.snapshot(),
    # Of an operation.
    "cancel, an operation": lambda world: world.first.cancel(),
    "force_complete": lambda world: world.first.force_complete(),
    "maybe_try_complete": lambda world: world.first.maybe_try_complete(),
    "safe_try_complete_or_else": lambda world: world.new.safe_try_complete_or_else(list),
    "run": lambda world: world.first.run(),
    "wait": lambda world: world.first.wait(0),
    "call_when_completed": lambda world: world.first.call_when_completed(list),
    "outcome": lambda world: world.first.outcome,
    "is_completed": lambda world: world.first.is_completed,
    "error": lambda world: world.first.error,
    "try_complete": lambda world: world.first.try_complete(),
    "on_complete": lambda world: Waiting().on_complete(),
    "on_expiration": lambda world: Waiting().on_expiration(),
    "on_failure": lambda world: Waiting().on_failure(ValueError()),
    # Of a purgatory.
    "try_complete_else_watch": lambda world: world.purgatory.try_complete_else_watch(
        world.new, ["k", Key("a"), 1, 2, "new"], {"n": 9, Key("m"): 2**62}
    ),
    "future": lambda world: world.purgatory.future(world.new, ["k"]).cancel(),
    "check_and_complete": lambda world: (
        [setattr(one, "ready", True) for one in world.operations],
        world.purgatory.check_and_complete(Key("a")),
    ),
    "advance": lambda world: world.purgatory.advance(Key("m"), 2**62),
    "value": lambda world: world.purgatory.value(Key("m")),
    "forget": lambda world: (
        world.purgatory.advance("n", 2**62),
        world.purgatory.forget("n"),
    ),
    "wait, of a purgatory": lambda world: world.purgatory.wait(["k", Key("a")], lambda: 5),
    "wait_for_threshold": lambda world: world.purgatory.wait_for_threshold("w", 5),
    "keys": lambda world: world.purgatory.keys(),
    "check_all": lambda world: world.purgatory.check_all(),
    "complete_for_key": lambda world: world.purgatory.complete_for_key("k"),
    "fail_for_key": lambda world: world.purgatory.fail_for_key(Key("a"), ValueError()),
    "cancel_for_key": lambda world: world.purgatory.cancel_for_key("k"),
    "watched": lambda world: world.purgatory.watched,
    "watched_keys": lambda world: world.purgatory.watched_keys,
    "num_delayed": lambda world: world.purgatory.num_delayed,
    "max_pending": lambda world: world.purgatory.max_pending,
    "oldest_pending_ns": lambda world: world.purgatory.oldest_pending_ns,
    "pending_ends": lambda world: world.purgatory.pending_ends(3),
    "waiting_on": lambda world: world.purgatory.waiting_on(Key("a"), 3),
    "waiting_for_locks": lambda world: world.purgatory.waiting_for_locks(),
    "recent_faults": lambda world: world.purgatory.recent_faults(),
    "is_closed": lambda world: world.purgatory.is_closed,
    "reaper": lambda world: setattr(world.purgatory, "reaper", world.purgatory.reaper),
    "on_completed": lambda world: setattr(world.purgatory, "on_completed", None),
    "owns_timer": lambda world: world.purgatory.owns_timer,
    "counters": lambda world: world.purgatory.counters,
    "describe": lambda world: describe([world.purgatory]),
    "close": lambda world: world.purgatory.close("expire"),
    "close, and fail": lambda world: world.purgatory.close("fail"),
    "close, and leave": lambda world: world.purgatory.close(world.leave()),
    "a new purgatory": lambda world: DelayedOperationPurgatory("q", world.timer, 0, False).close(),
    "a new timer": lambda world: world.new_timer().close(),
}
"""Each public call, by its name, once or in some ways. None waits."""

ASYNC_CALLS: dict[str, Callable[[AsyncWorld], object]] = {
    "wait": lambda world: world.drive(
        world.on_loop.wait(["k", Key("a")], lambda: world.is_ready, 60), world.make_ready
    ),
    "wait, to the timeout": lambda world: world.drive(
        world.on_loop.wait([Key("a")], lambda: world.is_ready, 0.005), world.pass_time
    ),
    "wait_for_threshold": lambda world: world.drive(
        world.on_loop.wait_for_threshold(Key("new"), 2**62),
        lambda: world.on_loop.advance(Key("new"), 2**62),
    ),
    "submit": lambda world: world.drive(
        world.on_loop.submit(world.new, ["k", Key("a")], {"n": 9}), world.make_ready
    ),
    "notify": lambda world: (
        [setattr(one, "ready", True) for one in world.operations],
        world.on_loop.notify(Key("a")),
    ),
    "advance": lambda world: world.on_loop.advance(Key("m"), 2**62),
    "notify_threadsafe": lambda world: (
        [setattr(one, "ready", True) for one in world.operations],
        world.on_loop.notify_threadsafe(Key("a")),
        world.loop.run_asked(),
    ),
    "advance_threadsafe": lambda world: (
        world.on_loop.advance_threadsafe(Key("m"), 2**62),
        world.loop.run_asked(),
    ),
    "keys": lambda world: world.on_loop.keys(),
    "check_all": lambda world: world.on_loop.check_all(),
    "complete_for_key": lambda world: world.on_loop.complete_for_key("k"),
    "fail_for_key": lambda world: world.on_loop.fail_for_key(Key("a"), ValueError()),
    "cancel_for_key": lambda world: world.on_loop.cancel_for_key("k"),
    "value": lambda world: world.on_loop.value(Key("m")),
    "forget": lambda world: (world.on_loop.advance("n", 2**62), world.on_loop.forget("n")),
    "name": lambda world: world.on_loop.name,
    "watched": lambda world: world.on_loop.watched,
    "watched_keys": lambda world: world.on_loop.watched_keys,
    "num_delayed": lambda world: world.on_loop.num_delayed,
    "counters": lambda world: world.on_loop.counters,
    "aclose": lambda world: world.drive(world.on_loop.aclose("expire")),
    "aclose, and fail": lambda world: world.drive(world.on_loop.aclose("fail")),
    "aclose, and leave": lambda world: world.drive(world.on_loop.aclose(world.leave())),
}

KINDS = (SystemTimer, TimerTask, Histogram, DelayedOperation, DelayedOperationPurgatory)


def rows() -> Iterator[tuple[str, type[World], Callable[[Any], object]]]:
    yield from ((name, World, call) for name, call in CALLS.items())
    yield from ((f"{name}, on a loop", AsyncWorld, call) for name, call in ASYNC_CALLS.items())


@pytest.mark.parametrize(("calls", "kinds"), [(CALLS, KINDS), (ASYNC_CALLS, [AsyncPurgatory])])
def test_table_of_calls_has_every_public_call(
    calls: dict[str, object], kinds: Iterable[type]
) -> None:
    called = {name.partition(",")[0] for name in calls}
    names = {(kind, name) for kind in kinds for name in dir(kind) if not name.startswith("_")}
    public = {name for kind, name in names if hasattr(kind, name)}  # no former ones
    assert public <= called, public - called


def cancel(world: World) -> None:
    """And let go of them: whoever still looks at one looks at memory that was freed."""
    world.work.cancel()
    while world.operations:
        world.operations.pop().cancel()
    while world.tasks:
        world.tasks.pop(0).cancel()


def submit(world: World) -> None:
    world.submit(Waiting(5), "k", Key("a"), "new")
    world.submit(Waiting(5), n=8)
    world.timer.call_later(5, int)


def complete(world: World) -> None:
    for one in world.operations:
        one.ready = True
    for key in ("k", "b", Key("a")):
        world.purgatory.check_and_complete(key)
    world.purgatory.advance("n", 2**62)


def forget(world: World) -> None:
    world.purgatory.advance("n", 7)
    world.purgatory.forget("n")
    world.purgatory.cancel_for_key(Key("a"))
    world.purgatory.fail_for_key("n", ValueError())


def close(world: World) -> None:
    world.purgatory.close("fail")
    world.timer.close()


def begin_anew(world: World) -> None:
    """Drop all tasks: an operation loses its expiry, and a close has to find it."""
    world.began_anew = True
    world.timer.__init__("t", clock=world.clock, executor=InlineExecutor())  # type: ignore[misc]
    world.histogram.__init__((1, 2, 3, 4, 5))  # type: ignore[misc]


def look(world: World) -> None:
    world.timer.snapshot()
    describe([world.purgatory])


class Stop(BaseException):
    """The exception of a signal's handler."""


def interrupt(signum: int, frame: object) -> None:
    raise Stop


_raise_signal = partial(ctypes.CDLL(None)["raise"], signal.SIGUSR1)
"""The next call of Python code runs the handler: not the finalizer itself."""

FINALIZERS: dict[str, Callable[[World], object]] = {
    kind.__name__: kind for kind in (cancel, submit, complete, forget, close, begin_anew, look)
} | {"drive": World.pass_time, "signal": lambda world: None}


class Phoenix:
    """A cycle: the collector finds it, and it leaves another one behind until it is time."""

    def __init__(self, places: Places) -> None:
        self.itself, self.places = self, places

    def __del__(self) -> None:
        self.places.come()


class SignallingPhoenix(Phoenix):
    """Has no code of Python in its finalizer, in which the signal's handler would run."""

    __del__ = staticmethod(_raise_signal)  # from 3.14 on a partial is bound


class Places:
    """The places of one call at which the collector comes.

    Args:
        number: at which of them ``act`` is called, counted from 1 on.
    """

    def __init__(self, number: int, act: Callable[[], object] | None) -> None:
        self.left = number
        self.act = act

    def light(self) -> None:
        SignallingPhoenix(self) if self.left == 1 and self.act is None else Phoenix(self)

    def come(self) -> None:
        self.left -= 1
        if self.left:
            self.light()
        elif self.act is not None:
            with suppress(*REFUSALS):
                self.act()


@contextmanager
def collected_often() -> Iterator[None]:
    gc.set_threshold(1, 10**6, 10**6)
    try:
        yield
    finally:
        gc.set_threshold(0)


def run_at(
    new_world: type[World],
    call: Callable[[Any], object],
    finalizer: str,
    number: int,
    shift: int,
) -> bool:
    """Make the call once; say whether the finalizer came in it."""
    world = new_world()
    act = None if finalizer == "signal" else partial(FINALIZERS[finalizer], world)
    places = Places(number, act)
    came = False
    gc.collect()  # with the free lists of lists and tuples: each of them is an allocation
    places.light()
    made: list[object] = []
    with suppress(Stop):
        try:
            with suppress(*REFUSALS), collected_often():
                for _ in range(2 + shift):  # it comes at every other one only
                    made.append([])
                call(world)
        except Stop:
            came = True
            raise
        came = came or places.left == 0
    # A finalizer that is left does nothing, and lets go of this world, which each collection after
    # would look at.
    places.left, places.act = 1, None
    gc.set_threshold(0)
    with suppress(Stop):
        gc.collect()
    world.assert_sound()
    return came


def places_to_try(shift: int, step: int) -> Iterator[int]:
    """Yield the first few places, and then each ``step``-th."""
    return itertools.chain(range(1, 9), itertools.count(9 + shift * step // 2, step))


def run_everywhere(finalizer: str, step: int) -> None:
    """Run all calls with the finalizer at all places, or at each ``step``-th."""
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGUSR1, interrupt)
    gc.set_threshold(0)
    gc.collect()
    gc.freeze()
    came = 0
    for (name, new_world, call), shift in itertools.product(rows(), (0, 1)):
        if shift and step > 1 and new_world is AsyncWorld:
            continue  # most calls beneath were tried without a loop
        for number in places_to_try(shift, step):
            try:
                if not run_at(new_world, call, finalizer, number, shift):
                    break
            except BaseException:
                print(f"in {name}, at place {number}, shift {shift}", file=sys.stderr)
                raise
            came += 1
    print(finalizer, came)
    os._exit(0 if came > 100 else 1)


@pytest.mark.slow
# In pure Python, which has nothing borrowed, test_finalizers.py does the same step by step.
@pytest.mark.parametrize(
    "step", [pytest.param(11, marks=NATIVELY), pytest.param(1, marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("finalizer", FINALIZERS)
def test_finalizer_at_any_allocation_is_harmless(finalizer: str, step: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", __name__, finalizer, str(step)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONMALLOC": "debug"},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert ended.returncode == 0, ended.stdout[-2_000:] + ended.stderr[-4_000:]


if __name__ == "__main__":
    run_everywhere(sys.argv[1], int(sys.argv[2]))
