"""The observer of a cluster's state: its reports, and their rows."""

from __future__ import annotations

from typing import Any

from purgatory.kafka import TopicPartition
from purgatory.trace import change_rows as rows
from purgatory.trace.change_rows import ChangeRow
from purgatory.trace.observer import (
    CoordinatorState,
    FaultState,
    PartitionRole,
    StateObserver,
    rows_of,
)

PLACE = TopicPartition("orders", 1)
ROLE = PartitionRole(leader=2, leader_epoch=5, replicas=(2, 0, 1), isr=(2, 1))
STALL = FaultState("stall_follower", "stall follower 2", (2,), True, 1_000, 4_000_000)


def rows_after(kind: str, key: Any, before: Any, value: Any) -> list[ChangeRow]:
    return list(rows_of(7, kind, key, before, value))


def test_observer_reports_only_changes() -> None:
    changes: list[tuple[Any, ...]] = []
    observer = StateObserver(lambda *change: changes.append(change))
    assert observer.observe(rows.LOG_END, (PLACE, 2), 0)
    assert not observer.observe(rows.LOG_END, (PLACE, 2), 0)
    assert observer.observe(rows.LOG_END, (PLACE, 2), 9)
    assert observer.observe(rows.LOG_END, (PLACE, 2), None)
    assert not observer.observe(rows.LOG_END, (PLACE, 2), None)
    assert [change[2:] for change in changes] == [(None, 0), (0, 9), (9, None)]
    assert observer.last_values[rows.LOG_END] == {}


def test_missing_keys_are_reported_as_gone_in_insertion_order() -> None:
    changes: list[tuple[Any, ...]] = []
    observer = StateObserver(lambda *change: changes.append(change))
    states = {name: CoordinatorState(0, "Stable", 1, ("m",)) for name in "zyxabc"}
    observer.observe_all(rows.GROUP, states)
    observer.observe_all(rows.GROUP, dict(states))
    observer.observe_all(rows.GROUP, {"x": states["x"]._replace(number=2)})
    assert [change[1] for change in changes] == [*"zyxabc", *"xzyabc"]
    assert [change[3] is None for change in changes[6:]] == [False, *[True] * 5]


def test_rows_of_partitions_and_logs() -> None:
    assert rows_after(rows.PARTITION, PLACE, None, ROLE) == [
        ChangeRow(7, "partition", 2, "orders", 1, 5, names=(2, 0, 1), in_sync=(2, 1))
    ]
    assert rows_after(rows.PARTITION, PLACE, ROLE, None) == [
        ChangeRow(7, "partition", -1, "orders", 1, 0, "Gone", names=(), in_sync=())
    ]
    assert rows_after(rows.LOG_END, (PLACE, 0), 3, None) == [
        ChangeRow(7, "log_end", 0, "orders", 1, None)
    ]
    assert rows_after(rows.HIGH_WATERMARK, PLACE, None, 3) == [
        ChangeRow(7, "high_watermark", None, "orders", 1, 3)
    ]


def test_rows_of_groups_and_transactions() -> None:
    group = CoordinatorState(1, "Stable", 4, ("a", "b"))
    row = ChangeRow(7, "group", 1, "readers", None, 4, "Stable", names=("a", "b"))
    assert rows_after(rows.GROUP, "readers", None, group) == [row]
    assert rows_after(rows.GROUP, "readers", group, None) == [row._replace(state="Gone")]
    begun = CoordinatorState(None, "begun", 3, since_us=9)
    row = ChangeRow(7, "transaction", None, "t", None, 3, "begun")
    assert rows_after(rows.TRANSACTION, "t", None, begun) == [row]
    assert rows_after(rows.TRANSACTION, "t", begun, None) == [row._replace(state="ended")]


def test_rows_of_faults() -> None:
    begun = ChangeRow(
        7, "fault", None, "stall follower 2", None, 1, "stall_follower", 4_000, names=(2,)
    )
    ended = begun._replace(state="ended", due_ms=None)
    over = STALL._replace(active=False)
    assert rows_after(rows.FAULT, 1, None, STALL) == [begun]
    assert rows_after(rows.FAULT, 1, STALL, over) == [ended]
    assert rows_after(rows.FAULT, 1, None, over) == [begun, ended]
