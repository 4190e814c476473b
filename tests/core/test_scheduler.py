"""The scheduler that the interleavings rely on: it tries all, sees deadlocks, and repeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType

from tests.core.cooperative_locks import CooperativeLock, monotonic, sleep
from tests.core.explorer import all_schedules, random_schedules, run_program
from tests.core.scheduler import Fixed, Run, fail, point

Threads = Mapping[str, Callable[[], object]]


@dataclass
class Tiny:
    """A program without a purgatory."""

    threads: Threads

    def assert_all(self) -> None:
        """Nothing."""


def module_of(build: Callable[[], Threads]) -> ModuleType:
    """Return a module with the one program "tiny"."""
    module = ModuleType("tiny")
    vars(module)["PROGRAMS"] = {"tiny": lambda: Tiny(build())}
    return module


def run_all(build: Callable[[], Threads], preemptions: int) -> list[Run]:
    return list(all_schedules(module_of(build), "tiny", preemptions))


def test_every_order_of_two_threads_with_two_steps_each_is_tried_once() -> None:
    orders: list[str] = []

    def build() -> Threads:
        orders.append("")

        def step_twice(letter: str) -> None:
            orders[-1] += letter
            point()
            orders[-1] += letter

        return {letter: lambda letter=letter: step_twice(letter) for letter in "AB"}  # type: ignore[misc]

    runs = run_all(build, preemptions=2)
    assert sorted(orders) == ["AABB", "ABAB", "ABBA", "BAAB", "BABA", "BBAA"]
    assert len({run.schedule for run in runs}) == len(runs)
    orders.clear()
    run_all(build, preemptions=0)
    assert sorted(orders) == ["AABB", "BBAA"]


def two_locks_in_both_orders() -> Threads:
    first, second = CooperativeLock(), CooperativeLock()

    def take(one: CooperativeLock, other: CooperativeLock) -> None:
        with one, other:
            pass

    return {"up": lambda: take(first, second), "down": lambda: take(second, first)}


def test_a_deadlock_is_found_told_and_repeated() -> None:
    core = module_of(two_locks_in_both_orders)
    failed = [run for run in all_schedules(core, "tiny", 1) if run.failure is not None]
    assert {run.failure for run in failed} == {
        "deadlock: up waits for CooperativeLock held by down, "
        "down waits for CooperativeLock held by up"
    }
    for run in failed:
        assert run_program(core, "tiny", Fixed(run.schedule)).failure == run.failure
    assert any(run.failure is not None for _, run in random_schedules(core, "tiny", range(100)))


def test_the_same_seed_gives_the_same_schedule() -> None:
    core = module_of(two_locks_in_both_orders)
    first, second = ([run for _, run in random_schedules(core, "tiny", range(30))] for _ in "12")
    assert first == second
    assert len({run.schedule for run in first}) > 1


def test_threads_that_wait_for_each_others_locks_and_sleeps_come_through() -> None:
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

    assert {run.failure for run in run_all(build, preemptions=1)} == {None}


def test_a_thread_that_sleeps_sees_its_time_pass() -> None:
    def build() -> Threads:
        def wait_three_seconds() -> None:
            until_s = monotonic() + 3
            while monotonic() < until_s:
                sleep(1)

        return {"sleeper": wait_three_seconds}

    assert {run.failure for run in run_all(build, preemptions=1)} == {None}


def test_a_thread_that_goes_round_for_ever_and_one_that_raises_are_told() -> None:
    def go_round() -> None:
        while True:
            point()

    def fall() -> None:
        raise LookupError("on purpose")

    [run] = run_all(lambda: {"round": go_round}, preemptions=0)
    assert run.failure == "no end after 20000 steps"
    [run] = run_all(lambda: {"fall": fall}, preemptions=0)
    assert run.failure == "fall raised LookupError('on purpose')"
