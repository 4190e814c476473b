"""The cost of a waiting operation, beside asyncio in the same run; the collector off, and on.

    python -m tests.benchmarks.purgatory_cost

* An operation that is made, watched on 3 of 100 keys, and completed by an event, as a multiple of
  asyncio's ``call_later`` with 1,000,000 handles outstanding, and of the same with Kafka's own
  classes, where these can be run.
* A check of one that can't complete, an event that reaches nobody while 10,000 wait, and the memory
  of one that waits.
* ``AsyncPurgatory.wait``, with 10,000 coroutines that one event wakes, beside a ``Condition``.
"""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median

from purgatory import AsyncPurgatory, DelayedOperationPurgatory
from tests.benchmarks.kafka_classes import KafkaClasses, kafka_classes
from tests.benchmarks.measurement import (
    Figure,
    Size,
    collector_off,
    in_turns,
    run_alone,
    say,
    seconds,
)
from tests.benchmarks.purgatory_throughput import TRIPLES, Waiting, by_event
from timer import SystemTimer

ROUNDS = 7
EVENTS = 200_000
"""Of Kafka's in one turn: at 50,000 the clock of a Java thread is coarse."""


def call_later(loop: asyncio.AbstractEventLoop, count: int) -> None:
    for _ in range(count):
        loop.call_later(30, print)


def cost_ns(outstanding: int, count: int, kafka: KafkaClasses | None) -> dict[str, float]:
    """Return nanoseconds for each operation, ours and Kafka's, and each of asyncio's handles."""
    loop = asyncio.new_event_loop()
    timer = SystemTimer("Cost")
    with DelayedOperationPurgatory("Cost", timer=timer, reaper_enabled=False) as purgatory:
        call_later(loop, outstanding)
        contenders: dict[str, Callable[[], dict[str, float]]] = {
            "operation": lambda: {"ns": seconds(lambda: by_event(purgatory, count)) / count * 1e9},
            "call_later": lambda: {"ns": seconds(lambda: call_later(loop, count)) / count * 1e9},
        }
        if kafka is not None:
            contenders["Kafka's"] = lambda: {"ns": kafka.events_ns(EVENTS)["event"]}
        spent = in_turns(contenders, ROUNDS)
    timer.close()
    loop.close()
    return {name: times["ns"] for name, times in spent.items()}


def per_call_ns(function: Callable[[], object], count: int) -> float:
    """Return nanoseconds for one call; a loop's own are in it."""

    def call() -> None:
        for _ in range(count):
            function()

    return median(seconds(call) for _ in range(ROUNDS)) / count * 1e9


def check_ns(waiting: int, repeats: int) -> float:
    """Return nanoseconds for each of many that can't complete."""
    timer = SystemTimer("Check")
    purgatory = DelayedOperationPurgatory("Check", timer=timer, reaper_enabled=False)
    for _ in range(waiting):
        purgatory.try_complete_else_watch(Waiting(), ["key"])
    spent_ns = per_call_ns(lambda: purgatory.check_and_complete("key"), repeats) / waiting
    purgatory.close("leave")
    timer.close()
    return spent_ns


def advance_ns(waiting: int, count: int) -> float:
    """Return nanoseconds for an ``advance`` that reaches nobody."""
    timer = SystemTimer("Advance")
    purgatory = DelayedOperationPurgatory("Advance", timer=timer, reaper_enabled=False)
    for number in range(waiting):
        purgatory.try_complete_else_watch(Waiting(), thresholds={"key": 10**9 + number})

    def advance() -> None:
        for value in range(count):
            purgatory.advance("key", value)

    spent_ns = median(seconds(advance) for _ in range(ROUNDS)) / count * 1e9
    purgatory.close("leave")
    timer.close()
    return spent_ns


def bytes_each(count: int) -> float:
    """Return the bytes of an operation that waits on 3 keys, with its timeout."""
    timer = SystemTimer("Bytes")
    purgatory = DelayedOperationPurgatory("Bytes", timer=timer, reaper_enabled=False)
    kept: list[Waiting | None] = [None] * count
    for keys in TRIPLES:
        purgatory.try_complete_else_watch(Waiting(), keys)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(count):
        operation = kept[number] = Waiting()
        purgatory.try_complete_else_watch(operation, TRIPLES[number % 100])
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    purgatory.close("leave")
    timer.close()
    return (after - before) / count


async def wake_by_purgatory(waiters: int) -> float:
    """Return the seconds in which one event wakes all."""
    async with AsyncPurgatory("Wake") as purgatory:
        ready = False
        tasks = [
            asyncio.create_task(purgatory.wait(["key"], lambda: ready, timeout=60))
            for _ in range(waiters)
        ]
        await asyncio.sleep(0.01)
        start_s = time.thread_time()
        ready = True
        purgatory.notify("key")
        await asyncio.gather(*tasks)
        return time.thread_time() - start_s


async def wake_by_condition(waiters: int) -> float:
    """The same with an ``asyncio.Condition``, and a timeout for each as well."""
    condition = asyncio.Condition()
    ready = False

    async def wait() -> None:
        async with condition:
            await condition.wait_for(lambda: ready)

    tasks = [asyncio.create_task(asyncio.wait_for(wait(), 60)) for _ in range(waiters)]
    await asyncio.sleep(0.01)
    start_s = time.thread_time()
    ready = True
    async with condition:
        condition.notify_all()
    await asyncio.gather(*tasks)
    return time.thread_time() - start_s


def wake_us(waiters: int) -> dict[str, float]:
    """Return microseconds for each waiter that is woken."""
    spent = in_turns(
        {
            "purgatory": lambda: {"s": asyncio.run(wake_by_purgatory(waiters))},
            "condition": lambda: {"s": asyncio.run(wake_by_condition(waiters))},
        },
        ROUNDS,
    )
    return {name: times["s"] / waiters * 1e6 for name, times in spent.items()}


def measure(size: Size = Size.USUAL) -> list[Figure]:
    outstanding = size.pick(1_000, 1_000_000)
    count = size.pick(200, 50_000)
    figures = []
    with kafka_classes(size) as kafka:
        if kafka is not None:
            kafka.warm_up(EVENTS, 1)
        for collector, measuring in (("off", collector_off), ("on", nullcontext)):
            with measuring():
                ns = cost_ns(outstanding, count, kafka)
            say(f"collector {collector}, ns: " + ", ".join(f"{n} {v:,.0f}" for n, v in ns.items()))
            figures += [
                Figure(
                    f"watch on 3 keys, complete by an event / {rival}, collector {collector}",
                    ns["operation"] / ns[rival],
                    "x",
                    {"call_later": 0.8, "Kafka's": 2.0}[rival] if collector == "off" else None,
                )
                for rival in ("call_later", "Kafka's")
                if rival in ns
            ]
    with collector_off():
        waiting = size.pick(10, 1_000)
        figures += [
            Figure(
                "check of one that can't complete", check_ns(waiting, size.pick(2, 50)), "ns", 45
            ),
            Figure(
                "advance that reaches none of 10,000",
                advance_ns(size.pick(10, 10_000), count),
                "ns",
                60,
            ),
        ]
    figures.append(
        Figure("memory of one on 3 keys", bytes_each(size.pick(10, 20_000)), "bytes", 350)
    )
    us = wake_us(size.pick(20, 10_000))
    return [
        *figures,
        Figure("AsyncPurgatory.wait, one of 10,000 that are woken", us["purgatory"], "us", 8),
        Figure("the same / asyncio.Condition", us["purgatory"] / us["condition"], "x", 1),
    ]


if __name__ == "__main__":
    run_alone(measure)
