"""How many operations a second a purgatory takes, and what a check that finds nothing costs.

    python tests/benchmarks/purgatory_throughput.py

Each operation is made, watched on 3 of 100 keys, and completed: by an event on one of its keys, or
by ``force_complete``. The rival is what one would write by hand: lists of waiting objects by key
and a heap of deadlines, under one lock. It keeps none of the purgatory's promises: it shows what
they cost.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median

from purgatory import DelayedOperation, DelayedOperationPurgatory
from timer import SystemTimer

ROUNDS = 7
OPERATIONS = 20_000
WAITING = 1_000
KEYS = [f"topic-{number}" for number in range(100)]
TRIPLES = [(KEYS[n], KEYS[(n + 1) % 100], KEYS[(n + 2) % 100]) for n in range(100)]


class Waiting(DelayedOperation):
    """Completes once told that it is ready."""

    __slots__ = ("ready",)

    def __init__(self) -> None:
        super().__init__(30_000)
        self.ready = False

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()


class ByHand:
    """Lists of waiting objects by key, and a heap of deadlines."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lists: defaultdict[str, list[list[bool]]] = defaultdict(list)
        self.deadlines: list[tuple[float, int, list[bool]]] = []

    def submit(self, number: int, keys: tuple[str, ...]) -> list[bool]:
        waiting = [False, False]  # ready, done
        with self.lock:
            for key in keys:
                self.lists[key].append(waiting)
            heapq.heappush(self.deadlines, (time.monotonic() + 30, number, waiting))
        return waiting

    def check(self, key: str) -> None:
        with self.lock:
            for waiting in list(self.lists[key]):
                if waiting[0] and not waiting[1]:
                    waiting[1] = True
            self.lists[key] = [waiting for waiting in self.lists[key] if not waiting[1]]


def by_event(purgatory: DelayedOperationPurgatory) -> None:
    for number in range(OPERATIONS):
        keys = TRIPLES[number % 100]
        operation = Waiting()
        purgatory.try_complete_else_watch(operation, keys)
        operation.ready = True
        purgatory.check_and_complete(keys[1])


def by_force(purgatory: DelayedOperationPurgatory) -> None:
    for number in range(OPERATIONS):
        operation = Waiting()
        purgatory.try_complete_else_watch(operation, TRIPLES[number % 100])
        operation.force_complete()


def by_hand(rival: ByHand) -> None:
    for number in range(OPERATIONS):
        keys = TRIPLES[number % 100]
        waiting = rival.submit(number, keys)
        waiting[0] = True
        for key in keys:  # all three, else the lists of the others grow without end
            rival.check(key)


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def check_finds_nothing() -> float:
    """Return nanoseconds for each of 1,000 waiting operations that can't complete."""
    with DelayedOperationPurgatory("Check") as purgatory:
        for _ in range(WAITING):
            purgatory.try_complete_else_watch(Waiting(), ["key"])
        repeats = 50
        spent = median(
            seconds(lambda: [purgatory.check_and_complete("key") for _ in range(repeats)])
            for _ in range(ROUNDS)
        )
        purgatory.close("leave")
    return spent / repeats / WAITING * 1e9


def main() -> None:
    spent: dict[str, list[float]] = defaultdict(list)
    timer = SystemTimer("Throughput")
    with DelayedOperationPurgatory("Throughput", timer=timer, reaper_enabled=False) as purgatory:
        for _ in range(ROUNDS):
            spent["by an event"].append(seconds(lambda: by_event(purgatory)))
            spent["by force_complete"].append(seconds(lambda: by_force(purgatory)))
            rival = ByHand()
            spent["by hand"].append(seconds(lambda rival=rival: by_hand(rival)))  # type: ignore[misc]
    timer.close()
    rival_us = median(spent["by hand"]) / OPERATIONS * 1e6
    print("watch on 3 of 100 keys, then complete (one thread)")
    for name, times in spent.items():
        each_us = median(times) / OPERATIONS * 1e6
        print(
            f"  {name:<18} {1e6 / each_us:>9,.0f} operations/s {each_us:6.2f} us each, "
            f"{each_us / rival_us:.2f} x by hand"
        )
    print("check_and_complete over 1,000 waiting operations that can't complete")
    print(f"  {check_finds_nothing() / 1e3:.3f} us each")


if __name__ == "__main__":
    main()
