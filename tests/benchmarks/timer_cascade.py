"""The longest pause of an add in one thread, while another moves 100,000 tasks to a finer level.

    python -m tests.benchmarks.timer_cascade

All tasks lie in one bucket of the fourth level, which falls due at once; nothing of it runs yet. A
timer that holds its lock while a bucket cascades, as Kafka's does, makes an add wait for all of it.

A thread of Python waits for the interpreter's own lock, too: 5 ms, its switch interval, each time
that another thread computes. The same adds are also measured beside a thread that never touches
a timer: the difference is the timer's share.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from statistics import median
from time import perf_counter

from tests.benchmarks.measurement import Figure, Size, collector_off, run_alone, say
from timer import InlineExecutor, ManualClock, SystemTimer

ROUNDS = 7
BUCKET_MS = 8_000
"""The tick of the fourth level: 20 * 20 * 20 ms."""


def nothing() -> None:
    """The callback of all tasks."""


class Busy:
    """A thread that computes until it is stopped, or has done its work."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.done = threading.Event()
        self.spent_s = 0.0
        self._work = work
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        start = perf_counter()
        self._work()
        self.spent_s = perf_counter() - start
        self.done.set()

    def join(self) -> None:
        self._thread.join()


def longest_add_s(timer: SystemTimer, busy: Busy) -> float:
    """Return the longest of the adds made while ``busy`` computes."""
    longest_s = 0.0
    add = timer.call_later
    while not busy.done.is_set():
        start = perf_counter()
        add(60_000, nothing)
        longest_s = max(longest_s, perf_counter() - start)
    busy.join()
    return longest_s


def beside_a_cascade(tasks: int) -> tuple[float, float]:
    """Return the longest add, and how long the cascade took."""
    clock = ManualClock()
    timer = SystemTimer("cascade", clock=clock, executor=InlineExecutor())
    choose = random.Random(tasks)
    for _ in range(tasks):
        # Not in the bucket's first 400 ms: those would run at once or cascade twice.
        timer.call_later(choose.randrange(BUCKET_MS + 400, 2 * BUCKET_MS), nothing)
    clock.advance_to(BUCKET_MS)
    busy = Busy(lambda: timer.advance_clock(0))
    longest_s = longest_add_s(timer, busy)
    timer.close()
    return longest_s, busy.spent_s


def beside_computing(spent_s: float) -> float:
    """Return the longest add while another thread computes for as long."""
    timer = SystemTimer("computing", clock=ManualClock())

    def compute() -> None:
        until = perf_counter() + spent_s
        while perf_counter() < until:
            sum(range(100))

    longest_s = longest_add_s(timer, Busy(compute))
    timer.close()
    return longest_s


def alone_s(tasks: int) -> float:
    """Return how long the cascade takes while nothing is added."""
    clock = ManualClock()
    timer = SystemTimer("alone", clock=clock, executor=InlineExecutor())
    for number in range(tasks):
        timer.call_later(BUCKET_MS + 400 + number % (BUCKET_MS - 400), nothing)
    clock.advance_to(BUCKET_MS)
    start = perf_counter()
    timer.advance_clock(0)
    spent_s = perf_counter() - start
    timer.close()
    return spent_s


def measure(size: Size = Size.USUAL) -> list[Figure]:
    tasks = size.pick(200, 100_000)
    with collector_off():
        cascades, computings, alone = [], [], []
        for _ in range(size.pick(1, ROUNDS)):
            longest_s, spent_s = beside_a_cascade(tasks)
            cascades.append(longest_s)
            computings.append(beside_computing(spent_s))
            alone.append(alone_s(tasks))
    say(f"the longest add of each round: {' '.join(f'{s * 1e3:.1f}' for s in cascades)} ms")
    return [
        Figure("longest add beside the cascade, worst round", max(cascades) * 1e3, "ms"),
        Figure("longest add beside the cascade, median round", median(cascades) * 1e3, "ms"),
        Figure("longest add beside a computing thread, median", median(computings) * 1e3, "ms"),
        Figure("the cascade, nothing beside it", median(alone) * 1e3, "ms"),
        Figure(
            "longest add / the cascade (1 under one lock)",
            median(cascades) / median(alone),
            "x",
            0.5,
        ),
    ]


if __name__ == "__main__":
    run_alone(measure)
