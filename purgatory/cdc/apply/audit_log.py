"""The audit log in the target (`--audit-log`), and its export as a trace for `purgatory audit`.

Reads are recorded in transactions of their own, before anything is done with a batch; effects and
commits in the transactions that they are about.

The trace is written as lines of JSON. `TraceWriter` writes a run from its start, as Parquet with
all columns of operations, sends and reads; a target has only a few columns of reads, but also
effects and commits, which no simulated run has.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from purgatory.cdc.apply.operations import Item
from purgatory.cdc.change import hash_63
from purgatory.cdc.errors import ChangesError
from purgatory.cdc.targets.target import Target
from purgatory.trace.trace_schema import RUN_FILE, SCHEMA_VERSION

GROUP = "apply"
"""The consumer group in the trace."""

_TIME_COLUMNS = {"purgatory_reads": 5, "purgatory_effects": 5, "purgatory_commits": 3}
"""The tables of the audit log, and which column is a time in microseconds."""


class AuditLog:
    """Records reads, effects and commits in a target, if enabled."""

    def __init__(self, target: Target, enabled: bool) -> None:
        self._target = target
        self._enabled = enabled

    def log_reads(self, items: Sequence[Item]) -> None:
        """Record the delivery of a batch, in a transaction of its own."""
        if not self._enabled or not items:
            return
        now_us = time.time_ns() // 1000
        rows = [(*item.record[:3], now_us, _value_id(item), now_us) for item in items]
        with self._target.transaction():
            self._target.insert_own("purgatory_reads", rows)

    def log_effects(
        self, items: Sequence[Item], quarantined: Collection[tuple[str, int, int]]
    ) -> None:
        """Within a transaction: record the effects of a batch.

        Args:
            quarantined: topic, partition and offset of those that were quarantined.
        """
        if not self._enabled:
            return
        # The audit orders effects of one microsecond by their partitions: each effect has a
        # microsecond of its own, of those that applying them took.
        first_us = time.time_ns() // 1000 - len(items)
        rows = [
            _effect(item, item.record[:3] in quarantined, first_us + number)
            for number, item in enumerate(items)
        ]
        self._target.insert_own("purgatory_effects", rows)

    def log_progress(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Within a transaction: record up to where results are stored.

        Args:
            ends: the next offsets by topic and partition; pending records are subtracted.
        """
        if not self._enabled:
            return
        pending = {partition: self._target.first_pending(*partition) for partition in ends}
        self.log_commits(
            [
                (*partition, end if first is None else first)
                for (partition, end), first in zip(ends.items(), pending.values(), strict=True)
            ]
        )

    def log_commits(self, ends: Sequence[tuple[str, int, int]]) -> None:
        """Within a transaction: record topics, partitions and offsets up to which all is stored."""
        if self._enabled:
            now_us = time.time_ns() // 1000
            self._target.insert_own("purgatory_commits", [(*end, now_us) for end in ends])


def _value_id(item: Item) -> int:
    """Identifies a record's content; one without a position is like no other."""
    if item.change is not None and item.change.position is not None:
        return hash_63(item.record.value)
    return hash_63(repr(item.record[:3]).encode())


def _effect(
    item: Item, is_quarantined: bool, applied_us: int
) -> tuple[str, int, int, int, int, int]:
    """The audit's row: the key of the changed row, and the version of the change.

    A record that changed no row is an effect on itself: on the quarantine, or on nothing.
    """
    record, change, operations = item
    if is_quarantined or change is None or not operations:
        key, version = hash_63(repr(record[:3]).encode()), 0
    elif record.key is not None:
        key, version = hash_63(record.key), change.version(record.offset)
    else:
        row = (change.source, operations[-1].key)
        key, version = hash_63(repr(row).encode()), change.version(record.offset)
    return (*record[:3], key, version, applied_us)


def write_trace(target: Target, folder: Path, run_id: str) -> None:
    """Write the audit log as a trace: lines of JSON, as `docs/traces.md` describes them.

    Times count from the first one. A partition's reader counts as one consumer, wherever its tasks
    ran.

    Args:
        folder: is created; a trace that is there is replaced.

    Raises:
        ChangesError: the folder can't be written.
    """
    rows = {table: target.select_own(table) for table in _TIME_COLUMNS}
    start_us = min(
        (row[at] for table, at in _TIME_COLUMNS.items() for row in rows[table]), default=0
    )
    partitions = sorted({row[:2] for table in rows for row in rows[table]})
    consumers = {partition: number for number, partition in enumerate(partitions)}
    # In the target, a poll's number is its time.
    polls = sorted({(row[0], row[1], row[3]) for row in rows["purgatory_reads"]})
    first = {
        partition: number for number, partition in reversed(list(enumerate(p[:2] for p in polls)))
    }
    numbers = {poll: number - first[poll[:2]] + 1 for number, poll in enumerate(polls)}
    tables: dict[str, Iterator[dict[str, object]]] = {
        "reads": (
            {
                "consumer": consumers[topic, partition],
                "poll": numbers[topic, partition, poll],
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "value_id": value_id,
                "time_us": read_us - start_us,
                "applied": True,
            }
            for topic, partition, offset, poll, value_id, read_us in rows["purgatory_reads"]
        ),
        "effects": (
            {
                "consumer": consumers[topic, partition],
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "key": key,
                "version": version,
                "time_us": applied_us - start_us,
            }
            for topic, partition, offset, key, version, applied_us in rows["purgatory_effects"]
        ),
        "commits": (
            {
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "time_us": committed_us - start_us,
            }
            for topic, partition, offset, committed_us in rows["purgatory_commits"]
        ),
    }
    head = {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        "consumers": [{"group": GROUP, "assignment": "subscribe", "isolation": "read_committed"}],
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RUN_FILE).write_text(json.dumps(head), encoding="utf-8")
        for name, rows_of_table in tables.items():
            with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as lines:
                lines.writelines(
                    json.dumps({"group": GROUP, **row}) + "\n" for row in rows_of_table
                )
    except OSError as error:
        raise ChangesError(f"{folder}: the trace can't be written: {error}") from error
