"""Writes the changes of a topic partition into a target exactly once.

    transaction:
        lock the partition's next offset
        skip records below it: a batch delivered again, a task that was presumed dead
        apply the rest in order; what can't be applied goes into the quarantine
        store the next offset
    commit

Killed before the commit, nothing has happened; killed after it, the same batch is skipped. No other
state is needed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from purgatory.cdc.apply.operations import Item, Operation, execute, operations_of
from purgatory.cdc.apply.options import ApplyOptions
from purgatory.cdc.apply.pending import Slot, placed
from purgatory.cdc.apply.schema_changes import SchemaChanges
from purgatory.cdc.apply.tables import Schema, SchemaMovedError
from purgatory.cdc.change import ROW_KINDS, Record, number_of, parse_change
from purgatory.cdc.errors import MOST_DETAIL, NOT_APPLIED, BadChangeError, Quarantined
from purgatory.cdc.targets.target import Target

_DEFAULTS = ApplyOptions()


@dataclass(frozen=True)
class Applied:
    """What became of some records.

    Args:
        applied: how many took effect, those included that had nothing to do.
        skipped: how many had been applied before.
        quarantined: how many were set aside.
        pending: how many more wait, for the rest of their transaction or for other partitions to
            come to a change of a schema; below 0 if fewer do.
    """

    applied: int = 0
    skipped: int = 0
    quarantined: int = 0
    pending: int = 0

    def __add__(self, other: Applied) -> Applied:
        return Applied(
            self.applied + other.applied,
            self.skipped + other.skipped,
            self.quarantined + other.quarantined,
            self.pending + other.pending,
        )


class Batch:
    """Records on their way into the target: what is to be done for each, and what is set aside.

    Args:
        items: in the order in which they came.
        version: that of the target's schemas for which they were planned.
    """

    def __init__(self, items: Sequence[Item] = (), version: int = 0) -> None:
        self.items = list(items)
        self.version = version
        self.bad: dict[tuple[str, int, int], Quarantined] = {}

    def set_aside(self, record: Record, error: BadChangeError) -> None:
        """Take a record for one that can't be applied."""
        # It may quote the record, and not every text can be stored.
        detail = error.detail[:MOST_DETAIL].replace("\0", "\\0")
        detail = detail.encode("utf-8", "backslashreplace").decode()
        self.bad[record[:3]] = Quarantined(*record[:3], error.reason, detail, record.value)

    def first_bad(self, items: Iterable[Item]) -> Quarantined | None:
        """The first of these that can't be applied."""
        return next(
            (self.bad[item.record[:3]] for item in items if item.record[:3] in self.bad), None
        )


class Writer:
    """Applies batches over one connection, and knows its tables. One thread at a time."""

    def __init__(self, target: Target, options: ApplyOptions = _DEFAULTS) -> None:
        self.target = target
        self.options = options
        self._schema = Schema(target, options)
        self._schema_changes = SchemaChanges(target, options, self._schema)

    def parse(self, records: Iterable[Record]) -> Batch:
        """Parse records, and set aside what can't be read."""
        batch = Batch()
        for record in records:
            change = None
            # Without a value it is a tombstone: the delete came before it.
            if record.value is not None:
                try:
                    change = parse_change(record.value, most_bytes=self.options.most_value_bytes)
                except BadChangeError as error:
                    batch.set_aside(record, error)
            batch.items.append(Item(record, change))
        return batch

    def compile(self, records: Iterable[Record]) -> Batch:
        """Parse and plan records. Outside of transactions."""
        batch = self.parse(records)
        self.plan_rows(batch)
        return batch

    def plan_rows(self, batch: Batch) -> None:
        """Plan what of a partition is new, and comes before the first change of a schema.

        Outside of transactions.

        Raises:
            BadChangeMetError: asked to stop there, it met what can't be applied.
            SchemaMovedError: plan again.
        """
        batch.version = self.begin()
        if not batch.items:
            return
        topic, partition = batch.items[0].record.place
        if self.target.last_waiting(topic, partition) is not None:
            return
        # Records that were applied must not make tables again that have gone since.
        known = self.target.select_own("purgatory_offsets", topic=topic, partition=partition)
        next_offset = known[0][2] if known else 0
        start = sum(item.record.offset < next_offset for item in batch.items)
        end = start + _rows_until(batch.items[start:])
        batch.items[start:end] = self.plan(batch, batch.items[start:end])

    def begin(self) -> int:
        """Look at the target's tables again where they changed; return their version."""
        return self._schema.begin()

    def plan(self, batch: Batch, items: Sequence[Item]) -> list[Item]:
        """Say what changes of rows do, and find or make their tables.

        Raises:
            BadChangeMetError: asked to stop there, it met what can't be applied.
        """
        planned = []
        for record, change, _ in items:
            operations: tuple[Operation, ...] = ()
            if change is not None and change.kind in ROW_KINDS:
                try:
                    plan = self._schema.plan(change, record.key)
                    operations = operations_of(change, plan)
                except BadChangeError as error:
                    batch.set_aside(record, error)
                except (self.target.driver_error, ValueError, OverflowError) as error:
                    refusal = self.target.refusal(error)
                    if refusal is None:
                        raise
                    batch.set_aside(record, refusal)
            planned.append(Item(record, change, operations))
        bad = batch.first_bad(planned) if self.options.stop_on_bad else None
        if bad is not None:
            raise BadChangeMetError(bad)
        return planned

    def commit(self, topic: str, partition: int, batch: Batch) -> Applied:
        """Apply what was planned, all of one partition, in one transaction.

        What comes from the first change of a schema on, which concerns other partitions too, waits,
        and so does all that comes while something of the partition waits: see `transactions`.

        Raises:
            BadChangeMetError: the database refused one, and it was asked to stop there.
            SchemaMovedError: plan again.
        """
        if not batch.items:
            return Applied()
        with self.transaction():
            next_offset = self.target.lock_offset(topic, partition)
            fresh = [item for item in batch.items if item.record.offset >= next_offset]
            skipped = len(batch.items) - len(fresh)
            if not fresh:
                return Applied(skipped=skipped)
            if self.target.schema_version() != batch.version:
                raise SchemaMovedError
            last = self.target.last_waiting(topic, partition)
            end = _rows_until(fresh) if last is None else 0
            applied = self.apply_items(batch, fresh[:end])
            places = {} if last is None else {partition: last[:2]}
            self.keep_waiting(placed(fresh[end:], places, by_transaction=False))
            self.target.store_offset(topic, partition, fresh[-1].record.offset + 1)
            self.note_progress({(topic, partition): fresh[-1].record.offset + 1})
        return applied + Applied(skipped=skipped, pending=len(fresh) - end)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction of the target; what is known of its tables is forgotten if it fails."""
        try:
            with self.target.transaction():
                yield
        except BaseException:
            self._schema.forget()
            raise

    def keep_waiting(self, slots: Iterable[Slot]) -> None:
        """Within a transaction: keep records for later."""
        rows = [
            (
                slot.item.record.topic,
                *slot.place,
                slot.unit,
                slot.xoffset,
                slot.wanted,
                slot.item.record.key,
                slot.item.record.value,
            )
            for slot in slots
        ]
        self.target.insert_own("purgatory_waiting", rows)

    def change_schema(self, batch: Batch, items: Sequence[Item]) -> Applied:
        """Within a transaction: apply a change of a schema, of which these are the copies.

        Raises:
            BadChangeMetError: a person has to do it, or it was asked to stop there.
        """
        first = next(item for item in items if item.changes_schema)
        change, record = first.change, first.record
        assert change is not None, "it changes a schema"
        is_passed = any(place_of(item.record) in self.options.passed for item in items)
        try:
            with self.target.transaction():
                if is_passed:
                    raise BadChangeError(NOT_APPLIED, "it was to be passed by")
                if change.copies == 1 and change.takes_away:
                    self._check_only_partition(record)
                self._schema_changes.apply(change)
        except BadChangeError as error:
            batch.set_aside(record, error)
        except self.target.driver_error as error:
            if self.target.is_lost(error):
                raise
            reason = " ".join(str(error).split())
            batch.set_aside(record, BadChangeError(NOT_APPLIED, f"{change.kind}: {reason}"))
        if record[:3] in batch.bad:
            # The database has its old version again, for which the rest is planned.
            self.begin()
        bad = batch.bad.get(record[:3])
        stops = bad is not None and (bad.reason == NOT_APPLIED or self.options.stop_on_bad)
        if bad is not None and stops and not is_passed:
            raise BadChangeMetError(bad)
        return self.apply_items(batch, items)

    def _check_only_partition(self, record: Record) -> None:
        known = self.target.select_own("purgatory_offsets", topic=record.topic)
        if len(known) > 1:
            raise BadChangeError(
                NOT_APPLIED,
                "nothing says where it comes between the changes in the other partitions",
            )

    def apply_items(self, batch: Batch, items: Sequence[Item]) -> Applied:
        """Within a transaction: apply items in order, and write what is set aside and the effects.

        Raises:
            BadChangeMetError: the database refused one, and it was asked to stop there.
        """
        if not items:
            return Applied()
        good = [item for item in items if item.record[:3] not in batch.bad]
        self._execute(batch, good)
        bad = [batch.bad[item.record[:3]] for item in items if item.record[:3] in batch.bad]
        self.target.insert_own("purgatory_quarantine", bad)
        if self.options.effects:
            # The audit takes effects of one microsecond in the order of their partitions: each has
            # one of its own, of those that applying them took.
            first_us = time.time_ns() // 1000 - len(items)
            self.target.insert_own(
                "purgatory_effects",
                [
                    _effect(item, item.record[:3] in batch.bad, first_us + number)
                    for number, item in enumerate(items)
                ],
            )
        return Applied(applied=len(items) - len(bad), quarantined=len(bad))

    def _execute(self, batch: Batch, items: Sequence[Item]) -> None:
        """Apply items; one that the database refuses is found by halving, and set aside.

        O(items) without such; k of them cost O(k log items) more.
        """
        if not items:
            return
        try:
            with self.target.savepoint():
                execute(self.target, items)
                return
        except Exception as error:
            refusal = self.target.refusal(error)
            if refusal is None:
                raise
            if len(items) == 1:
                batch.set_aside(items[0].record, refusal)
                if self.options.stop_on_bad:
                    raise BadChangeMetError(batch.bad[items[0].record[:3]]) from error
                return
        middle = len(items) // 2
        self._execute(batch, items[:middle])
        self._execute(batch, items[middle:])

    def note_reads(self, batch: Batch) -> None:
        """Write down what was delivered, whatever becomes of it: in a transaction of its own."""
        if not self.options.effects or not batch.items:
            return
        now_us = time.time_ns() // 1000
        rows = [(*item.record[:3], now_us, _value_id(item), now_us) for item in batch.items]
        with self.target.transaction():
            self.target.insert_own("purgatory_reads", rows)

    def note_progress(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Within a transaction: write down up to where the results are stored.

        Args:
            ends: up to where was read, by topic and partition.
        """
        if not self.options.effects:
            return
        waiting = {place: self.target.first_waiting(*place) for place in ends}
        self.note_commits(
            [
                (*place, end if first is None else first)
                for (place, end), first in zip(ends.items(), waiting.values(), strict=True)
            ]
        )

    def note_commits(self, ends: Sequence[tuple[str, int, int]]) -> None:
        """Within a transaction: write down up to where the results are stored."""
        if self.options.effects:
            now_us = time.time_ns() // 1000
            self.target.insert_own("purgatory_commits", [(*end, now_us) for end in ends])


class BadChangeMetError(Exception):
    """Within a transaction, a change was refused at which to stop: the transaction is undone.

    Args:
        bad: the change.
        unit: the name of the unit that it is a part of, where that was longer than a chunk.
    """

    def __init__(self, bad: Quarantined) -> None:
        super().__init__(bad.detail)
        self.bad = bad
        self.unit: str | None = None


def stopped(bad: Quarantined) -> str:
    """What is told when it stops at a change."""
    advice = "mend it, or go on without --strict"
    if bad.reason == NOT_APPLIED:
        place = f"{bad.topic}:{bad.partition}:{bad.offset}"
        advice = f"do it in the target by hand, and go on with --pass {place}"
    return (
        f"{bad.topic}, partition {bad.partition}, offset {bad.offset}: {bad.reason}: {bad.detail} "
        f"(all before it is applied; {advice})"
    )


def place_of(record: Record) -> str:
    """A record's place, as `ApplyOptions.passed` has it."""
    return f"{record.topic}:{record.partition}:{record.offset}"


def _rows_until(items: Sequence[Item]) -> int:
    """How many records come before the first change of a schema."""
    return next((n for n, item in enumerate(items) if item.changes_schema), len(items))


def _value_id(item: Item) -> int:
    """What stands for the content; one that does not say where it comes from is like no other."""
    if item.change is not None and item.change.position is not None:
        return number_of(item.record.value)
    return number_of(repr(item.record[:3]).encode())


def _effect(item: Item, is_bad: bool, applied_us: int) -> tuple[str, int, int, int, int, int]:
    """Return what is written of one application: its row, and the number of that row's change.

    A record that did nothing to a row is an effect on itself: in the quarantine, or just passed by.
    """
    record, change, operations = item
    if is_bad or change is None or not operations:
        key, version = number_of(repr(record[:3]).encode()), 0
    elif record.key is not None:
        key, version = number_of(record.key), change.version(record.offset)
    else:
        row = (change.source, operations[-1].key)
        key, version = number_of(repr(row).encode()), change.version(record.offset)
    return (*record[:3], key, version, applied_us)
