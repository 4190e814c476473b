"""The longest stall of a caller while 1,000,000 pending tasks expire within one second.

    python -m tests.benchmarks.timer_stall

One thread drives the timer as a purgatory's reaper does, and the timer's worker runs the tasks.
From the first moment at which one is due until all have run, another thread adds a timeout and
cancels it, over and over, and records the longest. asyncio has as many handles, and a
coroutine that does the same once in each turn of the loop.

A thread also waits for the interpreter's own lock, up to its switch interval of 5 ms for each
thread that is before it. The same calls are also made beside two threads that compute and touch no
timer, and while tasks expire with a tenth of that interval: the part that shrinks with it is the
interpreter's share.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from tests.benchmarks.measurement import Figure, Size, collector_off, in_turns, run_alone, say
from tests.benchmarks.timer_cascade import Busy, nothing
from timer import SystemTimer

ROUNDS = 3
SHORT_INTERVAL_S = 0.0005


@contextmanager
def switch_interval(interval_s: float) -> Iterator[None]:
    """Let threads change after at most that long."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(interval_s)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


def longest_call_s(timer: SystemTimer, over: threading.Event) -> float:
    """Return the longest that adding and cancelling a timeout took, until ``over``."""
    longest_s = 0.0
    while not over.is_set():
        start_s = perf_counter()
        timer.call_later(60_000, nothing).cancel()
        longest_s = max(longest_s, perf_counter() - start_s)
    return longest_s


def beside_expiries(tasks: int, lead_ms: int, window_ms: int) -> float:
    """Return the longest call while all expire.

    Args:
        tasks: how many expire.
        lead_ms: when the first of them is due, from the start on: they are added until then.
        window_ms: in how long a time all become due.
    """
    timer = SystemTimer("stall")
    over = threading.Event()
    first_ns = time.monotonic_ns() + lead_ms * 1_000_000

    def due_in_ms(number: int) -> int:
        due_ns = first_ns + number * window_ms * 1_000_000 // tasks
        return max(0, due_ns - time.monotonic_ns()) // 1_000_000

    for number in range(tasks):
        timer.call_later(due_in_ms(number), nothing)
    if time.monotonic_ns() > first_ns:
        say(f"adding took longer than {lead_ms} ms: some tasks were due before all were added")

    def drive() -> None:
        while not over.is_set():
            timer.advance_clock(200)

    def tell_the_end() -> None:
        if timer.size > 1:  # one: what the caller is about to cancel
            timer.call_later(1, tell_the_end)
        else:
            over.set()

    driver = threading.Thread(target=drive)
    timer.call_later(due_in_ms(tasks), tell_the_end)
    time.sleep(due_in_ms(0) / 1e3)
    driver.start()
    longest_s = longest_call_s(timer, over)
    driver.join()
    timer.close()
    return longest_s


def beside_computing(spent_s: float) -> float:
    """Return the longest call while two other threads compute."""
    timer = SystemTimer("computing")

    def compute() -> None:
        until_s = perf_counter() + spent_s
        while perf_counter() < until_s:
            sum(range(100))

    busy = [Busy(compute), Busy(compute)]
    longest_s = longest_call_s(timer, busy[0].done)
    for one in busy:
        one.join()
    timer.close()
    return longest_s


async def on_a_loop(tasks: int, lead_ms: int, window_ms: int) -> float:
    """Return the longest turn of an asyncio loop while all expire, a call of it included."""
    loop = asyncio.get_running_loop()
    first_s = loop.time() + lead_ms / 1e3
    left = tasks

    def expire() -> None:
        nonlocal left
        left -= 1

    for number in range(tasks):
        loop.call_at(first_s + number * window_ms / 1e3 / tasks, expire)
    await asyncio.sleep(first_s - loop.time())
    longest_s = 0.0
    while left:
        start_s = perf_counter()
        loop.call_later(60, nothing).cancel()
        await asyncio.sleep(0)
        longest_s = max(longest_s, perf_counter() - start_s)
    return longest_s


def measure(size: Size = Size.USUAL) -> list[Figure]:
    tasks = size.pick(500, 1_000_000)
    lead_ms = size.pick(20, 8_000)
    window_ms = size.pick(20, 1_000)
    expiries = (tasks, lead_ms, window_ms)

    def with_short_interval() -> float:
        with switch_interval(SHORT_INTERVAL_S):
            return beside_expiries(*expiries)

    with collector_off():
        ms = in_turns(
            {
                "wheel": lambda: {"ms": beside_expiries(*expiries) * 1e3},
                "short": lambda: {"ms": with_short_interval() * 1e3},
                "computing": lambda: {"ms": beside_computing(window_ms / 1e3) * 1e3},
                "asyncio": lambda: {"ms": asyncio.run(on_a_loop(*expiries)) * 1e3},
            },
            size.pick(1, ROUNDS),
        )
    return [
        Figure("longest call while 1,000,000 expire in a second", ms["wheel"]["ms"], "ms", 5),
        Figure("the same, switch interval 0.5 ms", ms["short"]["ms"], "ms"),
        Figure("beside two computing threads, switch interval 5 ms", ms["computing"]["ms"], "ms"),
        Figure("longest turn of an asyncio loop", ms["asyncio"]["ms"], "ms"),
    ]


if __name__ == "__main__":
    run_alone(measure)
