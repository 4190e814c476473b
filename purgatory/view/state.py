"""The state of a traced cluster at one moment, folded from the events of its timeline.

`ClusterState.apply` is the one place where an event changes the state; `PageEncoder` describes a
state, and each event, as plain data for the page. docs/view.md lists the events.
"""

from __future__ import annotations

from typing import Any

from purgatory.trace import change_rows as rows
from purgatory.view.timeline import (
    ABANDONED,
    CHANGED,
    CLOCK,
    COMPLETED,
    MOVED,
    PARKED,
    Timeline,
    describe_levels,
)
from purgatory.view.trace_columns import keys_at

OUTCOMES = ("immediate", "completed", "expired", "cancelled", "failed")

Partition = tuple[str, int]


class ClusterState:
    """The state of a cluster, in plain values, so that copies are fast."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.parked: dict[int, tuple[int, int]] = {}
        """Level and bucket of each parked operation; (0, 0): on no wheel."""
        self.clocks: dict[int, int] = {}
        """The last move of the clock of each broker's wheel."""
        self.outcomes: dict[tuple[int, str, str], int] = {}
        """The number of completed operations by broker, purgatory and outcome."""
        self.brokers: dict[int, str] = {}
        self.partitions: dict[Partition, int] = {}
        """The last row of `changes` of each; so are `groups` and `transactions`."""
        self.groups: dict[str, int] = {}
        self.transactions: dict[str, int] = {}
        self.faults: dict[int, tuple[int, int]] = {}
        """The rows in which a fault began and ended; -1: not yet."""
        self.log_ends: dict[tuple[str, int, int], int] = {}
        self.watermarks: dict[Partition, int] = {}

    def copy(self) -> ClusterState:
        """Return an independent copy. O(operations, partitions, groups)."""
        copy = ClusterState.__new__(ClusterState)
        for name, value in vars(self).items():
            setattr(copy, name, value.copy() if isinstance(value, dict) else value)
        return copy

    def apply(self, event: int) -> None:
        """Apply one event. O(1)."""
        timeline = self._timeline
        kind, ref = timeline.kind[event], timeline.ref[event]
        if kind == PARKED:
            self.parked[ref] = timeline.level[ref], timeline.bucket[ref]
        elif kind == COMPLETED:
            completed = timeline.completed
            self.parked.pop(completed.parked[ref], None)
            self._count(
                completed.broker[ref], completed.purgatory.at(ref), completed.outcome.at(ref)
            )
        elif kind == CLOCK:
            self.clocks[timeline.clock_broker[ref]] = ref
        elif kind == MOVED:
            operation = timeline.moved[ref]
            if operation in self.parked:
                self.parked[operation] = timeline.moved_level[ref], timeline.moved_bucket[ref]
        elif kind == ABANDONED:
            self.parked.pop(ref, None)
            parked = timeline.parked
            self._count(parked.broker[ref], parked.purgatory.at(ref), "cancelled")
        elif kind == CHANGED:
            self._change(timeline, ref)

    def _count(self, broker: int, purgatory: str, outcome: str) -> None:
        key = broker, purgatory, outcome
        self.outcomes[key] = self.outcomes.get(key, 0) + 1

    def _change(self, timeline: Timeline, row: int) -> None:
        table = timeline.changes
        broker, name, partition, number, state = timeline.change_row(row)
        match table.change.at(row):
            case rows.LOG_END:
                _update(self.log_ends, (name, partition, broker), number, number < 0)
            case rows.HIGH_WATERMARK:
                _update(self.watermarks, (name, partition), number, number < 0)
            case rows.PARTITION if state == rows.GONE:
                self.partitions.pop((name, partition), None)
                self.watermarks.pop((name, partition), None)
                for key in [key for key in self.log_ends if key[:2] == (name, partition)]:
                    del self.log_ends[key]
            case rows.PARTITION:
                self.partitions[name, partition] = row
            case rows.BROKER:
                self.brokers[broker] = state
                if state == "dead":
                    self.clocks.pop(broker, None)
            case rows.GROUP:
                _update(self.groups, name, row, state == rows.GONE)
            case rows.TRANSACTION:
                _update(self.transactions, name, row, state == rows.ENDED)
            case rows.FAULT:
                begin_row = self.faults.get(number, (row, -1))[0]
                self.faults[number] = (begin_row, row) if state == rows.ENDED else (row, -1)


def _update(table: dict[Any, int], key: Any, value: int, is_over: bool) -> None:
    if is_over:
        table.pop(key, None)
    else:
        table[key] = value


_INTERNAL = "__"


class PageEncoder:
    """Describes the states and events of a timeline as plain data."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        # In the order of their first operations, the same in all states.
        self._purgatories = dict.fromkeys(
            [*timeline.parked.purgatory.values, *timeline.completed.purgatory.values]
        )

    # States.

    def state(
        self, cluster: ClusterState, at_us: int, limit: int, unknown: list[str]
    ) -> dict[str, Any]:
        """Describe a state.

        Args:
            at_us: its moment.
            limit: the most operations in it; of more it has a sample, each n-th.
            unknown: the parts that the trace does not have.
        """
        stride = -(-len(cluster.parked) // limit) or 1
        sample = list(cluster.parked.items())[::stride]
        return {
            "at_us": at_us,
            "brokers": [self._broker(cluster, broker) for broker in self._timeline.brokers],
            "operations": [self._operation(operation, position) for operation, position in sample],
            "pending": len(cluster.parked),
            "shown": len(sample),
            "topics": self._topics(cluster),
            "groups": [self.group(row) for row in cluster.groups.values()],
            "transactions": [self._transaction(row) for row in cluster.transactions.values()],
            "faults": [self._describe_fault(*fault_rows) for fault_rows in cluster.faults.values()],
            "unknown": unknown,
        }

    def _broker(self, cluster: ClusterState, broker: int) -> dict[str, Any]:
        timeline = self._timeline
        pending = dict.fromkeys(self._purgatories, 0)
        for operation in cluster.parked:
            if timeline.parked.broker[operation] == broker:
                pending[timeline.parked.purgatory.at(operation)] += 1
        state = cluster.brokers.get(broker, "alive")
        return {
            "id": broker,
            "alive": state != "dead",
            "paused": state == "paused",
            "address": None,
            "connections": None,
            "wheel": None if broker not in cluster.clocks else self._wheel(cluster.clocks[broker]),
            "purgatories": [
                {
                    "name": name,
                    "pending": count,
                    "outcomes": {
                        outcome: cluster.outcomes.get((broker, name, outcome), 0)
                        for outcome in OUTCOMES
                    },
                }
                for name, count in pending.items()
            ],
        }

    def _wheel(self, ref: int) -> dict[str, Any]:
        timeline = self._timeline
        clock_ms, levels = timeline.clock_ms[ref], timeline.clock_levels[ref]
        return {
            "tick_ms": timeline.tick_ms,
            "size": timeline.wheel_size,
            "clock_ms": clock_ms,
            "start_ms": 0,  # clocks have the time of the run, also after a broker returned
            "levels": describe_levels(timeline.tick_ms, timeline.wheel_size, clock_ms, levels),
        }

    def _operation(self, operation: int, position: tuple[int, int]) -> list[Any]:
        parked = self._timeline.parked
        level, bucket = position
        due_ms = parked.due_ms[operation]
        return [
            parked.ids[operation],
            parked.broker[operation],
            parked.purgatory.at(operation),
            parked.kind.at(operation),
            keys_at(parked.keys, operation),
            parked.time_us[operation],
            None if due_ms < 0 else due_ms,
            level or None,
            bucket if level else None,
        ]

    def _topics(self, cluster: ClusterState) -> list[dict[str, Any]]:
        topics: dict[str, list[dict[str, Any]]] = {}
        ends: dict[tuple[str, int], dict[str, int]] = {}
        for (name, number, broker), offset in sorted(cluster.log_ends.items()):
            ends.setdefault((name, number), {})[str(broker)] = offset
        for (name, number), row in sorted(cluster.partitions.items()):
            values = self.partition(row)
            values["high_watermark"] = cluster.watermarks.get((name, number))
            values["log_end_offsets"] = ends.get((name, number), {})
            del values["topic"], values["internal"]
            topics.setdefault(name, []).append(values)
        return [
            {"name": name, "internal": name.startswith(_INTERNAL), "partitions": partitions}
            for name, partitions in topics.items()
        ]

    def partition(self, row: int) -> dict[str, Any]:
        """Describe a partition after a row of `changes`."""
        table = self._timeline.changes
        leader, name, partition, epoch, _ = self._timeline.change_row(row)
        return {
            "topic": name,
            "internal": name.startswith(_INTERNAL),
            "partition": partition,
            "leader": leader,
            "leader_epoch": epoch,
            "replicas": _numbers(keys_at(table.names, row)),
            "isr": _numbers(keys_at(table.in_sync, row)),
        }

    def group(self, row: int) -> dict[str, Any]:
        """Describe a group after a row of `changes`."""
        table = self._timeline.changes
        broker, name, _, generation, state = self._timeline.change_row(row)
        return {
            "name": name,
            "broker": broker,
            "state": state,
            "generation": generation,
            "members": keys_at(table.names, row),
        }

    def _transaction(self, row: int) -> dict[str, Any]:
        table = self._timeline.changes
        broker, name, _, epoch, state = self._timeline.change_row(row)
        return {
            "id": name,
            "broker": broker,
            "epoch": epoch,
            "state": state,
            "since_us": table.time_us[row],
        }

    def _describe_fault(self, begin_row: int, end_row: int) -> dict[str, Any]:
        table = self._timeline.changes
        _, text, _, number, kind = self._timeline.change_row(begin_row)
        until_us = table.due_ms[begin_row] * 1_000 if table.due_ms[begin_row] >= 0 else None
        return {
            "number": number,
            "kind": kind,
            "text": text,
            "brokers": _numbers(keys_at(table.names, begin_row)),
            "active": end_row < 0,
            "since_us": table.time_us[begin_row],
            "until_us": until_us if end_row < 0 else table.time_us[end_row],
        }

    # Changes.

    def change(self, event: int) -> dict[str, Any] | None:
        """Describe an event; None: the page does not show it. O(1)."""
        timeline = self._timeline
        kind, ref, at_us = timeline.kind[event], timeline.ref[event], timeline.at[event]
        if kind == CHANGED:
            values = self.row(ref)
            return None if values is None else {"at_us": at_us, **values}
        if kind == PARKED:
            position = timeline.level[ref], timeline.bucket[ref]
            values = {"change": "parked", "operation": self._operation(ref, position)}
        elif kind == MOVED:
            level = timeline.moved_level[ref]
            values = {
                "change": "moved",
                "id": timeline.parked.ids[timeline.moved[ref]],
                "level": level or None,
                "bucket": timeline.moved_bucket[ref] if level else None,
            }
        elif kind == CLOCK:
            values = {"change": "clock", "broker": timeline.clock_broker[ref], **self._wheel(ref)}
        elif kind == ABANDONED:
            values = self._describe_end(ref, "cancelled", at_us)
        else:
            values = self._describe_completed(ref)
        return {"at_us": at_us, **values}

    def _describe_end(self, operation: int, outcome: str, at_us: int) -> dict[str, Any]:
        parked = self._timeline.parked
        return {
            "change": "completed",
            "id": parked.ids[operation],
            "broker": parked.broker[operation],
            "purgatory": parked.purgatory.at(operation),
            "kind": parked.kind.at(operation),
            "outcome": outcome,
            "wait_us": at_us - parked.time_us[operation],
            "keys": keys_at(parked.keys, operation),
        }

    def _describe_completed(self, ref: int) -> dict[str, Any]:
        completed = self._timeline.completed
        return {
            "change": "completed",
            "id": completed.ids[ref],
            "broker": completed.broker[ref],
            "purgatory": completed.purgatory.at(ref),
            "kind": completed.kind.at(ref),
            "outcome": completed.outcome.at(ref),
            "wait_us": completed.wait_us[ref],
            "keys": keys_at(completed.keys, ref),
        }

    def row(self, row: int) -> dict[str, Any] | None:
        """Describe a row of `changes`; None: the page does not show it. O(1)."""
        timeline = self._timeline
        table = timeline.changes
        change = table.change.at(row)
        broker, name, partition, number, state = timeline.change_row(row)
        offset = None if number < 0 else number
        log_position = {"change": change, "topic": name, "partition": partition, "offset": offset}
        match change:
            case rows.LOG_END:
                return {**log_position, "broker": broker}
            case rows.HIGH_WATERMARK:
                return log_position
            case rows.PARTITION:
                removed = {"gone": True} if state == rows.GONE else {}
                return {"change": change, **self.partition(row), **removed}
            case rows.BROKER:
                values = {"change": change, "broker": broker}
                return {**values, "alive": state != "dead", "paused": state == "paused"}
            case rows.GROUP:
                return {"change": change, **self.group(row)}
            case rows.TRANSACTION:
                return {"change": change, **self._transaction(row)}
            case rows.FAULT:
                return {"change": change, **self.fault(row)}
        return None

    def fault(self, row: int) -> dict[str, Any]:
        """Describe a fault after its begin or end row."""
        table = self._timeline.changes
        if table.state.at(row) != rows.ENDED:
            return self._describe_fault(row, -1)
        for begin_row in range(row - 1, -1, -1):
            is_same = table.number[begin_row] == table.number[row]
            if is_same and table.change.at(begin_row) == rows.FAULT:
                return self._describe_fault(begin_row, row)
        return self._describe_fault(row, row)


def _numbers(texts: list[str]) -> list[int]:
    return [int(text) for text in texts if text.lstrip("-").isdecimal()]
