"""The scheduler that the interleavings rely on: it tries all, sees deadlocks, and repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from tests.proofs.core.accesses import GIVEN_AWAY, access, conflict, mask, place_of
from tests.proofs.core.cooperative_locks import CooperativeLock, monotonic, sleep
from tests.proofs.core.explorer import (
    all_schedules,
    every_schedule,
    random_schedules,
    run_program,
    shrunk,
)
from tests.proofs.core.fresh_core import load_core
from tests.proofs.core.scheduler import Fixed, Run, at, fail, point

Threads = Mapping[str, Callable[[], object]]


@dataclass
class Tiny:
    """A program without a purgatory."""

    threads: Threads

    def assert_all(self) -> None:
        """Nothing."""


def run_all(build: Callable[[], Threads], preemptions: int) -> list[Run]:
    return list(all_schedules(lambda: Tiny(build()), preemptions))


def test_scheduler_tries_each_order_of_two_threads_once() -> None:
    orders: list[str] = []

    def build() -> Tiny:
        orders.append("")

        def step_twice(letter: str) -> None:
            for _ in range(2):
                point()
                orders[-1] += letter

        return Tiny({letter: lambda letter=letter: step_twice(letter) for letter in "AB"})  # type: ignore[misc]

    runs = list(every_schedule(build, preemptions=2))
    assert sorted(orders) == ["AABB", "ABAB", "ABBA", "BAAB", "BABA", "BBAA"]
    assert len({run.schedule for run in runs}) == len(runs)
    orders.clear()
    list(every_schedule(build, preemptions=0))
    assert sorted(orders) == ["AABB", "BBAA"]


def test_independent_steps_are_tried_in_one_order() -> None:
    def build() -> Threads:
        def touch(own: str) -> None:
            for _ in range(10):
                at(None, access(f"what {own} alone touches", writes=True))
                at(None, access("what both read", writes=False))

        return {letter: lambda letter=letter: touch(letter) for letter in "AB"}  # type: ignore[misc]

    assert len(run_all(build, preemptions=3)) == 2


@pytest.mark.parametrize(
    ("name", "preemptions"),
    [
        ("on one key: force_complete, cancel", 2),
        ("on two keys: cancel_for_key, cancel_for_key", 2),
        ("on one key: cancel, close by failure", 1),
        ("new: watch, event", 1),
        ("with a threshold: expiry, advance", 1),
        ("two_halves_of_a_condition", 1),
        ("with a lock: event, stranger", 1),
        ("completions_that_check_each_others_key", 1),
    ],
)
def test_skipped_schedule_has_the_result_of_a_tried_one(name: str, preemptions: int) -> None:
    build = load_core().build(name)
    tried = {orders_of(run) for run in all_schedules(build, preemptions)}
    all_there_are = {orders_of(run) for run in every_schedule(build, preemptions)}
    assert tried == all_there_are


def orders_of(run: Run) -> frozenset[tuple[object, ...]]:
    """Return the writers of each place, and the number of reads in between by thread; in this
    order.

    Runs that have these alike end alike: where they differ, accesses that don't conflict changed
    places.
    """
    orders: dict[int, list[Counter[int]]] = {}
    ends = [place for place, _ in run.turns[1:]] + [len(run.trace)]
    for (start, thread), end in zip(run.turns, ends, strict=True):
        for one in run.trace[start:end]:
            if one == GIVEN_AWAY:
                continue
            order = orders.setdefault(place_of(one), [Counter()])
            if conflict(mask(one), mask(one)):  # it writes
                order += [Counter({thread: -1}), Counter()]
            else:
                order[-1][thread] += 1
    return frozenset(
        (place, *(frozenset(readers.items()) for readers in order))
        for place, order in orders.items()
    )


def two_locks_in_both_orders() -> Threads:
    first, second = CooperativeLock(), CooperativeLock()

    def take(one: CooperativeLock, other: CooperativeLock) -> None:
        with one, other:
            pass

    return {"up": lambda: take(first, second), "down": lambda: take(second, first)}


def test_a_deadlock_is_found_described_and_repeated() -> None:
    failed = [run for run in run_all(two_locks_in_both_orders, 1) if run.failure is not None]
    assert {run.failure for run in failed} == {
        "deadlock: up waits for CooperativeLock held by down, "
        "down waits for CooperativeLock held by up"
    }

    def build() -> Tiny:
        return Tiny(two_locks_in_both_orders())

    for run in failed:
        assert run_program(build, Fixed(run.schedule)).failure == run.failure
    at_random = [run for _, run in random_schedules(build, range(1_000)) if run.failure is not None]
    assert at_random
    for run in at_random[:10]:
        assert run_program(build, Fixed(run.schedule)).failure is not None
        assert len(shrunk(build, run).deviations) <= 2


def test_threads_waiting_for_locks_and_sleeps_finish() -> None:
    def build() -> Threads:
        lock = CooperativeLock()
        lock.acquire()

        def wait() -> None:
            if not lock.acquire():
                fail("a wait ends with the lock")
            lock.release()

        def poll() -> None:
            while lock.locked():
                sleep(0.5)

        return {"wait": wait, "poll": poll, "release": lock.release}

    for _, run in random_schedules(lambda: Tiny(build()), range(200)):
        assert run.failure is None


def test_sleeping_thread_sees_time_pass() -> None:
    def build() -> Threads:
        def wait_three_seconds() -> None:
            until_s = monotonic() + 3
            while monotonic() < until_s:
                sleep(1)

        return {"sleeper": wait_three_seconds}

    assert run_program(lambda: Tiny(build()), Fixed()).failure is None


def test_an_endless_loop_and_an_exception_are_reported() -> None:
    def go_round() -> None:
        while True:
            point()

    def fall() -> None:
        raise LookupError("on purpose")

    run = run_program(lambda: Tiny({"round": go_round}), Fixed())
    assert run.failure == "no end after 20000 accesses"
    run = run_program(lambda: Tiny({"fall": fall}), Fixed())
    assert run.failure == "fall raised LookupError('on purpose')"
