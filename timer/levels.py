"""The levels of a wheel as plain data, as snapshots and checks look at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from timer.timer_task import TimerTask

IDLE_MS = -1
"""The expiration of a bucket that is not in the delay queue."""

LevelState: TypeAlias = "tuple[int, int, list[tuple[int, list[TimerTask]]]]"
"""Its tick, its time, and its buckets: of each the expiration and the tasks."""

QueuedState: TypeAlias = tuple[int, int, int]
"""A bucket in the delay queue: its expiration, level and index."""


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
