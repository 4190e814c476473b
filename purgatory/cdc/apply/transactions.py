"""Applies batches row by row or by transaction, and records that have to wait for others.

By row, each record takes effect by itself, in the order of its partition, but a schema change waits
until all partitions have reached it. By transaction, only whole transactions of the source are
applied, each in one transaction of the target. Pending records are in the target's table
`purgatory_pending`, with their sort keys (`pending`): a transaction may be larger than memory.

    add records, in one transaction:  lock the next offsets; apply complete groups, in order; store
                                      the rest as pending; store the next offsets
    drain, until nothing is left:     lock them; read the first pending records; apply complete
                                      groups, in order; delete their records

In memory are the records of one call, and `CHUNK_RECORDS` pending ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import replace
from itertools import groupby
from typing import Any

from purgatory.cdc.apply.exactly_once import Applied, Batch, Writer
from purgatory.cdc.apply.operations import Item
from purgatory.cdc.apply.pending import (
    IncompleteGroup,
    PendingRecord,
    TxnGroup,
    assign_positions,
    first_incomplete,
    group_records,
    is_complete,
    ready_groups,
)
from purgatory.cdc.apply.tables import SchemaChangedError
from purgatory.cdc.change import BOOTSTRAP_INSERT, ROW_KINDS, Record
from purgatory.cdc.errors import ChangesError, QuarantineStopError
from purgatory.cdc.quarantine import StopAtChangeError
from purgatory.cdc.targets.target import Target

CHUNK_RECORDS = 5_000
"""The number of pending records in memory at a time."""

MAX_PENDING_BEHIND = 100_000
"""The maximum number of records pending behind a group of which the log lacks a part."""


def apply_rows(writer: Writer, topic: str, partition: int, records: Iterable[Record]) -> Applied:
    """Apply consecutive records of one partition; see `applier.apply_batch`."""
    batch = writer.parse(records)
    writer.audit_log.log_reads(batch.items)
    stop: StopAtChangeError | None = None
    while True:
        try:
            writer.plan_rows(batch)
            applied = writer.commit(topic, partition, batch)
            break
        except StopAtChangeError as error:
            stop = error
            batch.items = [
                item for item in batch.items if item.record.offset < error.quarantined.offset
            ]
        except SchemaChangedError:
            continue
    if stop is not None:
        raise QuarantineStopError(stop.message)
    if applied.pending:
        applied += drain_pending(writer, topic, by_transaction=False)
    return applied


def apply_transactions(writer: Writer, records: Iterable[Record]) -> Applied:
    """Apply records of any partitions, as far as their transactions are complete.

    A transaction of the source is complete when its last change (`commit`) is there, and all before
    it by their `xoffset`; a change without `xid` is one by itself. They take effect in the order of
    their positions in the binlog. O(n log n).

    Args:
        records: of each partition by rising offsets.

    Raises:
        QuarantineStopError: a person has to apply a schema change, or a change can't be applied
            and `stop_on_quarantine` is set. The transactions before it are committed.
        ChangesError: the log lacks a part of a transaction, or has no positions.
        Exception: of the target's driver; then nothing has happened.
    """
    by_topic: dict[str, list[Record]] = {}
    for record in records:
        by_topic.setdefault(record.topic, []).append(record)
    total = Applied()
    for topic, topic_records in by_topic.items():
        batch = writer.parse(topic_records)
        writer.audit_log.log_reads(batch.items)
        stop: StopAtChangeError | None = None
        while True:
            try:
                applied, is_drained = _add_records(writer, topic, batch, stop)
                break
            except StopAtChangeError as error:
                stop = error
        if stop is not None:
            raise QuarantineStopError(stop.message)
        total += applied
        if not is_drained:
            total += drain_pending(writer, topic, by_transaction=True)
    return total


def _add_records(
    writer: Writer, topic: str, batch: Batch, stop: StopAtChangeError | None
) -> tuple[Applied, bool]:
    """Add new records, and apply what is complete; also return whether all of that was applied."""
    target = writer.target
    with writer.transaction():
        next_offsets = _lock_offsets(writer, topic, {item.record.partition for item in batch.items})
        new = [
            item
            for item in batch.items
            if item.record.offset >= next_offsets[item.record.partition]
        ]
        _check_positions(new, next_offsets)
        if batch.may_repeat:
            new, _ = writer.repeats.skip(new)
        last_records = {
            partition: target.last_pending(topic, partition) for partition in next_offsets
        }
        last_positions = {
            partition: last[:2] for partition, last in last_records.items() if last is not None
        }
        records = assign_positions(new, last_positions, by_transaction=True)
        incomplete = writer.incomplete.pop(topic, None)
        if incomplete is not None and not _stays(target, topic, incomplete, next_offsets, records):
            incomplete = None
        pending: list[PendingRecord] = []
        if incomplete is None:
            pending = _parse_pending(writer, batch, target.pending(topic, CHUNK_RECORDS + 1))
        is_drained = len(pending) <= CHUNK_RECORDS
        groups: list[TxnGroup] = []
        ready: list[TxnGroup] = []
        if is_drained and incomplete is None:
            groups = group_records([*pending, *records], by_transaction=True)
            ready = ready_groups(groups, None if stop is None else stop.quarantined[:3])
        done = {record.sort_key for group in ready for record in group.records}
        if stop is not None:
            # Of the new records, only those before the stop are stored as read.
            records = [record for record in records if record.sort_key in done]
        applied = _apply_groups(writer, batch, ready)
        target.delete_pending(
            topic, [record.sort_key for record in pending if record.sort_key in done]
        )
        writer.store_pending(record for record in records if record.sort_key not in done)
        if batch.may_repeat:
            writer.repeats.store(writer.repeats.skip([record.item for record in records])[1])
        ends = dict(next_offsets)
        for record in records:
            partition, offset = record.item.record.partition, record.item.record.offset
            ends[partition] = max(ends[partition], offset + 1)
        for partition, end in ends.items():
            if end != next_offsets[partition]:
                target.store_offset(topic, partition, end)
        _check_completable(writer, topic, ends)
        writer.audit_log.log_progress({(topic, partition): end for partition, end in ends.items()})
    if incomplete is not None:
        incomplete = replace(incomplete, next_offsets=ends)
    elif stop is None:
        incomplete = first_incomplete(groups[len(ready) :], ends)
    if incomplete is not None:
        writer.incomplete[topic] = incomplete
    skipped = len(batch.items) - len(new)
    return applied + Applied(skipped=skipped, pending=len(records) - len(done)), is_drained


def _stays(
    target: Target,
    topic: str,
    incomplete: IncompleteGroup,
    next_offsets: Mapping[int, int],
    records: Sequence[PendingRecord],
) -> bool:
    """Whether all new records have to wait for the group that was incomplete before them."""
    known = incomplete.next_offsets
    if any(offset != known.get(partition, 0) for partition, offset in next_offsets.items()):
        return False
    return incomplete.stays(records) and any(
        tuple(row[1:5]) == incomplete.sort_key for row in target.pending(topic, 1)
    )


def drain_pending(writer: Writer, topic: str, *, by_transaction: bool) -> Applied:
    """Apply pending records, as far as their groups are complete. O(n log n) of these.

    Raises:
        QuarantineStopError, ChangesError: as `apply_transactions`.
    """
    total = Applied()
    stop: StopAtChangeError | None = None
    while True:
        try:
            step = _drain_chunk(writer, topic, by_transaction, stop)
        except StopAtChangeError as error:
            stop = error
            continue
        if step is None:
            break
        total += step
    if stop is not None:
        raise QuarantineStopError(stop.message)
    return total


def _drain_chunk(
    writer: Writer, topic: str, by_transaction: bool, stop: StopAtChangeError | None
) -> Applied | None:
    """Apply the first pending groups in one transaction; None: the first is incomplete, or bad."""
    target = writer.target
    with writer.transaction():
        ends = _lock_offsets(writer, topic)
        batch = Batch()
        pending = _parse_pending(writer, batch, target.pending(topic, CHUNK_RECORDS))
        groups = group_records(pending, by_transaction=by_transaction)
        ready = ready_groups(groups, None if stop is None else stop.quarantined[:3])
        if ready:
            applied = _apply_groups(writer, batch, ready)
            target.delete_pending(
                topic, [record.sort_key for group in ready for record in group.records]
            )
        else:
            first = groups[0].name if len(pending) == CHUNK_RECORDS else None
            is_stopped = stop is not None and stop.group == first
            found = (0, None, None) if first is None else target.pending_group(topic, first)
            if first is None or is_stopped or not is_complete(*found):
                _check_completable(writer, topic, ends)
                incomplete = first_incomplete(groups, ends, is_counted=found[2] is not None)
                if by_transaction and stop is None and incomplete is not None:
                    writer.incomplete[topic] = incomplete
                return None
            applied = _apply_large_group(writer, topic, first)
        writer.audit_log.log_progress({(topic, partition): end for partition, end in ends.items()})
    return applied + Applied(pending=-applied.applied - applied.quarantined)


def _apply_large_group(writer: Writer, topic: str, group: str) -> Applied:
    """Within a transaction: apply a transaction of the source that is longer than a chunk."""
    target = writer.target
    applied = Applied()
    after: tuple[int, ...] = ()
    try:
        while rows := target.pending(topic, CHUNK_RECORDS, after=after):
            batch = Batch()
            pending = _parse_pending(writer, batch, rows)
            items = [record.item for record in pending if record.group == group]
            if not items:
                break
            applied += writer.change_rows(batch, items)
            after = pending[-1].sort_key
    except StopAtChangeError as error:
        error.group = group
        raise
    target.delete_own("purgatory_pending", topic=topic, txn_group=group)
    return applied


def _apply_groups(writer: Writer, batch: Batch, groups: Sequence[TxnGroup]) -> Applied:
    """Within a transaction: apply complete groups in order."""
    applied = Applied()
    for changes_schema, group_run in groupby(groups, key=lambda group: group.changes_schema):
        if changes_schema:
            for group in group_run:
                applied += writer.change_schema(batch, [record.item for record in group.records])
        else:
            items = [record.item for group in group_run for record in group.records]
            applied += writer.change_rows(batch, items)
    return applied


def _lock_offsets(writer: Writer, topic: str, partitions: Iterable[int] = ()) -> dict[int, int]:
    """Within a transaction: lock and return the next offsets of all of a topic's partitions."""
    stored = writer.target.select_own("purgatory_offsets", topic=topic)
    both = sorted({int(row[1]) for row in stored} | set(partitions))
    next_offsets = {partition: writer.target.lock_offset(topic, partition) for partition in both}
    writer.begin()
    return next_offsets


def _parse_pending(
    writer: Writer, batch: Batch, rows: Sequence[tuple[Any, ...]]
) -> list[PendingRecord]:
    """Parse rows of `purgatory_pending`, and quarantine malformed ones in `batch`."""
    parsed = writer.parse(
        Record(row[0], row[3], row[4], _bytes(row[8]), _bytes(row[9])) for row in rows
    )
    batch.quarantined.update(parsed.quarantined)
    batch.may_repeat |= parsed.may_repeat
    return [
        PendingRecord(item, row[1], row[2], *row[5:8])
        for item, row in zip(parsed.items, rows, strict=True)
    ]


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _check_positions(items: Sequence[Item], partitions: Sized) -> None:
    """Raise if the order between partitions is unknown: only the binlog's positions provide it."""
    for item in items:
        change = item.change
        if change is None:
            continue
        if change.origin is not None:
            _check_metadata(item, len(partitions) > 1)
        elif len(partitions) > 1 and change.xid is not None and change.position is None:
            topic, partition, offset = item.record[:3]
            raise ChangesError(
                f"{topic}, partition {partition}, offset {offset}: a transaction without its "
                "position in the binlog, in a topic of several partitions: its order is not known; "
                "set Maxwell's output_binlog_position, or use --atomicity row"
            )


def _check_metadata(item: Item, are_several: bool) -> None:
    """Raise if it is unknown which of Debezium's changes belong to a transaction."""
    change, (topic, partition, offset) = item.change, item.record[:3]
    assert change is not None, "it has an origin"
    if change.kind not in ROW_KINDS or change.kind == BOOTSTRAP_INSERT or change.origin is None:
        return
    problem = ""
    if change.origin.is_apart:
        problem = "the topic is of one table: route all into one topic (RegexRouter)"
    elif change.xid is None or (are_several and change.xoffset is None):
        problem = "the transaction is not known: set provide.transaction.metadata=true"
    if problem:
        raise ChangesError(
            f"{topic}, partition {partition}, offset {offset}: {problem}, or use --atomicity row"
        )


def _check_completable(writer: Writer, topic: str, partitions: Iterable[int]) -> None:
    """Raise if the first pending group can't become complete any more.

    A group can't become complete once all partitions are behind it, and so many records are pending
    that it is unlikely that a partition of the topic has not been read at all.
    """
    target = writer.target
    if target.pending_count(topic, MAX_PENDING_BEHIND + 1) <= MAX_PENDING_BEHIND:
        return
    [first] = _parse_pending(writer, Batch(), target.pending(topic, 1))
    if first.group is None:
        return
    for partition in partitions:
        last = target.last_pending(topic, partition)
        if last is None or last[0] <= first.position or last[2] == first.group:
            return
    after = target.pending_count(topic, MAX_PENDING_BEHIND + 1, after=first.position)
    if after > MAX_PENDING_BEHIND:
        record = first.item.record
        raise ChangesError(
            f"more than {MAX_PENDING_BEHIND:,} records wait for the rest of {first.group}, which "
            f"begins at {topic}, partition {record.partition}, offset {record.offset}, and all "
            "partitions continue behind it: the log lacks a change of it, or one can't be read; "
            "use --atomicity row"
        )
