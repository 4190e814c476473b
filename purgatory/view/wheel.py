"""A walk of a timing wheel: tasks are inserted, time advances, and each step is plain data.

A step is the difference of two snapshots of the timer: a bucket that left the delay queue was
polled, and a task of it that is still pending was inserted again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from purgatory.settings.typed_duration import duration_between
from timer import InlineExecutor, ManualClock, SystemTimer, TimerTask
from timer.clock import NS_PER_MS
from timer.snapshot import QueuedBucketSnapshot, TimerSnapshot

MAX_BUCKETS = 100
"""Of a level."""
MAX_TASKS = 50
MAX_DRAWN = 50_000
"""Buckets of all levels in all steps: some megabytes, made within a tenth of a second."""
_MAX_DURATION = "1000h"
_LATEST_MS = 10**15


class PolledBucket(TypedDict):
    """A bucket that was due: its level, from 1, and its place in the wheel, from 0."""

    level: int
    bucket: int


class Step(TypedDict):
    """One event, its effects, and the state of the timer after it.

    An insertion has ``task``, ``delay_ms`` and ``expiration_ms``, and ``ran`` if the task was due
    at once. An advance has ``clock_ms``, ``polled``, ``reinserted`` and ``ran``.
    """

    event: str
    task: NotRequired[int]
    delay_ms: NotRequired[int]
    expiration_ms: NotRequired[int]
    clock_ms: NotRequired[int]
    polled: NotRequired[list[PolledBucket]]
    reinserted: NotRequired[list[int]]
    ran: NotRequired[list[int]]
    state: TimerSnapshot


class NumberedTask(TimerTask):
    """A task that records its number, from 1, when it runs."""

    def __init__(self, number: int, delay_ms: int, ran: list[int]) -> None:
        super().__init__(delay_ms)
        self.number = number
        self._ran = ran

    def run(self) -> None:
        self._ran.append(self.number)


class WheelWalk:
    """A timer with numbered tasks; each step returns its effects."""

    def __init__(self, tick_ms: int, wheel_size: int, clock: ManualClock) -> None:
        self.clock = clock
        self.timer = SystemTimer("wheel", tick_ms, wheel_size, clock, InlineExecutor())
        self._ran: list[int] = []
        self._last = self._snapshot()

    def start(self) -> Step:
        """Return the empty wheel."""
        return {"event": "start", "state": self._last}

    def insert(self, number: int, delay_ms: int) -> Step:
        """Add task ``number``, due in ``delay_ms`` milliseconds."""
        # As the timer does it: rounded up to a whole millisecond.
        expiration_ms = delay_ms - (-self.clock.now_ns() // NS_PER_MS)
        self.timer.add(NumberedTask(number, delay_ms, self._ran))
        run_tasks = self._drain_run_tasks()
        self._last = self._snapshot()
        step: Step = {
            "event": f"insert task {number}",
            "task": number,
            "delay_ms": delay_ms,
            "expiration_ms": expiration_ms,
            "state": self._last,
        }
        if run_tasks:
            step["ran"] = run_tasks
        return step

    def advance(self) -> Step | None:
        """Process the buckets that are due; None if there are none."""
        if not self.timer.advance_clock(0):
            return None
        before, self._last = self._last, self._snapshot()
        clock_ms = self.clock.now_ms()
        # A bucket that was polled and filled again has another expiration since.
        queued = {_identity(item) for item in self._last["delay_queue"]}
        polled = [item for item in before["delay_queue"] if _identity(item) not in queued]
        run_tasks = self._drain_run_tasks()
        completed = set(run_tasks)
        return {
            "event": f"advance to {clock_ms}",
            "clock_ms": clock_ms,
            "polled": [{"level": item["level"], "bucket": item["bucket"]} for item in polled],
            "reinserted": [
                number
                for item in polled
                for number in before["levels"][item["level"] - 1]["buckets"][item["bucket"]][
                    "tasks"
                ]
                if number not in completed
            ],
            "ran": run_tasks,
            "state": self._last,
        }

    def _drain_run_tasks(self) -> list[int]:
        run_tasks = list(self._ran)
        self._ran.clear()
        return run_tasks

    def _snapshot(self) -> TimerSnapshot:
        return self.timer.snapshot(_number)


def _identity(item: QueuedBucketSnapshot) -> tuple[int, int, int]:
    return item["expiration_ms"], item["level"], item["bucket"]


def _number(task: TimerTask) -> Any:
    return task.number if isinstance(task, NumberedTask) else repr(task)


def walk(tick_ms: int, wheel_size: int, start_ms: int, delays_ms: Sequence[int]) -> Iterator[Step]:
    """Insert one task per delay, then jump from one occupied bucket to the next until none is left.

    Args:
        tick_ms: the width of the finest buckets, in milliseconds.
        wheel_size: buckets per level.
        start_ms: the time at the start, in milliseconds.
        delays_ms: one delay per task, in milliseconds.
    """
    clock = ManualClock(start_ms)
    wheel = WheelWalk(tick_ms, wheel_size, clock)
    yield wheel.start()
    for number, delay_ms in enumerate(delays_ms, start=1):
        yield wheel.insert(number, delay_ms)
    while (next_ms := wheel.timer.next_expiration_ms()) is not None:
        # A bucket may begin before the walk's start, by less than a tick: it is due already.
        clock.advance_to(max(next_ms, clock.now_ms()))
        step = wheel.advance()
        assert step is not None
        yield step


def walk_document(parameters: Mapping[str, str]) -> bytes:
    """Return a walk as JSON. O(buckets of all steps), which are bounded.

    Args:
        parameters: ``tick`` and ``delays`` with their units, ``size`` and ``start_ms`` as numbers;
            the default is the walk through seven tasks.

    Raises:
        ValueError: one of them is out of range, or the walk would be too large. The text has the
            valid values.
    """
    tick = _duration(parameters, "tick", "1s", "1ms")
    size = _parse_int(parameters, "size", "3", 2, MAX_BUCKETS)
    start_ms = _parse_int(parameters, "start_ms", "0", 0, _LATEST_MS)
    delays = parameters.get("delays", "1s,2s,3s,4s,5s,6s,7s").split(",")
    if len(delays) > MAX_TASKS:
        raise ValueError(f"delays: at most {MAX_TASKS} tasks are walked, not {len(delays)}")
    steps: list[Step] = []
    bucket_count = 0
    delays_ms = [_duration({"delays": text}, "delays", "", "0s") for text in delays]
    for step in walk(tick, size, start_ms, delays_ms):
        steps.append(step)
        bucket_count += len(step["state"]["levels"]) * size
        if bucket_count > MAX_DRAWN:
            raise ValueError(
                f"this walk is too long: in {len(steps)} steps it has {bucket_count} buckets, and "
                f"at most {MAX_DRAWN} are drawn; take fewer tasks, shorter delays or a longer tick"
            )
    document = {"tick_ms": tick, "wheel_size": size, "start_ms": start_ms, "steps": steps}
    return json.dumps(document).encode()


def _duration(parameters: Mapping[str, str], name: str, default: str, minimum: str) -> int:
    try:
        return duration_between(parameters.get(name, default), minimum, _MAX_DURATION).whole_ms
    except ValueError as error:
        raise ValueError(f"{name}: {str(error)[:200]}") from None


def _parse_int(
    parameters: Mapping[str, str], name: str, default: str, minimum: int, maximum: int
) -> int:
    text = parameters.get(name, default)
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else -1
    if not minimum <= number <= maximum:
        raise ValueError(f"{name}: {text[:50]!r} is no whole number from {minimum} to {maximum}")
    return number
