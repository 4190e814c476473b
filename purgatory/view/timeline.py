"""The events of a trace in the order of time, as columns of some thirty bytes per event.

The events are computed once, when the trace is opened: each broker's wheel is replayed along the
trace, so that every move of an operation and of a wheel's clock is an event.

Within one microsecond the rows of the table `changes` come first, in their order, and then the
completed operations, which are in another table.

A replayed wheel is `timer.timing_wheel` without tasks, locks and callbacks; operations are numbers.
All levels have the time of the finest one, rounded down to their own tick, so one clock is enough.
Tests compare it with `SystemTimer` and with the wheels of simulated brokers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

import pyarrow as pa

from purgatory.trace import change_rows as rows
from purgatory.view.trace_columns import CompletedOperations, Ints, ParkedOperations, ints, names

WheelPosition = tuple[int, int]
"""A level, from 1, and its bucket; (0, 0): on no wheel."""

OFF_WHEEL: WheelPosition = (0, 0)


class ReplayedWheel:
    """A timing wheel with all its levels.

    Args:
        tick_ms: the width of the finest buckets.
        size: buckets per level.
        start_ms: the time at the start.
    """

    def __init__(self, tick_ms: int, size: int, start_ms: int) -> None:
        self.tick_ms = tick_ms
        self.size = size
        self.clock_ms = start_ms - start_ms % tick_ms
        self.levels = 1
        self.runs = True
        """False: its broker is paused or dead."""
        self.target_ms = -1
        """The time to advance to; -1: none."""
        self._queue: list[tuple[int, int]] = []
        self._buckets: dict[tuple[int, int], list[tuple[int, int]]] = {}

    @property
    def first_ms(self) -> int | None:
        """When the first bucket is due, whether empty or not."""
        return self._queue[0][0] if self._queue else None

    def add(self, operation: int, due_ms: int) -> WheelPosition:
        """Put an operation into its bucket; NOWHERE: it is due already. O(levels)."""
        clock_ms, tick_ms, level = self.clock_ms, self.tick_ms, 1
        if due_ms < clock_ms + tick_ms:
            return OFF_WHEEL
        while due_ms >= clock_ms - clock_ms % tick_ms + tick_ms * self.size:
            tick_ms *= self.size
            level += 1
        if level > self.levels:
            self.levels = level
        number = due_ms // tick_ms
        key = (number * tick_ms, level)
        entries = self._buckets.get(key)
        if entries is None:
            self._buckets[key] = [(operation, due_ms)]
            heappush(self._queue, key)
        else:
            entries.append((operation, due_ms))
        return level, number % self.size

    def advance(self, to_ms: int, removed: Sequence[int]) -> Iterator[tuple[int, WheelPosition]]:
        """Poll the buckets that are due by a time; yield each operation with its new position.

        Args:
            to_ms: the time.
            removed: whether each operation was removed; its bucket stays queued, but the
                operation is not reinserted.
        """
        while self._queue and self._queue[0][0] <= to_ms:
            key = heappop(self._queue)
            begin_ms, level = key
            entries = self._buckets.pop(key)
            self.clock_ms = max(self.clock_ms, begin_ms)
            for operation, due_ms in entries:
                if not removed[operation]:
                    yield operation, OFF_WHEEL if level == 1 else self.add(operation, due_ms)


def describe_levels(tick_ms: int, size: int, clock_ms: int, levels: int) -> list[dict[str, object]]:
    """Return the levels of a wheel whose time is ``clock_ms``, the finest first."""
    snapshots: list[dict[str, object]] = []
    for level in range(1, levels + 1):
        begin_ms = clock_ms - clock_ms % tick_ms
        snapshots.append(
            {"level": level, "tick_ms": tick_ms, "covers_ms": [begin_ms, begin_ms + tick_ms * size]}
        )
        tick_ms *= size
    return snapshots


PARKED, MOVED, COMPLETED, CLOCK, CHANGED, ABANDONED = range(6)
"""The kinds of events. An event's ``ref`` is the index of, in this order: a parked operation, a
move, a completed operation, a move of a clock, a row of `changes`, and an operation that was parked
when its broker died."""

NEVER = 2**63 - 1


class ChangeColumns:
    """The table `changes` as columns."""

    def __init__(self, table: pa.Table) -> None:
        self.rows = table.num_rows
        self.time_us = ints(table.column("time_us"))
        self.change = names(table.column("change"))
        self.broker = ints(table.column("broker"))
        self.name = names(table.column("name"))
        self.partition = ints(table.column("partition"))
        self.number = ints(table.column("number"))
        self.state = names(table.column("state"))
        self.due_ms = ints(table.column("due_ms"))
        self.clock_ms = ints(table.column("clock_ms"))
        self.names = table.column("names").combine_chunks()
        self.in_sync = table.column("in_sync").combine_chunks()


class Timeline:
    """The events of a trace.

    Args:
        changes: the table; without rows if the trace has none.
        operation_of_change: for each row of it, the index of its parked operation, or -1.
        timer: `tick_ms` and `wheel_size` of the brokers' timers.
        real_time: the wheel of a paused broker advances, since a thread drives it.
    """

    def __init__(
        self,
        parked: ParkedOperations,
        completed: CompletedOperations,
        changes: ChangeColumns,
        operation_of_change: Ints,
        timer: Mapping[str, int],
        real_time: bool = False,
    ) -> None:
        self.parked = parked
        self.completed = completed
        self.changes = changes
        self.has_changes = changes.rows > 0
        self.operation_of_change = operation_of_change
        self.tick_ms, self.wheel_size = timer["tick_ms"], timer["wheel_size"]
        self.real_time = real_time
        self.at = array("q")
        self.kind = bytearray()
        self.ref = array("q")
        self.level = array("b", bytes(len(parked.time_us)))
        """The first level of each operation; 0: on no wheel."""
        self.bucket = array("i", bytes(4 * len(parked.time_us)))
        self.moved = array("q")
        self.moved_level = array("b")
        self.moved_bucket = array("i")
        self.clock_broker = array("i")
        self.clock_ms = array("q")
        self.clock_levels = array("b")
        self.brokers = sorted({*parked.broker, *completed.broker, *_brokers_of(changes)})
        _Replay(self).run()

    def __len__(self) -> int:
        return len(self.at)

    def change_row(self, row: int) -> tuple[Any, ...]:
        """Return a row of `changes` as broker, name, partition, number and state."""
        table = self.changes
        return (
            table.broker[row],
            table.name.at(row),
            table.partition[row],
            table.number[row],
            table.state.at(row),
        )


def _brokers_of(changes: ChangeColumns) -> set[int]:
    code = _change_code(changes, rows.BROKER)
    return {
        broker
        for broker, change in zip(changes.broker, changes.change.codes, strict=True)
        if change == code
    }


def _change_code(changes: ChangeColumns, change: str) -> int:
    values = list(changes.change.values)
    return values.index(change) if change in values else -2


class _Replay:
    """The computation of a timeline's events."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._wheels: dict[int, ReplayedWheel] = {}
        self._recorded: dict[int, tuple[int, int]] = {}
        self._removed = bytearray(len(timeline.parked.time_us))
        self._completes = bytearray(len(timeline.parked.time_us))
        for operation in timeline.completed.parked:
            if operation >= 0:
                self._completes[operation] = 1
        self._waiting: dict[int, dict[int, None]] = {}

    def run(self) -> None:
        timeline = self._timeline
        if not timeline.has_changes:
            for broker in timeline.brokers:
                self._start(broker, 0)
            self._merge_by_time(iter(timeline.parked.time_us), self._park_next)
        else:
            self._codes = {name: _change_code(timeline.changes, name) for name in _REPLAYED_CHANGES}
            self._merge_by_time(iter(timeline.changes.time_us), self._change)

    def _merge_by_time(self, times: Iterator[int], take: Any) -> None:
        """Merge changes and completed operations by time, and advance the wheels in between."""
        completed = self._timeline.completed
        row = index = 0
        next_us = next(times, NEVER)
        end_us = completed.time_us[0] if len(completed.time_us) else NEVER
        while (now_us := min(next_us, end_us)) != NEVER:
            self._advance_wheels(now_us)
            while next_us == now_us:
                take(row, now_us)
                row += 1
                next_us = next(times, NEVER)
                if next_us < now_us:  # out of order: treated as if it happened now
                    next_us = now_us
            self._finish_advances(now_us)
            while end_us == now_us:
                self._apply_completed(index, now_us)
                index += 1
                end_us = completed.time_us[index] if index < len(completed.time_us) else NEVER

    # The wheels.

    def _start(self, broker: int, now_us: int) -> None:
        timeline = self._timeline
        start_ms = now_us // 1_000
        self._wheels[broker] = ReplayedWheel(timeline.tick_ms, timeline.wheel_size, start_ms)
        self._record_clock(broker, now_us)

    def _advance_wheels(self, now_us: int) -> None:
        """Advance each running wheel at the start of each millisecond in which a bucket is due."""
        last_us = self._timeline.at[-1] if self._timeline.at else -1
        while True:
            first_ms, first = NEVER, -1
            for broker, wheel in self._wheels.items():
                due_ms = wheel.first_ms
                if wheel.runs and due_ms is not None and due_ms < first_ms:
                    if due_ms * 1_000 <= last_us and self._timeline.has_changes:
                        continue  # too late: a row of `changes` has the time of the advance
                    first_ms, first = due_ms, broker
            at_us = max(first_ms * 1_000, last_us)
            if first < 0 or at_us > now_us:
                return
            self._advance(first, first_ms, at_us)
            self._record_clock(first, at_us)
            last_us = max(last_us, at_us) if not self._timeline.has_changes else last_us

    def _finish_advances(self, now_us: int) -> None:
        for broker, wheel in self._wheels.items():
            if wheel.target_ms >= 0:
                self._advance(broker, wheel.target_ms, now_us)
                wheel.target_ms = -1
            if (wheel.clock_ms, wheel.levels) != self._recorded.get(broker):
                self._record_clock(broker, now_us)

    def _advance(self, broker: int, to_ms: int, now_us: int) -> None:
        timeline = self._timeline
        for operation, position in self._wheels[broker].advance(to_ms, self._removed):
            self._event(now_us, MOVED, len(timeline.moved))
            timeline.moved.append(operation)
            timeline.moved_level.append(position[0])
            timeline.moved_bucket.append(position[1])

    def _record_clock(self, broker: int, now_us: int) -> None:
        timeline, wheel = self._timeline, self._wheels[broker]
        self._recorded[broker] = wheel.clock_ms, wheel.levels
        self._event(now_us, CLOCK, len(timeline.clock_ms))
        timeline.clock_broker.append(broker)
        timeline.clock_ms.append(wheel.clock_ms)
        timeline.clock_levels.append(wheel.levels)

    # Events.

    def _event(self, now_us: int, kind: int, ref: int) -> None:
        timeline = self._timeline
        timeline.at.append(now_us)
        timeline.kind.append(kind)
        timeline.ref.append(ref)

    def _change(self, row: int, now_us: int) -> None:
        timeline, codes = self._timeline, self._codes
        table = timeline.changes
        code = table.change.codes[row]
        if code == codes[rows.PARKED]:
            self._apply_parked(timeline.operation_of_change[row], now_us)
            return
        self._event(now_us, CHANGED, row)
        if code == codes[rows.CLOCK]:
            wheel = self._wheels.get(table.broker[row])
            if wheel is not None:
                wheel.target_ms = now_us // 1_000
        elif code == codes[rows.BROKER]:
            self._broker(table.broker[row], table.state.at(row), now_us)

    def _broker(self, broker: int, state: str, now_us: int) -> None:
        wheel = self._wheels.get(broker)
        if state == "dead":
            for operation in self._waiting.pop(broker, {}):
                if not self._removed[operation] and not self._completes[operation]:
                    self._removed[operation] = 1
                    self._event(now_us, ABANDONED, operation)
            self._wheels.pop(broker, None)
        elif wheel is None:
            self._start(broker, now_us)
        else:
            wheel.runs = state == "alive" or self._timeline.real_time

    def _park_next(self, row: int, now_us: int) -> None:
        self._apply_parked(row, now_us)

    def _apply_parked(self, operation: int, now_us: int) -> None:
        timeline = self._timeline
        parked = timeline.parked
        broker, position = parked.broker[operation], OFF_WHEEL
        wheel = self._wheels.get(broker)
        if wheel is not None:
            position = self._apply_insert(wheel, operation, broker, now_us)
        timeline.level[operation], timeline.bucket[operation] = position
        self._waiting.setdefault(broker, {})[operation] = None
        self._event(now_us, PARKED, operation)

    def _apply_insert(
        self, wheel: ReplayedWheel, operation: int, broker: int, now_us: int
    ) -> WheelPosition:
        parked = self._timeline.parked
        clock_ms = parked.clock_ms[operation]
        if clock_ms >= 0:
            self._advance(broker, clock_ms, now_us)
        elif wheel.target_ms >= 0:
            self._advance(broker, wheel.target_ms, now_us)
            wheel.target_ms = -1
        due_ms = parked.due_ms[operation]
        return OFF_WHEEL if due_ms < 0 else wheel.add(operation, due_ms)

    def _apply_completed(self, index: int, now_us: int) -> None:
        self._event(now_us, COMPLETED, index)
        self._remove(self._timeline.completed.parked[index])

    def _remove(self, operation: int) -> None:
        if operation >= 0:
            self._removed[operation] = 1
            self._waiting.get(self._timeline.parked.broker[operation], {}).pop(operation, None)


_REPLAYED_CHANGES = (rows.PARKED, rows.CLOCK, rows.BROKER)
