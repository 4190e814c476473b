"""A purgatory on a timer that its user wrote: the timer knows nothing of its operations."""

from __future__ import annotations

import heapq
import threading
from itertools import count

from purgatory import DelayedOperationPurgatory, Outcome
from tests.unit.core.probe import Probe
from timer import ManualClock, Timer, TimerTask


class HeapTimer(Timer):
    """A heap of tasks. A task that was cancelled or added again comes all the same."""

    def __init__(self) -> None:
        self.clock: ManualClock = ManualClock()
        self._numbers = count()
        self._heap: list[tuple[int, int, TimerTask]] = []

    def add(self, task: TimerTask) -> None:
        due_ns = self.clock.now_ns() + task.delay_ms * 1_000_000
        heapq.heappush(self._heap, (due_ns, next(self._numbers), task))

    def advance_clock(self, timeout_ms: int) -> bool:
        self.clock.advance(timeout_ms)
        due = []
        while self._heap and self._heap[0][0] <= self.clock.now_ns():
            due.append(heapq.heappop(self._heap)[2])
        for task in due:
            task.run()
        return bool(due)

    @property
    def size(self) -> int:
        return len(self._heap)

    def close(self) -> int:
        dropped, self._heap = len(self._heap), []
        return dropped


def test_users_timer_completes_and_expires_operations() -> None:
    timer = HeapTimer()
    with DelayedOperationPurgatory("own", timer, reaper_enabled=False) as purgatory:
        first, second = Probe(10), Probe(20)
        for operation in (first, second):
            purgatory.try_complete_else_watch(operation, ["a"])
        timer.advance_clock(10)
        assert first.outcome is Outcome.EXPIRED
        second.ready = True
        purgatory.check_and_complete("a")
        timer.advance_clock(10)
        assert second.outcome is Outcome.COMPLETED
        assert purgatory.num_delayed == 0


def test_retry_on_a_users_timer_finds_the_lock_free() -> None:
    timer = HeapTimer()
    lock = threading.Lock()
    with DelayedOperationPurgatory("own", timer, reaper_enabled=False) as purgatory:
        operation = Probe(lock=lock)
        purgatory.try_complete_else_watch(operation, ["a"])
        operation.ready = True
        with lock:
            for _ in range(3):
                purgatory.check_and_complete("a")  # not round and round
            for _ in range(10):
                timer.advance_clock(10)
            assert not operation.is_completed
        timer.advance_clock(100)
        assert operation.outcome is Outcome.COMPLETED
        assert operation.calls.count("on_complete") == 1
        purgatory._check()
