"""Schedules: random orders of ready callbacks, orders by priorities, and all orders."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.virtual import World, WorldError
from purgatory.virtual.schedules import (
    RECORDED_FIFO,
    ExhaustiveSearch,
    format_deviations,
    parse_schedule,
)
from purgatory.virtual.seeded_tests import Plan
from tests.world.virtual.pytest_run import run_pytest


async def _three(seen: list[str]) -> None:
    async def step(name: str) -> None:
        for number in range(2):
            seen.append(f"{name}{number}")
            await asyncio.sleep(0)

    await asyncio.gather(step("a"), step("b"), step("c"))


def _run(schedule: str, seed: int = 0) -> tuple[list[str], World]:
    seen: list[str] = []
    with World(seed, schedule=schedule) as world:
        world.run(_three(seen))
    return seen, world


def test_default_schedule_is_first_in_first_out() -> None:
    assert _run("fifo")[0] == _run(RECORDED_FIFO)[0] == ["a0", "b0", "c0", "a1", "b1", "c1"]
    assert _run("fifo")[1].digest == _run(RECORDED_FIFO)[1].digest


@pytest.mark.slow
def test_random_schedules_give_exactly_the_possible_orders() -> None:
    """1,200 runs miss one of 90 orders with a probability of one in half a million."""
    possible = {
        order
        for order in itertools.permutations(["a0", "a1", "b0", "b1", "c0", "c1"])
        if all(order.index(f"{name}0") < order.index(f"{name}1") for name in "abc")
    }
    seen = Counter(tuple(_run("random", seed)[0]) for seed in range(1_200))
    assert set(seen) == possible


@given(st.integers(0, 2**32), st.sampled_from(["random", "sticky", "mixed", "pct", "pct:5"]))
@settings(max_examples=60, deadline=None)
def test_deviations_repeat_a_run(seed: int, schedule: str) -> None:
    seen, world = _run(schedule, seed)
    again, repeated = _run(format_deviations(world.deviations), seed)
    assert again == seen
    assert repeated.digest == world.digest


def test_deviation_beyond_the_ready_callbacks_takes_the_last() -> None:
    assert _run("0:99")[0][0] == "c0"
    assert _run("99:1")[0] == _run("fifo")[0]


@pytest.mark.parametrize(
    "text", ["", "lifo", "pct:", "pct:0", "pct:x", "pct:999999999", "1", "1:", "1:2,", "-1:2"]
)
def test_invalid_schedule_is_refused(text: str) -> None:
    with pytest.raises(WorldError, match="is none of fifo, mixed, random, sticky, pct"):
        World(schedule=text)


@given(st.dictionaries(st.integers(0, 999), st.integers(1, 9), min_size=1))
def test_deviations_round_trip_through_text(deviations: dict[int, int]) -> None:
    schedule = parse_schedule(format_deviations(deviations), None)
    assert schedule is not None
    assert schedule.planned == deviations


def test_callbacks_of_one_object_keep_their_order() -> None:
    async def main(seen: list[int]) -> None:
        loop = asyncio.get_running_loop()
        for number in range(10):
            loop.call_soon(seen.append, number)
        await asyncio.sleep(1)

    for seed in range(20):
        seen: list[int] = []
        with World(seed, schedule="random") as world:
            world.run(main(seen))
        assert seen == [*range(10)]


def test_plain_functions_run_in_any_order() -> None:
    async def main(seen: list[int]) -> None:
        def append(number: int) -> None:
            seen.append(number)

        loop = asyncio.get_running_loop()
        for number in range(3):
            loop.call_soon(append, number)
        await asyncio.sleep(1)

    orders = set()
    for seed in range(100):
        seen: list[int] = []
        with World(seed, schedule="random") as world:
            world.run(main(seen))
        orders.add(tuple(seen))
    assert orders == set(itertools.permutations(range(3)))


async def _starved(world: World) -> bool:
    """Whether one task ran all of its ten steps before the first step of another."""
    steps = 0

    async def slow() -> int:
        return steps

    async def busy() -> None:
        nonlocal steps
        for _ in range(10):
            steps += 1
            await asyncio.sleep(0)

    waiting, _ = await asyncio.gather(slow(), busy())
    return waiting == 10


def _share(
    schedule: str, application: Callable[[World], Awaitable[bool]], seeds: int = 200
) -> float:
    async def main(world: World) -> bool:
        return await application(world)

    found = 0
    for seed in range(seeds):
        with World(seed, schedule=schedule) as world:
            found += world.run(main(world))
    return found / seeds


@pytest.mark.slow
def test_pct_starves_a_task_as_random_hardly_ever_does() -> None:
    assert _share("random", _starved) < 0.02
    assert _share("pct:1", _starved) > 0.3
    assert _share("pct:3", _starved) > 0.1
    assert _share("mixed", _starved) > 0.03


async def _interrupted(world: World) -> bool:
    """Whether a task ran all of its five steps between the first two of another."""
    seen: list[str] = []

    async def work(name: str, steps: int) -> None:
        for _ in range(steps):
            seen.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(work("first", 2), work("second", 5))
    return seen == ["first", *(5 * ["second"]), "first"]


def test_sticky_runs_whole_tasks_more_often_than_random() -> None:
    """The shares of 10,000 seeds are 0.037 and 0.017."""
    assert _share("fifo", _interrupted) == 0
    assert _share("sticky", _interrupted, 1_000) > _share("random", _interrupted, 1_000) + 0.01


def test_pct_does_not_starve_an_awaited_task() -> None:
    async def spins(world: World) -> bool:
        done = False

        async def work() -> None:
            nonlocal done
            done = True

        async def wait() -> None:
            while not done:
                await asyncio.sleep(0)

        await asyncio.gather(wait(), work())
        return True

    assert _share("pct", spins) == 1


@pytest.mark.slow
def test_exhaustive_search_runs_each_order_once() -> None:
    search, orders = ExhaustiveSearch(99), Counter[tuple[str, ...]]()

    async def main(seen: list[str]) -> None:
        async def step(name: str) -> None:
            seen.append(name)

        await asyncio.gather(*map(step, "abcd"))

    for deviations in search:
        seen: list[str] = []
        with World(
            schedule=format_deviations(deviations) if deviations else RECORDED_FIFO
        ) as world:
            world.run(main(seen))
            search.ran(world.choices)
        orders[tuple(seen)] += 1
    assert search.is_complete
    assert set(orders) == set(itertools.permutations("abcd"))
    assert search.count == sum(orders.values())


def test_bounded_search_reports_that_more_orders_exist() -> None:
    search = ExhaustiveSearch(1)
    tried = []
    for deviations in search:
        tried.append(deviations)
        search.ran([3, 2])
    assert tried == [{}, {0: 1}, {0: 2}, {1: 1}]
    assert not search.is_complete


def test_exhaustive_search_keeps_no_more_schedules_than_it_runs() -> None:
    search = ExhaustiveSearch(3, limit=50)
    for _ in search:
        search.ran([10] * 1_000)
    assert (search.count, search.is_limited) == (50, True)
    search = ExhaustiveSearch(1, limit=4)
    for _ in search:
        search.ran([3, 2])
    assert (search.count, search.is_limited) == (4, False), "the search ran all schedules"


@pytest.mark.parametrize(
    ("tasks", "shown"),
    [
        (50, "all schedules with at most 1 deviation passed: {count:,}"),
        (
            100,
            "{count:,} schedules with at most 1 deviation passed, not all: a choice is of the "
            "first 64 callbacks that are ready",
        ),
    ],
)
def test_exhaustive_search_reports_too_many_ready_tasks(tasks: int, shown: str) -> None:
    async def step() -> None:
        pass

    async def application() -> None:
        await asyncio.gather(*(step() for _ in range(tasks)))

    with World(schedule=RECORDED_FIFO) as world:
        world.run(application())
    names = ("seeds", "seed", "schedule", "without", "plain_network")
    plan = Plan({"exhaustive": 1}, dict.fromkeys(names))
    assert plan.search is not None
    for _ in plan.runs("test_it"):
        plan.search.ran(world.choices)
    assert plan.result == shown.format(count=plan.search.count)


_TESTS = """
import asyncio
import pytest


async def increment_twice(read, write, lock):
    async def increment():
        async with lock:
            value = read()
            await asyncio.sleep(0)
            write(value + 1)
    await asyncio.gather(increment(), increment())


@pytest.mark.virtual(exhaustive=1)
async def test_a_lock(world):
    values = [0]
    await increment_twice(lambda: values[-1], values.append, asyncio.Lock())
    assert values == [0, 1, 2]


@pytest.mark.virtual(exhaustive=99, schedules=5)
async def test_a_limit(world):
    values = [0]
    await increment_twice(lambda: values[-1], values.append, asyncio.Lock())


async def transfer():
    ready, seen = asyncio.Event(), []

    async def pay():
        seen.append("pay")

    async def log():
        await asyncio.sleep(0)
        seen.append("log")

    async def ship():
        await asyncio.sleep(0)
        seen.append("ship")

    await asyncio.gather(pay(), log(), ship())
    return seen


@pytest.mark.virtual(SCHEDULES)
async def test_order(world):
    assert (await transfer()) != ["log", "pay", "ship"]
"""


def _plan(marked: dict[str, object], **options: object) -> Plan:
    names = ("seeds", "seed", "schedule", "plain_network")
    return Plan(marked, {**dict.fromkeys(names), "without": (), **options})


def _planned(marked: dict[str, object], **options: object) -> list[tuple[int, str]]:
    return [(run.seed, run.schedule) for run in _plan(marked, **options).runs("test_it.py")]


def test_first_of_many_schedules_is_that_of_asyncio() -> None:
    assert _planned({"schedules": 3}) == [(0, "fifo"), (1, "mixed"), (2, "mixed")]
    assert _planned({"schedules": 1}) == [(0, "fifo")]
    assert _planned({"schedules": 2, "schedule": "pct"}) == [(0, "fifo"), (1, "pct")]
    assert _planned({"schedules": 9}, seeds=2) == [(0, "fifo"), (1, "mixed")]
    assert _planned({"schedules": 9}, seed=0) == [(0, "mixed")]
    assert _planned({"schedules": 2}, schedule="random") == [(0, "random"), (1, "random")]
    assert _planned({"seeds": 2, "schedule": "random"}) == [(0, "random"), (1, "random")]


def test_command_repeats_the_schedule_of_asyncio() -> None:
    first = next(_plan({"schedules": 3}).runs("test_it.py"))
    assert first.command.endswith("pytest test_it.py --virtual-seed 0 --virtual-schedule fifo")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("marked", "schedule"),
    [("schedules=500", "mixed"), ("seeds=500, schedule='pct:2'", "pct:2"), ("exhaustive=2", "")],
)
def test_marked_tests_run_with_many_schedules(tmp_path: Path, marked: str, schedule: str) -> None:
    _, said = run_pytest(tmp_path, text=_TESTS.replace("SCHEDULES", marked))
    assert "1 failed, 2 passed" in said
    assert f"schedule: {schedule}" in said
    assert "test_it.py::test_a_lock: all schedules with at most 1 deviation passed: " in said
    limit = "test_a_limit: the first 5 schedules with at most 99 deviations passed, not all\n"
    assert limit in said
    deviations = said.partition("schedule: first in, first out; ")[2].partition("faults:")[0]
    assert re.search(r"log\(\) #\d at test_it.py:", deviations)
    assert len(deviations.splitlines()) <= 4
    repeat = re.findall(r"--virtual-schedule (\S+)", said)[-1]
    _, said = run_pytest(
        tmp_path,
        *("--virtual-schedule", repeat, "-k", "order", "--virtual-seeds", "1"),
        text=_TESTS.replace("SCHEDULES", marked),
    )
    assert "1 failed" in said
