"""The memory of a timer when nearly all timeouts are cancelled soon, as a server's are.

    python -m tests.benchmarks.timer_memory

100,000 adds per second of virtual time, each with a timeout of 30 s; 99% are cancelled after 20 ms,
the others expire. From the 30th second on 32,000 are pending: 2,000 that are younger than 20 ms,
and 1% of those added in 30 s. The memory at the worst moment of the following seconds is
compared with the pending timeouts: in timeouts alive, and in bytes (all that Python allocated, by
tracemalloc), where the measure is a new timer with just the pending ones.

asyncio's loop runs in virtual time too, and keeps a cancelled handle in its heap until it falls
due, or until more than half of the heap is cancelled.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections import deque
from typing import Any

from tests.benchmarks.measurement import Figure, Size, run_alone, say
from tests.benchmarks.rivals import Asyncio, Rival, Wheel

ADDS_PER_MS = 100
CANCELLED_PER_MS = 99
ANSWER_MS = 20


class Server:
    """Adds timeouts to a rival in virtual time, and holds what may yet be answered."""

    def __init__(self, rival: Rival, timeout_ms: int) -> None:
        self.rival = rival
        self.timeout_ms = timeout_ms
        self.now_ms = 0
        self.unanswered: deque[list[Any]] = deque()

    def one_ms(self) -> None:
        rival = self.rival
        self.unanswered.append([rival.add(self.timeout_ms) for _ in range(ADDS_PER_MS)])
        if len(self.unanswered) > ANSWER_MS:
            for timeout in self.unanswered.popleft()[:CANCELLED_PER_MS]:
                rival.cancel(timeout)
        self.now_ms += 1
        rival.advance_to(self.now_ms)

    def hold_what_is_pending(self) -> int:
        """Add what is pending after a long run, and nothing else; return how many that is."""
        add = self.rival.add
        survivors = ADDS_PER_MS - CANCELLED_PER_MS
        for age_ms in range(ANSWER_MS, self.timeout_ms):
            for _ in range(survivors):
                add(self.timeout_ms - age_ms)
        for age_ms in range(ANSWER_MS):
            added = [add(self.timeout_ms - age_ms) for _ in range(ADDS_PER_MS)]
            self.unanswered.append(added)
        return survivors * (self.timeout_ms - ANSWER_MS) + ADDS_PER_MS * ANSWER_MS

    def alive(self) -> int:
        """Count the timeouts in memory."""
        kind = type(self.unanswered[-1][-1])
        return sum(type(thing) is kind for thing in gc.get_objects())


def needed(kind: type[Rival], timeout_ms: int) -> dict[str, float]:
    """Return what a new timer takes that holds just what is pending."""
    server = Server(kind(), timeout_ms)
    before, _ = tracemalloc.get_traced_memory()
    pending = server.hold_what_is_pending()
    after, _ = tracemalloc.get_traced_memory()
    server.rival.close()
    return {"timeouts": pending, "bytes": after - before}


def kept(kind: type[Rival], timeout_ms: int, observed_ms: int) -> dict[str, float]:
    """Return what a timer keeps in its steady state, at the worst of the observed moments."""
    server = Server(kind(), timeout_ms)
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(timeout_ms):
        server.one_ms()
    timeouts = size_bytes = 0
    look_ms = max(1, observed_ms // 10)
    for now_ms in range(observed_ms):
        server.one_ms()
        size_bytes = max(size_bytes, tracemalloc.get_traced_memory()[0] - before)
        if now_ms % look_ms == 0:
            timeouts = max(timeouts, server.alive())
    server.rival.close()
    return {"timeouts": timeouts, "bytes": size_bytes}


def measure(size: Size = Size.USUAL) -> list[Figure]:
    timeout_ms = size.pick(100, 30_000)
    # The wheel's dicts grow and are rebuilt over 8 s, one bucket of its fourth level; asyncio's
    # heap is rebuilt several times a second.
    observed_ms = {"wheel": size.pick(20, 8_000), "asyncio": size.pick(20, 1_000)}
    figures = []
    tracemalloc.start()
    for name, kind, most in (("wheel", Wheel, 1.1), ("asyncio", Asyncio, None)):
        least = needed(kind, timeout_ms)
        gc.collect()
        found = kept(kind, timeout_ms, observed_ms[name])
        gc.collect()
        for what in ("timeouts", "bytes"):
            say(f"{name}: {found[what]:,} {what} in memory, {least[what]:,} needed")
            ratio = found[what] / least[what]
            figures.append(Figure(f"{name}: {what} in memory / needed", ratio, "x", most))
    tracemalloc.stop()
    return figures


if __name__ == "__main__":
    run_alone(measure)
