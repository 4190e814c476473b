"""The speed of a virtual world beside the clock's, and the cost of its start.

    python -m tests.benchmarks.world_speed

Each world has a cluster of three brokers and clients of aiokafka, unchanged. In an idle one ten
consumers in a group wait for records that never come: of a topic with six partitions, so that four
of them have none, with ten, and with twenty, so that each asks two brokers. In a busy one producers
send 1,000 produce requests a second, of one record each. Told is how many seconds of the world went
by in one second of the processor, and beside it in one by the clock, which counts also what other
work on the machine takes. A start is a world that is entered, has its cluster, and is left again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from purgatory.virtual import World
from purgatory.virtual.clocks import real_perf_counter
from tests.benchmarks.measurement import Figure, Size, run_alone, say

_CONSUMERS = 10
_IDLE_PARTITIONS = (6, 10, 20)
_PARTITIONS = 20
_PRODUCERS = 20
_PER_S = 1_000


@dataclass(frozen=True)
class Taken:
    """Time used, of the processor and by the clock."""

    processor_s: float
    clock_s: float


class Stopwatch:
    """Measures in the machine's time, also within a world, which has no time of the processor."""

    def __init__(self) -> None:
        self._processor_s, self._clock_s = time.process_time(), real_perf_counter()

    def taken(self) -> Taken:
        return Taken(time.process_time() - self._processor_s, real_perf_counter() - self._clock_s)


async def _idle(
    servers: str, seconds: float, partitions: int = _PARTITIONS, **settings: Any
) -> Taken:
    """Have a group of consumers wait, from when all partitions have been given to them."""
    async with AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(
                AIOKafkaConsumer(
                    "orders", bootstrap_servers=servers, group_id="billing", **settings
                )
            )
            for _ in range(_CONSUMERS)
        ]
        most = -(-partitions // _CONSUMERS)
        while True:
            assigned = [len(one.assignment()) for one in consumers]
            if sum(assigned) == partitions and max(assigned) == most:
                break
            await asyncio.sleep(1)
        # A consumer that does not poll for five minutes is removed, and loses its partitions.
        waiting = [asyncio.create_task(one.getone()) for one in consumers]
        watch = Stopwatch()
        await asyncio.sleep(seconds)
        taken = watch.taken()
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
        return taken


async def _busy(servers: str, seconds: float) -> Taken:
    """Have producers send, each record in a request of its own."""
    async with AsyncExitStack() as stack:
        producers = [
            await stack.enter_async_context(
                AIOKafkaProducer(bootstrap_servers=servers, acks="all", max_batch_size=1)
            )
            for _ in range(_PRODUCERS)
        ]
        each = round(seconds * _PER_S / _PRODUCERS)

        async def send(number: int, producer: AIOKafkaProducer) -> None:
            for count in range(each):
                await producer.send_and_wait("orders", b"x" * 100, partition=number % _PARTITIONS)
                due_s = began_s + (count + 1) * _PRODUCERS / _PER_S
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))

        watch, began_s = Stopwatch(), time.monotonic()
        await asyncio.gather(*(send(*one) for one in enumerate(producers)))
        took_s = time.monotonic() - began_s
        assert abs(took_s - seconds) < 0.1 + 0.01 * seconds, "it kept to its rate"
        return watch.taken()


def run(
    application: Callable[[str, float], Awaitable[Taken]],
    seconds: float,
    partitions: int = _PARTITIONS,
) -> Taken:
    """Run it in a world, and return what so many of the world's seconds took."""

    async def running() -> Taken:
        return await application(cluster.bootstrap_servers, seconds)

    with World(1) as world:
        cluster = world.cluster(brokers=3, topics={"orders": partitions})
        world.network.latency("0.2ms..2ms")
        return world.run(running())


def starts(count: int) -> Taken:
    """Start so many worlds, and return what that took."""
    watch = Stopwatch()
    for seed in range(count):
        with World(seed) as world:
            world.cluster(brokers=3, topics={"orders": 6})
    return watch.taken()


def measure(size: Size = Size.USUAL) -> list[Figure]:
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    idle_s, busy_s = size.pick(20, 1_800), size.pick(0.5, 60)
    run(_busy, 0.2)  # what is imported and compiled once
    idle = {
        partitions: run(partial(_idle, partitions=partitions), idle_s, partitions)
        for partitions in _IDLE_PARTITIONS
    }
    busy = run(_busy, busy_s)
    patient = run(partial(_idle, fetch_max_wait_ms=5_000), idle_s)
    count = size.pick(2, 1_000)
    started = starts(count)
    say(f"busy: {busy_s:,} s of the world, {busy.processor_s:.1f} s of the processor")
    figures = []
    for partitions, taken in idle.items():
        say(f"idle: {idle_s:,} s of the world, {taken.processor_s:.1f} s of the processor")
        name = f"3 brokers, {_CONSUMERS} idle consumers of {partitions} partitions"
        figures += [
            Figure(f"{name}: the world's time", idle_s / taken.processor_s, "x", 150, "higher"),
            Figure(f"{name}, by the clock", idle_s / taken.clock_s, "x"),
        ]
    return [
        *figures,
        Figure(
            f"consumers of {_PARTITIONS} that have 5 s for a fetch",
            idle_s / patient.processor_s,
            "x",
        ),
        Figure(
            f"3 brokers under {_PER_S:,} produce requests a second: the world's time",
            busy_s / busy.processor_s,
            "x",
            5,
            "higher",
        ),
        Figure("those requests, by the clock", busy_s / busy.clock_s, "x"),
        Figure(f"{count:,} starts of a world with 3 brokers", started.processor_s, "s", 20),
        Figure("those starts, by the clock", started.clock_s, "s"),
    ]


if __name__ == "__main__":
    run_alone(measure)
