"""A broker's timing wheel as a trace tells it: where each operation lies, where the hand stands.

It is `timer.timing_wheel` without what a running timer needs: no tasks, locks or callbacks, and
operations that are numbers. All levels stand where the finest one does, rounded down to their own
tick, so one time tells where all are. Tests hold it to `SystemTimer` and to simulated brokers'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

Place = tuple[int, int]
"""A level, from 1, and a bucket of it; (0, 0): on no wheel."""

NOWHERE: Place = (0, 0)


class ReplayedWheel:
    """All levels of a wheel.

    Args:
        tick_ms: the width of the finest buckets.
        size: buckets for each level.
        start_ms: the time at the start.
    """

    def __init__(self, tick_ms: int, size: int, start_ms: int) -> None:
        self.tick_ms = tick_ms
        self.size = size
        self.clock_ms = start_ms - start_ms % tick_ms
        self.levels = 1
        self.runs = True
        """False: its broker is paused, or dead."""
        self.target_ms = -1
        """How far it is to advance still."""
        self._queue: list[tuple[int, int]] = []
        self._buckets: dict[tuple[int, int], list[tuple[int, int]]] = {}

    @property
    def first_ms(self) -> int | None:
        """When the first bucket is due, be it empty or not."""
        return self._queue[0][0] if self._queue else None

    def add(self, operation: int, due_ms: int) -> Place:
        """Put an operation into its bucket; NOWHERE: it is due already. O(levels)."""
        clock_ms, tick_ms, level = self.clock_ms, self.tick_ms, 1
        if due_ms < clock_ms + tick_ms:
            return NOWHERE
        while due_ms >= clock_ms - clock_ms % tick_ms + tick_ms * self.size:
            tick_ms *= self.size
            level += 1
        if level > self.levels:
            self.levels = level
        number = due_ms // tick_ms
        key = (number * tick_ms, level)
        held = self._buckets.get(key)
        if held is None:
            self._buckets[key] = [(operation, due_ms)]
            heappush(self._queue, key)
        else:
            held.append((operation, due_ms))
        return level, number % self.size

    def advance(self, to_ms: int, has_left: Sequence[int]) -> Iterator[tuple[int, Place]]:
        """Take the buckets that are due by a time; tell where what they held belongs now.

        Args:
            to_ms: the time.
            has_left: for each operation, whether it was taken off meanwhile: its bucket stays
                queued, but it falls no more.
        """
        while self._queue and self._queue[0][0] <= to_ms:
            key = heappop(self._queue)
            begin_ms, level = key
            held = self._buckets.pop(key)
            self.clock_ms = max(self.clock_ms, begin_ms)
            for operation, due_ms in held:
                if not has_left[operation]:
                    yield operation, NOWHERE if level == 1 else self.add(operation, due_ms)


def levels_of(tick_ms: int, size: int, clock_ms: int, levels: int) -> list[dict[str, object]]:
    """Describe the levels of a wheel whose time is ``clock_ms``, the finest first."""
    described: list[dict[str, object]] = []
    for level in range(1, levels + 1):
        begin_ms = clock_ms - clock_ms % tick_ms
        described.append(
            {"level": level, "tick_ms": tick_ms, "covers_ms": [begin_ms, begin_ms + tick_ms * size]}
        )
        tick_ms *= size
    return described
