"""The operations per second of a purgatory, and the cost of a check without effect.

    python -m tests.benchmarks.purgatory_throughput

Each operation is made, watched on 3 of 100 keys, and completed: by an event on one of its keys, or
by ``force_complete``. The rival is code as written by hand: lists of waiting objects by key
and a heap of deadlines, under one lock. The rival keeps none of the purgatory's promises: the
difference is their cost.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import defaultdict
from statistics import median

from purgatory import DelayedOperation, DelayedOperationPurgatory
from tests.benchmarks.measurement import Figure, Size, in_turns, run_alone, say, seconds
from timer import SystemTimer

ROUNDS = 7
WAITING = 1_000
KEYS = [f"topic-{number}" for number in range(100)]
TRIPLES = [(KEYS[n], KEYS[(n + 1) % 100], KEYS[(n + 2) % 100]) for n in range(100)]


class Waiting(DelayedOperation):
    """Completes once it is marked as ready."""

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


def by_event(purgatory: DelayedOperationPurgatory, operations: int) -> None:
    for number in range(operations):
        keys = TRIPLES[number % 100]
        operation = Waiting()
        purgatory.try_complete_else_watch(operation, keys)
        operation.ready = True
        purgatory.check_and_complete(keys[1])


def by_force(purgatory: DelayedOperationPurgatory, operations: int) -> None:
    for number in range(operations):
        operation = Waiting()
        purgatory.try_complete_else_watch(operation, TRIPLES[number % 100])
        operation.force_complete()


def by_hand(operations: int) -> None:
    rival = ByHand()
    for number in range(operations):
        keys = TRIPLES[number % 100]
        waiting = rival.submit(number, keys)
        waiting[0] = True
        for key in keys:  # all three, else the lists of the others grow without end
            rival.check(key)


def operations_per_s(operations: int) -> dict[str, float]:
    """Return the throughput of each way to complete an operation, on one thread."""
    timer = SystemTimer("Throughput")
    with DelayedOperationPurgatory("Throughput", timer=timer, reaper_enabled=False) as purgatory:
        ways = {
            "by an event": lambda: by_event(purgatory, operations),
            "by force_complete": lambda: by_force(purgatory, operations),
            "by hand": lambda: by_hand(operations),
        }
        spent = in_turns(
            {name: lambda way=way: {"s": seconds(way)} for name, way in ways.items()},  # type: ignore[misc]
            ROUNDS,
        )
    timer.close()
    return {name: operations / times["s"] for name, times in spent.items()}


def seconds_by_threads(threads: int, operations: int) -> float:
    """Return how long so many threads take for all, by the clock, on one purgatory."""
    timer = SystemTimer("Threads")
    with DelayedOperationPurgatory("Threads", timer=timer, reaper_enabled=False) as purgatory:
        workers = [
            threading.Thread(target=by_event, args=(purgatory, operations // threads))
            for _ in range(threads)
        ]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        spent_s = time.perf_counter() - start
    timer.close()
    return spent_s


def throughput_to_one_thread(operations: int) -> dict[int, float]:
    """Return the throughput of 2 and of 4 threads on one purgatory, as multiples of one's."""
    spent = in_turns(
        {
            str(threads): lambda threads=threads: {"s": seconds_by_threads(threads, operations)}  # type: ignore[misc]
            for threads in (1, 2, 4)
        },
        ROUNDS,
    )
    return {threads: spent["1"]["s"] / spent[str(threads)]["s"] for threads in (2, 4)}


def check_finds_nothing_us(repeats: int) -> float:
    """Return microseconds for each of 1,000 waiting operations that can't complete."""
    with DelayedOperationPurgatory("Check") as purgatory:
        for _ in range(WAITING):
            purgatory.try_complete_else_watch(Waiting(), ["key"])
        spent_s = median(
            seconds(lambda: [purgatory.check_and_complete("key") for _ in range(repeats)])
            for _ in range(ROUNDS)
        )
        purgatory.close("leave")
    return spent_s / repeats / WAITING * 1e6


def measure(size: Size = Size.USUAL) -> list[Figure]:
    per_s = operations_per_s(size.pick(200, 20_000))
    for name, value in per_s.items():
        say(f"{name:<18} {value:>9,.0f} operations/s, {value / per_s['by hand']:.2f} x by hand")
    by_threads = throughput_to_one_thread(size.pick(200, 20_000))
    watch = "watch on 3 of 100 keys, complete"
    return [
        Figure(f"{watch} by an event", per_s["by an event"], "op/s", 150_000, "higher"),
        Figure(f"{watch} by force_complete", per_s["by force_complete"], "op/s"),
        Figure("lists and a heap by hand, the same", per_s["by hand"], "op/s"),
        Figure(
            "check of one that can't complete, of 1,000",
            check_finds_nothing_us(size.pick(1, 50)),
            "us",
            0.5,
        ),
        *(
            Figure(f"{threads} threads on one purgatory / one thread", ratio, "x", 0.9, "higher")
            for threads, ratio in by_threads.items()
        ),
    ]


if __name__ == "__main__":
    run_alone(measure)
