"""The rows of a trace's tables during a run: the schema's columns without `run_id`.

`docs/traces.md` describes each column. A test compares names and order with `trace_schema`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

SHOWN_BYTES = 60
"""The number of bytes of a key or value that are shown to people."""


class OperationRow(NamedTuple):
    """One request that may have waited in a purgatory."""

    broker: int
    purgatory: str
    operation: int
    keys: int
    timeout_ms: int
    start_us: int
    end_us: int
    wait_us: int
    outcome: str
    kind: str
    watch_keys: Sequence[object] | None
    """Objects with the names of the keys, which become text where the row is written."""


class SendRow(NamedTuple):
    """One attempt to send one record."""

    group: str
    producer: int
    sequence: int
    attempt: int
    key: int
    value_id: int
    acks: int
    outcome: str
    error: str | None
    send_us: int
    answer_us: int | None
    topic: str
    partition: int
    offset: int | None
    size_bytes: int
    created_us: int | None = None
    arrived_us: int | None = None
    served_us: int | None = None
    settled_us: int | None = None
    transactional_id: str | None = None
    epoch: int | None = None
    transaction: int | None = None
    equal_to: int | None = None
    compaction: str | None = None


class ReadRow(NamedTuple):
    """One record that a consumer received."""

    group: str
    consumer: int
    poll: int
    topic: str
    partition: int
    offset: int
    value_id: int
    time_us: int
    applied: bool
    isolation: str | None = None
    fetch_offset: int | None = None
    consumer_group: str | None = None
    restarts: int | None = None
    reading: int | None = None
    delivery: int | None = None
    acknowledged: str | None = None


class CommitRow(NamedTuple):
    """An offset that a group committed."""

    group: str
    topic: str
    partition: int
    offset: int
    time_us: int
    transaction: int | None = None
    held: bool | None = None


class TransactionRow(NamedTuple):
    """One transaction, from its begin to its last marker."""

    transaction: int
    transactional_id: str
    epoch: int
    outcome: str
    ended_by: str | None
    epoch_us: int | None
    begun_us: int
    decided_us: int | None
    ended_us: int | None


Row: TypeAlias = OperationRow | SendRow | ReadRow | CommitRow | TransactionRow

ROWS: Mapping[str, type[Row]] = {
    "operations": OperationRow,
    "sends": SendRow,
    "reads": ReadRow,
    "commits": CommitRow,
    "transactions": TransactionRow,
}
"""The kind of row of each table that is written during a run."""
