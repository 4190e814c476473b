"""Records that wait for others: transactions of the source, and schema changes.

With atomicity `transaction`, only whole transactions of the source are applied, each in one
transaction of the target. With `row`, a schema change waits until all partitions have reached it.
Pending records are in the target's table `purgatory_waiting`, with their places (`pending`): a
transaction may be larger than memory.

    add records, in one transaction:  lock the next offsets; apply complete groups, in order; store
                                      the rest as pending; store the next offsets
    drain, until nothing is left:     lock them; read the first pending records; apply complete
                                      groups, in order; delete their records

In memory are the records of one call, and `CHUNK_RECORDS` pending ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from itertools import groupby

from purgatory.cdc.apply.operations import Item
from purgatory.cdc.apply.pending import Slot, Unit, is_whole, placed, ready, units_of
from purgatory.cdc.apply.writer import Applied, BadChangeMetError, Batch, Writer, stopped
from purgatory.cdc.change import Record
from purgatory.cdc.errors import ChangesError, Quarantined, StoppedOnBadError

CHUNK_RECORDS = 5_000
"""How many of the records that wait are in memory at a time."""

MOST_BEHIND = 100_000
"""How many records may wait behind a unit that the log does not have as a whole."""


def apply_transactions(writer: Writer, records: Iterable[Record]) -> Applied:
    """Apply records of any partitions, as far as their transactions are whole.

    A transaction of the source is whole when its last change is there (`commit`) and all before it,
    by their `xoffset`; what has no `xid` is one by itself. They take effect in the order of their
    places in the binlog. O(n log n).

    Args:
        writer: over the target.
        records: of each partition by rising offsets.

    Raises:
        StoppedOnBadError: it met a change of a schema that a person has to apply, or, asked to stop
            there, one that can't be applied. The transactions before that one have been committed.
        ChangesError: the log lacks a part of a transaction, or says no positions.
        Exception: what the target's driver raises; then nothing has happened.
    """
    by_topic: dict[str, list[Record]] = {}
    for record in records:
        by_topic.setdefault(record.topic, []).append(record)
    total = Applied()
    for topic, found in by_topic.items():
        total += _apply_topic(writer, topic, found)
    return total


def _apply_topic(writer: Writer, topic: str, records: Sequence[Record]) -> Applied:
    batch = writer.parse(records)
    writer.note_reads(batch)
    bad: Quarantined | None = None
    while True:
        try:
            applied, is_settled = _take_in(writer, topic, batch, bad)
        except BadChangeMetError as met:
            bad = met.bad
            continue
        if bad is not None:
            raise StoppedOnBadError(stopped(bad))
        return applied if is_settled else applied + settle(writer, topic, by_transaction=True)


def _take_in(
    writer: Writer, topic: str, batch: Batch, bad: Quarantined | None
) -> tuple[Applied, bool]:
    """Take in new records; also say whether what could be applied was."""
    target = writer.target
    with writer.transaction():
        next_offsets = _locked(writer, topic, {item.record.partition for item in batch.items})
        fresh = [
            item
            for item in batch.items
            if item.record.offset >= next_offsets[item.record.partition]
        ]
        _check_positions(fresh, next_offsets)
        lasts = {partition: target.last_waiting(topic, partition) for partition in next_offsets}
        places = {partition: last[:2] for partition, last in lasts.items() if last is not None}
        slots = placed(fresh, places, by_transaction=True)
        held = _read(writer, batch, target.waiting(topic, CHUNK_RECORDS + 1))
        is_settled = len(held) <= CHUNK_RECORDS
        taken: list[Unit] = []
        if is_settled:
            taken = ready(units_of([*held, *slots], by_transaction=True), bad and bad[:3])
        done = {slot.place for unit in taken for slot in unit.slots}
        if bad is not None:
            # Nothing that is new is taken note of, but what is applied.
            slots = [slot for slot in slots if slot.place in done]
        applied = _apply_units(writer, batch, taken)
        target.delete_waiting(topic, [slot.place for slot in held if slot.place in done])
        writer.keep_waiting(slot for slot in slots if slot.place not in done)
        ends = dict(next_offsets)
        for slot in slots:
            record = slot.item.record
            ends[record.partition] = max(ends[record.partition], record.offset + 1)
        for partition, end in ends.items():
            if end != next_offsets[partition]:
                target.store_offset(topic, partition, end)
        _check_whole(writer, topic, ends)
        writer.note_progress({(topic, partition): end for partition, end in ends.items()})
    skipped = len(batch.items) - len(fresh)
    pending = len(slots) - len(done)
    return applied + Applied(skipped=skipped, pending=pending), is_settled


def settle(writer: Writer, topic: str, *, by_transaction: bool) -> Applied:
    """Apply what waits, as far as it is whole. O(n log n) of what becomes whole.

    Args:
        topic: whose records.
        by_transaction: apply whole transactions only; else, each change by itself.

    Raises:
        StoppedOnBadError, ChangesError: as `apply_transactions`.
    """
    total = Applied()
    stop: BadChangeMetError | None = None
    while True:
        try:
            step = _settle_some(writer, topic, by_transaction, stop)
        except BadChangeMetError as met:
            stop = met
            continue
        if step is None:
            break
        total += step
    if stop is not None:
        raise StoppedOnBadError(stopped(stop.bad))
    return total


def _settle_some(
    writer: Writer, topic: str, by_transaction: bool, stop: BadChangeMetError | None
) -> Applied | None:
    """Apply the first that wait in one transaction; None: the first isn't whole, or is bad."""
    target = writer.target
    with writer.transaction():
        ends = _locked(writer, topic)
        batch = Batch()
        held = _read(writer, batch, target.waiting(topic, CHUNK_RECORDS))
        units = units_of(held, by_transaction=by_transaction)
        taken = ready(units, None if stop is None else stop.bad[:3])
        if taken:
            done = [slot.place for unit in taken for slot in unit.slots]
            applied = _apply_units(writer, batch, taken)
            target.delete_waiting(topic, done)
        else:
            first = units[0].name if len(held) == CHUNK_RECORDS else None
            is_bad = stop is not None and stop.unit == first
            if first is None or is_bad or not is_whole(*target.waiting_unit(topic, first)):
                _check_whole(writer, topic, ends)
                return None
            applied = _apply_large(writer, topic, first)
        writer.note_progress({(topic, partition): end for partition, end in ends.items()})
    return applied + Applied(pending=-applied.applied - applied.quarantined)


def _apply_large(writer: Writer, topic: str, unit: str) -> Applied:
    """Within a transaction: apply a transaction of the source that is longer than a chunk."""
    target = writer.target
    applied = Applied()
    behind: tuple[int, ...] = ()
    try:
        while rows := target.waiting(topic, CHUNK_RECORDS, behind=behind):
            batch = Batch()
            slots = _read(writer, batch, rows)
            items = [slot.item for slot in slots if slot.unit == unit]
            if not items:
                break
            applied += writer.apply_items(batch, writer.plan(batch, items))
            behind = slots[-1].place
    except BadChangeMetError as met:
        met.unit = unit
        raise
    target.delete_own("purgatory_waiting", topic=topic, unit=unit)
    return applied


def _apply_units(writer: Writer, batch: Batch, units: Sequence[Unit]) -> Applied:
    """Within a transaction: apply whole units in order."""
    applied = Applied()
    for changes_schema, found in groupby(units, key=lambda unit: unit.changes_schema):
        if changes_schema:
            for unit in found:
                applied += writer.change_schema(batch, [slot.item for slot in unit.slots])
        else:
            items = [slot.item for unit in found for slot in unit.slots]
            applied += writer.apply_items(batch, writer.plan(batch, items))
    return applied


def _locked(writer: Writer, topic: str, partitions: Iterable[int] = ()) -> dict[int, int]:
    """Within a transaction: the next offsets of a topic's partitions, all of them locked."""
    known = writer.target.select_own("purgatory_offsets", topic=topic)
    both = sorted({int(row[1]) for row in known} | set(partitions))
    next_offsets = {partition: writer.target.lock_offset(topic, partition) for partition in both}
    writer.begin()
    return next_offsets


def _read(writer: Writer, batch: Batch, rows: Sequence[tuple[object, ...]]) -> list[Slot]:
    """What waits, parsed again."""
    records = [
        Record(str(row[0]), _int(row[3]), _int(row[4]), _bytes(row[8]), _bytes(row[9]))
        for row in rows
    ]
    parsed = writer.parse(records)
    batch.bad.update(parsed.bad)
    return [
        Slot(item, _int(row[1]), _int(row[2]), _text(row[5]), _number(row[6]), _number(row[7]))
        for item, row in zip(parsed.items, rows, strict=True)
    ]


def _int(value: object) -> int:
    return int(value)  # type: ignore[call-overload, no-any-return]


def _number(value: object) -> int | None:
    return None if value is None else _int(value)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _bytes(value: object) -> bytes | None:
    return None if value is None else bytes(value)  # type: ignore[call-overload]


def _check_positions(items: Sequence[Item], partitions: Sized) -> None:
    """Raise if nothing tells the order between partitions: only the binlog's positions do."""
    if len(partitions) == 1:
        return
    for item in items:
        change = item.change
        if change is not None and change.xid is not None and change.position is None:
            topic, partition, offset = item.record[:3]
            raise ChangesError(
                f"{topic}, partition {partition}, offset {offset}: a transaction without its "
                "position in the binlog, in a topic of several partitions: its order is not known; "
                "have Maxwell write it (output_binlog_position), or apply by row"
            )


def _check_whole(writer: Writer, topic: str, partitions: Iterable[int]) -> None:
    """Raise if the first that waits can't become whole any more.

    All partitions are behind it, so nothing of it can come; and so much waits that no partition is
    likely that nothing came of so far.
    """
    target = writer.target
    if target.waiting_count(topic, MOST_BEHIND + 1) <= MOST_BEHIND:
        return
    [first] = _read(writer, Batch(), target.waiting(topic, 1))
    if first.unit is None:
        return
    for partition in partitions:
        last = target.last_waiting(topic, partition)
        if last is None or last[0] <= first.position or last[2] == first.unit:
            return
    behind = target.waiting_count(topic, MOST_BEHIND + 1, behind=first.position)
    if behind > MOST_BEHIND:
        record = first.item.record
        raise ChangesError(
            f"more than {MOST_BEHIND:,} records wait for the rest of {first.unit}, which begins at "
            f"{topic}, partition {record.partition}, offset {record.offset}, and all partitions go "
            "on behind it: a change of it is missing in the log, or can't be read; apply by row"
        )
