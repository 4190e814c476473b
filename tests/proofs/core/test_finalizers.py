"""The garbage collector runs a finalizer in the middle of a call; it uses the same purgatory.

CPython may do so, by its version, where a tracked object is created, after a call, or where a
function begins. Each of these places is tried in each kind of call, with each kind of finalizer:
first by a stand-in for the collector, then by the collector itself.
"""

from __future__ import annotations

import dis
import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from types import CodeType
from typing import NamedTuple

import pytest

from purgatory import PurgatoryClosedError
from tests.proofs.interrupts.tracing import LIBRARY, Tracer
from tests.unit.core.probe import LONG_MS, Probe, Setting

MAKES = frozenset({"BUILD_MAP", "BUILD_LIST", "BUILD_TUPLE", "GET_ITER", "FOR_ITER", "LIST_EXTEND"})
"""Instructions within which something may be made, and the collector may run."""

CALLS = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME", "BEFORE_WITH"})
"""Instructions after which the collector may run."""


@cache
def places(code: CodeType) -> frozenset[int]:
    """Return the offsets of the instructions before which a finalizer may seem to run."""
    made = list(dis.get_instructions(code))
    return frozenset(
        now.offset
        for before, now in zip([made[0], *made], made, strict=False)
        if now.opname in MAKES or before.opname in CALLS
    )


class Collector(Tracer):
    """Stands in for the collector: runs ``finalize`` once, at one of the places.

    Args:
        finalize: the call of the finalizer.
        number: at which place, counted from 1 on.
    """

    def __init__(self, finalize: Callable[[], object], number: int) -> None:
        super().__init__(AssertionError, (), (*LIBRARY, __file__))
        self.finalize = finalize
        self.number = number

    def before(self, code: CodeType, offset: int) -> None:
        if offset in places(code):
            self.count += 1
            if self.count == self.number:
                with suppress(PurgatoryClosedError):
                    self.finalize()


class Key(NamedTuple):
    """A key that is compared in Python: there, too, a finalizer may run."""

    name: str

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and str(self.name) == str(other.name)


class Waiting(Probe):
    """Waits until it is ``ready``, or for the value of a key, if it has a number."""

    number: int | None = None
    world: World

    def try_complete(self) -> bool:
        value = self.world.purgatory.value(KEY)
        reached = self.number is not None and value is not None and value >= self.number
        return (self.ready or reached) and self.force_complete()


KEY = Key("a")


class World(Setting):
    """A purgatory, and its operations: ``one``, perhaps beside ``other``."""

    def __init__(self, by_number: bool, beside: bool) -> None:
        super().__init__()
        self.by_number = by_number
        self.made: list[Waiting] = []
        self.other = self.new(20) if beside else None
        self.one = self.make(10)

    def make(self, number: int) -> Waiting:
        waiting = Waiting()
        waiting.world = self
        waiting.number = number if self.by_number else None
        return waiting

    def new(self, number: int) -> Waiting:
        return self.watch(self.make(number))

    def watch(self, waiting: Waiting) -> Waiting:
        keys = [KEY] if waiting.number is None else []
        thresholds = None if waiting.number is None else {KEY: waiting.number}
        self.made.append(waiting)
        self.purgatory.try_complete_else_watch(waiting, keys, thresholds)
        return waiting

    @property
    def submitted(self) -> list[Waiting]:
        """The operations that the purgatory has taken."""
        return [one for one in self.made if one._op_state is not None]

    def assert_sound(self) -> None:
        """Assert that no operation is lost, and no list holds a completed one."""
        purgatory = self.purgatory
        purgatory._check()
        value = purgatory.value(KEY)
        pending = [one for one in self.submitted if not one.is_completed]
        for one in pending:
            assert one.number is None or value is None or value < one.number, "an advance is lost"
        if purgatory.is_closed:
            return
        assert purgatory.watched == purgatory.num_delayed == len(pending)
        assert set(map(id, purgatory.cancel_for_key(KEY))) == set(map(id, pending))
        self.assert_empty()
        counted = purgatory.counters.outcomes
        assert sum(counted.values()) == len(self.submitted), counted


def watch(world: World) -> Iterator[Callable[[], object]]:
    yield lambda: world.watch(world.one)


def cancel(world: World) -> Iterator[Callable[[], object]]:
    world.watch(world.one)
    yield world.one.cancel


def check(world: World) -> Iterator[Callable[[], object]]:
    world.watch(world.one).ready = True
    yield lambda: world.purgatory.check_and_complete(KEY)


def advance(world: World) -> Iterator[Callable[[], object]]:
    world.watch(world.one)
    yield lambda: world.purgatory.advance(KEY, 10)


def forget(world: World) -> Iterator[Callable[[], object]]:
    world.watch(world.one)
    world.one.number = 99  # its condition is another one's too: so its check completes nothing
    world.purgatory.advance(KEY, 10)
    yield lambda: world.purgatory.forget(KEY)


def expire(world: World) -> Iterator[Callable[[], object]]:
    world.watch(world.one)
    world.clock.advance(LONG_MS)
    yield world.timer.advance_clock


def cancel_for_key(world: World) -> Iterator[Callable[[], object]]:
    world.watch(world.one)
    yield lambda: world.purgatory.cancel_for_key(KEY)


def close(world: World) -> Iterator[Callable[[], object]]:
    world.watch(world.one)
    yield lambda: world.purgatory.close("fail")


def advance_and_forget(world: World) -> None:
    world.purgatory.advance(KEY, 15)
    world.purgatory.forget(KEY)


CALLED = [watch, cancel, check, advance, forget, expire, cancel_for_key, close]

FINALIZERS: dict[str, Callable[[World], object]] = {
    "submits": lambda world: world.new(15),
    "submits at the same number": lambda world: world.new(10),
    "submits and cancels": lambda world: world.new(10).cancel(),
    "cancels the one": lambda world: world.one in world.submitted and world.one.cancel(),
    "cancels the other": lambda world: world.other and world.other.cancel(),
    "cancels the other and submits": lambda world: (
        world.other and world.other.cancel(),
        world.new(10),
    ),
    "advances": lambda world: world.purgatory.advance(KEY, 15),
    "advances and forgets": advance_and_forget,
    "cancels all": lambda world: world.purgatory.cancel_for_key(KEY),
}


def finalize_in(
    called: Callable[[World], Iterator[Callable[[], object]]],
    finalizer: str,
    by_number: bool,
    first: int,
    step: int,
) -> None:
    """Run the call again and again, with the finalizer at one place of it after the other."""
    for beside in (False, True):
        number, count = first, first
        while number <= count:
            world = World(by_number, beside)
            collector = Collector(partial(FINALIZERS[finalizer], world), number)
            for call in called(world):
                with collector.tracing():
                    call()
            count = collector.count
            try:
                world.assert_sound()
            except AssertionError as error:
                raise AssertionError(f"at place {number} of {count}, beside={beside}") from error
            number += step


ALL = [
    (called, finalizer, by_number)
    for called in CALLED
    for finalizer in FINALIZERS
    for by_number in (False, True)
    if by_number or "advance" not in finalizer
]


@pytest.mark.slow
@pytest.mark.parametrize("called", CALLED)
def test_a_finalizer_in_the_middle_of_a_call_loses_no_operation(
    called: Callable[[World], Iterator[Callable[[], object]]],
) -> None:
    """At every eighth place; with other finalizers, and beside others, at others."""
    for number, case in enumerate(case for case in ALL if case[0] is called):
        finalize_in(*case, first=1 + number % 8, step=8)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("called", "finalizer", "by_number"), ALL)
def test_a_finalizer_anywhere_in_a_call_loses_no_operation(
    called: Callable[[World], Iterator[Callable[[], object]]], finalizer: str, by_number: bool
) -> None:
    finalize_in(called, finalizer, by_number, first=1, step=1)


@pytest.mark.parametrize("by_number", [False, True])
def test_finalizer_may_complete_an_operation_being_submitted(
    by_number: bool,
) -> None:
    """By the collector itself: each threshold makes it come at another moment."""

    class Garbage:
        def __init__(self, world: World) -> None:
            self.itself, self.world = self, world

        def __del__(self) -> None:
            self.world.new(15)

    before = gc.get_threshold()
    came = 0
    gc.freeze()  # objects of other tests are not scanned each time
    try:
        for threshold in range(1, 60):
            gc.collect()
            world = World(by_number, beside=False)
            Garbage(world)
            gc.set_threshold(threshold)
            world.watch(world.one)
            gc.set_threshold(0)
            came += len(world.made) > 1
            world.assert_sound()
    finally:
        gc.set_threshold(*before)
    assert came > 5, "the collector came in the middle"
