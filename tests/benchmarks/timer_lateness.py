"""The lateness of tasks in real time: a thread that drives the timer, and its default executor.

    python -m tests.benchmarks.timer_lateness

One thread adds 1,000 tasks per second, with delays of 1 to 1,000 ms; a second one drives the timer
as a purgatory's reaper does; the timer's worker runs them. A task's lateness is counted from the
very nanosecond it was due, delay after the call of ``add``: the rounding up to the next millisecond
is part of it (half a millisecond on average). asyncio does the same on its one thread.

Needs an idle machine: what else runs on it delays the tasks, too.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from dataclasses import dataclass, field
from functools import partial

from tests.benchmarks.measurement import Figure, Size, run_alone
from timer import SystemTimer

PER_S = 1_000
REAPER_WAIT_MS = 200
NS_PER_MS = 1_000_000


@dataclass
class Lateness:
    """The observed latenesses, in nanoseconds."""

    observed_ns: list[int] = field(default_factory=list)

    def observe(self, due_ns: int) -> None:
        """Be the task: record how late it is."""
        self.observed_ns.append(time.monotonic_ns() - due_ns)

    def percentile_ms(self, percent: float) -> float:
        ordered = sorted(self.observed_ns)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] / NS_PER_MS

    @property
    def early(self) -> int:
        return sum(late_ns < 0 for late_ns in self.observed_ns)


def delays_ms(count: int, most_ms: int) -> list[int]:
    choose = random.Random(count)
    return [choose.randint(1, most_ms) for _ in range(count)]


def wait_for_turn_s(number: int, start_ns: int) -> float:
    """Return how long to sleep until add ``number`` has its turn."""
    return max(0.0, (start_ns + number * 1_000_000_000 // PER_S - time.monotonic_ns()) / 1e9)


def of_the_timer(count: int, most_ms: int) -> Lateness:
    lateness = Lateness()
    timer = SystemTimer("lateness")
    stop = threading.Event()

    def reap() -> None:
        while not stop.is_set():
            timer.advance_clock(REAPER_WAIT_MS)

    reaper = threading.Thread(target=reap)
    reaper.start()
    start_ns = time.monotonic_ns()
    for number, delay_ms in enumerate(delays_ms(count, most_ms)):
        time.sleep(wait_for_turn_s(number, start_ns))
        due_ns = time.monotonic_ns() + delay_ms * NS_PER_MS
        timer.call_later(delay_ms, lateness.observe, due_ns)
    while timer.size:
        time.sleep(0.01)
    stop.set()
    reaper.join()
    timer.close()
    return lateness


async def of_asyncio(count: int, most_ms: int) -> Lateness:
    lateness = Lateness()
    loop = asyncio.get_running_loop()
    start_ns = time.monotonic_ns()
    for number, delay_ms in enumerate(delays_ms(count, most_ms)):
        await asyncio.sleep(wait_for_turn_s(number, start_ns))
        due_ns = time.monotonic_ns() + delay_ms * NS_PER_MS
        loop.call_later(delay_ms / 1_000, partial(lateness.observe, due_ns))
    while len(lateness.observed_ns) < count:
        await asyncio.sleep(0.01)
    return lateness


def measure(size: Size = Size.USUAL) -> list[Figure]:
    count = size.pick(20, 10 * PER_S)
    most_ms = size.pick(20, 1_000)
    ours = of_the_timer(count, most_ms)
    assert len(ours.observed_ns) == count
    theirs = asyncio.run(of_asyncio(count, most_ms))
    return [
        Figure("tasks that ran early", ours.early, "", 0),
        Figure("lateness, p50", ours.percentile_ms(50), "ms"),
        Figure("lateness, p99", ours.percentile_ms(99), "ms", 5),
        Figure("lateness, max", ours.percentile_ms(100), "ms"),
        Figure("asyncio: tasks that ran early", theirs.early, ""),
        Figure("asyncio: lateness, p50", theirs.percentile_ms(50), "ms"),
        Figure("asyncio: lateness, p99", theirs.percentile_ms(99), "ms"),
        Figure("asyncio: lateness, max", theirs.percentile_ms(100), "ms"),
    ]


if __name__ == "__main__":
    run_alone(measure)
