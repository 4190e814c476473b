"""A timer's state as plain data: to print, to compare, to dump as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

from timer.delay_queue import DelayQueue
from timer.timer_task import TimerTask
from timer.timing_wheel import TimingWheel


class BucketSnapshot(TypedDict):
    """A bucket: when it begins (-1 while idle), and the labels of its tasks in order."""

    expiration_ms: int
    tasks: list[Any]


class LevelSnapshot(TypedDict):
    """A wheel: its level from 1, its tick, the range [begin, end) ahead, and all its buckets."""

    level: int
    tick_ms: int
    covers_ms: list[int]
    buckets: list[BucketSnapshot]


class QueuedBucketSnapshot(TypedDict):
    """A bucket in the delay queue: when it is due, and which one it is."""

    expiration_ms: int
    level: int
    bucket: int


class TimerSnapshot(TypedDict):
    """All levels, the finest first, and the delay queue in the order in which it will be polled."""

    levels: list[LevelSnapshot]
    delay_queue: list[QueuedBucketSnapshot]


def take_snapshot(
    wheel: TimingWheel, queue: DelayQueue, label: Callable[[TimerTask], Any]
) -> TimerSnapshot:
    """Describe ``wheel`` and ``queue``, naming each task by ``label(task)``. O(buckets + tasks)."""
    return {
        "levels": [_level(level, label) for level in wheel.levels()],
        "delay_queue": [
            {"expiration_ms": bucket.expiration_ms, "level": bucket.level, "bucket": bucket.index}
            for bucket in queue.in_order()
        ],
    }


def _level(wheel: TimingWheel, label: Callable[[TimerTask], Any]) -> LevelSnapshot:
    return {
        "level": wheel.level,
        "tick_ms": wheel.tick_ms,
        "covers_ms": [wheel.current_time_ms, wheel.end_ms],
        "buckets": [
            {
                "expiration_ms": bucket.expiration_ms,
                "tasks": [label(entry.task) for entry in bucket if entry.task is not None],
            }
            for bucket in wheel.buckets
        ],
    }
