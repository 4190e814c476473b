"""A timer's state as plain data: to print, to compare, to dump as JSON, and to check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

if TYPE_CHECKING:
    from timer.timer_task import TimerTask

IDLE_MS = -1
"""The expiration of a bucket that is not in the delay queue."""

LevelState: TypeAlias = "tuple[int, int, list[tuple[int, list[TimerTask]]]]"
"""Its tick, its time, and its buckets: of each the expiration and the tasks."""

QueuedState: TypeAlias = tuple[int, int, int]
"""A bucket in the delay queue: its expiration, level and index."""


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


def check_levels(
    levels: Sequence[LevelState],
    queued: Sequence[QueuedState],
    wheel_size: int,
    expiration_ms_of: Callable[[TimerTask], int],
) -> None:
    """Assert every invariant of all levels. O(buckets + tasks).

    Args:
        levels: all, the finest first.
        queued: the buckets as they fall due.
        wheel_size: buckets for each level.
        expiration_ms_of: tells when a task that waits is due.
    """
    in_use = []
    finer_level: tuple[int, int] | None = None
    for level, (tick_ms, current_ms, buckets) in enumerate(levels, 1):
        assert len(buckets) == wheel_size
        assert current_ms % tick_ms == 0
        if finer_level is not None:
            tick_below_ms, current_below_ms = finer_level
            assert tick_ms == tick_below_ms * wheel_size
            assert current_ms == current_below_ms - current_below_ms % tick_ms
        finer_level = tick_ms, current_ms
        for index, (expiration_ms, tasks) in enumerate(buckets):
            if expiration_ms == IDLE_MS:
                assert not tasks, "what holds tasks is in the queue"
                continue
            in_use.append((expiration_ms, level, index))
            assert expiration_ms // tick_ms % wheel_size == index
            assert current_ms <= expiration_ms < current_ms + tick_ms * wheel_size
            for task in tasks:
                late_ms = expiration_ms_of(task) - expiration_ms
                assert 0 <= late_ms < tick_ms, "a task lies outside its bucket"
    assert sorted(in_use) == list(queued), "idle if and only if not queued"
