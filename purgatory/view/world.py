"""The state of a traced cluster at one moment; each event changes it a little."""

from __future__ import annotations

from typing import Any

from purgatory.trace import change_rows as rows
from purgatory.view.timeline import CHANGED, CLOCK, LEFT, MOVED, PARKED, SETTLED, Timeline

OUTCOMES = ("immediate", "completed", "expired", "cancelled", "failed")

Partition = tuple[str, int]


class World:
    """What there is. Plain values throughout, so that a copy is quick.

    Args:
        timeline: whose events are applied.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._line = timeline
        self.parked: dict[int, tuple[int, int]] = {}
        """Of each operation that waits its level and bucket; (0, 0): on no wheel."""
        self.clocks: dict[int, int] = {}
        """Which move of its hand was the last one of each broker's wheel."""
        self.outcomes: dict[tuple[int, str, str], int] = {}
        """How often, by broker, purgatory and outcome."""
        self.brokers: dict[int, str] = {}
        self.partitions: dict[Partition, int] = {}
        """Rows of `changes`, as in the next three."""
        self.groups: dict[str, int] = {}
        self.transactions: dict[str, int] = {}
        self.faults: dict[int, tuple[int, int]] = {}
        """Where a fault began, and where it ended, or -1."""
        self.log_ends: dict[tuple[str, int, int], int] = {}
        self.watermarks: dict[Partition, int] = {}

    def copy(self) -> World:
        """Return another one that changes by itself. O(what there is)."""
        made = World.__new__(World)
        for name, value in vars(self).items():
            setattr(made, name, value.copy() if isinstance(value, dict) else value)
        return made

    def apply(self, event: int) -> None:
        """Take one event. O(1)."""
        line = self._line
        kind, ref = line.kind[event], line.ref[event]
        if kind == PARKED:
            self.parked[ref] = line.level[ref], line.bucket[ref]
        elif kind == SETTLED:
            settled = line.settled
            self.parked.pop(settled.parked[ref], None)
            self._count(settled.broker[ref], settled.purgatory.at(ref), settled.outcome.at(ref))
        elif kind == CLOCK:
            self.clocks[line.clock_broker[ref]] = ref
        elif kind == MOVED:
            operation = line.moved[ref]
            if operation in self.parked:
                self.parked[operation] = line.moved_level[ref], line.moved_bucket[ref]
        elif kind == LEFT:
            self.parked.pop(ref, None)
            parked = line.parked
            self._count(parked.broker[ref], parked.purgatory.at(ref), "cancelled")
        elif kind == CHANGED:
            self._change(line, ref)

    def _count(self, broker: int, purgatory: str, outcome: str) -> None:
        key = broker, purgatory, outcome
        self.outcomes[key] = self.outcomes.get(key, 0) + 1

    def _change(self, line: Timeline, row: int) -> None:
        table = line.changes
        assert table is not None, "it has rows"
        broker, name, partition, number, state = line.changed(row)
        match table.change.at(row):
            case rows.LOG_END:
                _keep(self.log_ends, (name, partition, broker), number, number < 0)
            case rows.HIGH_WATERMARK:
                _keep(self.watermarks, (name, partition), number, number < 0)
            case rows.PARTITION if state == rows.GONE:
                self.partitions.pop((name, partition), None)
                self.watermarks.pop((name, partition), None)
                for key in [key for key in self.log_ends if key[:2] == (name, partition)]:
                    del self.log_ends[key]
            case rows.PARTITION:
                self.partitions[name, partition] = row
            case rows.SETTLED:
                operation = line.of_operation[row]
                if self.parked.pop(operation, None) is not None:
                    self._count(broker, line.parked.purgatory.at(operation), state)
            case rows.BROKER:
                self.brokers[broker] = state
                if state == "dead":
                    self.clocks.pop(broker, None)
            case rows.GROUP:
                _keep(self.groups, name, row, state == rows.GONE)
            case rows.TRANSACTION:
                _keep(self.transactions, name, row, state == rows.ENDED)
            case rows.FAULT:
                began = self.faults.get(number, (row, -1))[0]
                self.faults[number] = (began, row) if state == rows.ENDED else (row, -1)


def _keep(kept: dict[Any, int], key: Any, value: int, is_over: bool) -> None:
    if is_over:
        kept.pop(key, None)
    else:
        kept[key] = value
