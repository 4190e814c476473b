"""The optional table `changes`: with the other tables, it rebuilds the state of a cluster at any
moment.

Analyses don't read it, so it is not among `trace_schema.TABLES`. Its columns:

- `broker`: of `partition`, the leader, or -1.
- `name`: a purgatory, topic, group, transactional id, or a fault in words.
- `number`: an operation, offset, leader epoch, generation, producer epoch or fault.
- `state`: a state, requester or kind of fault.
- `due_ms`: when an operation is due, or a fault ends, in milliseconds since the start.
- `clock_ms`: of `parked`, the wheel's time while it advances.
- `names`, `in_sync`: keys, replicas, members or brokers; the in-sync set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

CHANGES = "changes"

CHANGE_COLUMNS: Mapping[str, str] = {
    "run_id": "string",
    "time_us": "bigint",
    "change": "string",
    "broker": "int",
    "name": "string",
    "partition": "int",
    "number": "bigint",
    "state": "string",
    "due_ms": "bigint",
    "clock_ms": "bigint",
    "names": "array<string>",
    "in_sync": "array<string>",
}
"""Its columns and their types, as in `trace_schema.TABLES`."""

CHANGE_NULLABLE = frozenset(CHANGE_COLUMNS) - {"run_id", "time_us", "change"}

PARKED = "parked"
"""An operation begins to wait, by its number in `operations`."""
CLOCK = "clock"
"""A wheel advances; without a row, at each millisecond in which a bucket is due."""
BROKER = "broker"
"""`alive`, `paused` (its wheel stands still) or `dead` (what waited is gone)."""
LOG_END = "log_end"
"""An offset of a replica's log."""
HIGH_WATERMARK = "high_watermark"
"""An offset of the partition, by its leader."""
PARTITION = "partition"
"""Leader, leader epoch, replicas and in-sync set; `Gone`: deleted."""
GROUP = "group"
"""The coordinator's state; `Gone`: it has none any more."""
TRANSACTION = "transaction"
"""The coordinator's state; `ended`: it has none any more."""
FAULT = "fault"
"""A fault began, or `ended`."""

GONE = "Gone"
"""The state of a group that is deleted, or has no coordinator."""
ENDED = "ended"
"""The state of a transaction, or a fault, that has ended."""


_LONGEST_MS = 2**53


def due_ms(start_us: int, timeout_ms: int) -> int | None:
    """Return when an operation of a real broker is due, since the trace's begin.

    None: never, or at once, so that it is on no wheel.
    """
    return -(-start_us // 1_000) + timeout_ms if 0 < timeout_ms < _LONGEST_MS else None


class ChangeRow(NamedTuple):
    """One change. Rows come in the order in which things happened."""

    time_us: int
    change: str
    broker: int | None = None
    name: str | None = None
    partition: int | None = None
    number: int | None = None
    state: str | None = None
    due_ms: int | None = None
    clock_ms: int | None = None
    names: Sequence[object] | None = None
    """Objects with these names, which become text where the row is written."""
    in_sync: Sequence[object] | None = None
