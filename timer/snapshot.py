"""A timer's state as plain data: to print, to compare, to dump as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from timer.levels import LevelState, QueuedState
from timer.timer_task import TimerTask


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
    levels: Sequence[LevelState],
    queued: Sequence[QueuedState],
    wheel_size: int,
    label: Callable[[TimerTask], Any],
) -> TimerSnapshot:
    """Describe a timer, naming each task by ``label(task)``. O(buckets + tasks).

    Args:
        levels: of each its tick, its time, and its buckets: expirations and tasks.
        queued: the buckets as they fall due: expiration, level and index.
        wheel_size: buckets for each level.
    """
    return {
        "levels": [
            {
                "level": number,
                "tick_ms": tick_ms,
                "covers_ms": [current_ms, current_ms + tick_ms * wheel_size],
                "buckets": [
                    {"expiration_ms": expiration_ms, "tasks": list(map(label, tasks))}
                    for expiration_ms, tasks in buckets
                ],
            }
            for number, (tick_ms, current_ms, buckets) in enumerate(levels, 1)
        ],
        "delay_queue": [
            {"expiration_ms": expiration_ms, "level": level, "bucket": index}
            for expiration_ms, level, index in queued
        ],
    }
