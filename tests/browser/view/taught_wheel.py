"""The listing of the page that teaches the wheel, run as Python: which lines does each step run?

The listing is taken at its word. Around it stands only what it calls: tasks, buckets, a queue.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

from purgatory.view.wheel import Step


class Bucket:
    """A bucket, as the listing uses it."""

    def __init__(self) -> None:
        self.expiration_ms = -1
        self.held: list[tuple[Task, int]] = []

    def add(self, task: Task, expiration_ms: int) -> None:
        self.held.append((task, expiration_ms))

    def empty(self) -> list[tuple[Task, int]]:
        held, self.held, self.expiration_ms = self.held, [], -1
        return held


class Queue:
    """The buckets in use."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Bucket]] = []
        self.number = 0

    def offer(self, bucket: Bucket, begin_ms: int) -> None:
        bucket.expiration_ms = begin_ms
        self.number += 1
        heapq.heappush(self.heap, (begin_ms, self.number, bucket))

    def first_due(self, now_ms: int) -> tuple[int, Bucket]:
        begin_ms, _, bucket = heapq.heappop(self.heap)
        assert begin_ms <= now_ms
        return begin_ms, bucket


class Wheel:
    """A level."""

    def __init__(self, tick_ms: int, size: int, queue: Queue, time_ms: int = 0) -> None:
        self.tick_ms, self.wheel_size, self.queue = tick_ms, size, queue
        self.current_time_ms = time_ms - time_ms % tick_ms
        self.end_ms = self.current_time_ms + tick_ms * size
        self.buckets = [Bucket() for _ in range(size)]
        self.overflow_wheel: Wheel | None = None


class Task:
    """A task that notes that it ran."""

    def __init__(self, number: int, delay_ms: int, ran: list[int]) -> None:
        self.number, self.delay_ms, self.ran = number, delay_ms, ran

    def run(self) -> None:
        self.ran.append(self.number)


class Timer:
    """The listing's `timer`."""

    def __init__(self, tick_ms: int, size: int) -> None:
        self.queue = Queue()
        self.wheel = Wheel(tick_ms, size, self.queue)
        self.now_ms = 0


def add_overflow_wheel(wheel: Wheel) -> Wheel:
    """Make the level above."""
    range_ms = wheel.tick_ms * wheel.wheel_size
    wheel.overflow_wheel = Wheel(range_ms, wheel.wheel_size, wheel.queue, wheel.current_time_ms)
    return wheel.overflow_wheel


def lines_run(code: set[CodeType], act: Callable[[], object]) -> set[int]:
    """The lines of these functions, from 0, that an act runs."""
    lines: set[int] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code not in code:
            return None
        if event == "line":
            lines.add(frame.f_lineno - 1)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return lines


def runs_of_listing(listing: str, steps: Sequence[Step]) -> list[set[int]]:
    """Take a walk's steps with the listing: the lines of each, once the result was compared."""
    first = steps[0]["state"]["levels"][0]
    timer = Timer(first["tick_ms"], len(first["buckets"]))
    names: dict[str, Any] = {"add_overflow_wheel": add_overflow_wheel}
    exec(compile(listing, "listing", "exec"), names)
    functions = [names[name] for name in ("add", "insert", "poll", "advance_clock")]
    code = {function.__code__ for function in functions}
    add, _, poll, _ = functions
    runs: list[set[int]] = [set()]
    for step in steps[1:]:
        ran: list[int] = []
        lines = set()
        if "task" in step:
            task = Task(step["task"], step["delay_ms"], ran)
            lines = lines_run(code, lambda task=task: add(timer, task))  # type: ignore[misc]
        else:
            timer.now_ms = step["clock_ms"]
            for _ in step["polled"]:
                for held in (held for level in _levels(timer.wheel) for held in level.buckets):
                    for task, _due in held.held:
                        task.ran = ran
                lines |= lines_run(code, lambda: poll(timer))
        assert ran == step.get("ran", [])
        held_now = [
            {"expiration_ms": one.expiration_ms, "tasks": [task.number for task, _ in one.held]}
            for level in _levels(timer.wheel)
            for one in level.buckets
        ]
        assert held_now == [one for level in step["state"]["levels"] for one in level["buckets"]]
        runs.append(lines)
    return runs


def _levels(wheel: Wheel) -> list[Wheel]:
    levels = [wheel]
    while (above := levels[-1].overflow_wheel) is not None:
        levels.append(above)
    return levels
