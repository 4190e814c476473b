"""Changes of a topic partition into a target, exactly once: effects and offset in one transaction.

    transaction:
        lock the partition's next offset
        skip what lies below it: a batch that came again, a task that was thought dead
        apply the rest in order; what can't be goes to the quarantine
        store the next offset
    commit

Killed before the commit, nothing has happened; killed after it, the same batch is skipped. Nothing
else has to be remembered anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from purgatory.changes.change import DATABASE_KINDS, ROW_KINDS, TABLE_KINDS, Change, parse_change
from purgatory.changes.errors import BadChangeError, StoppedOnBadError
from purgatory.changes.options import ApplyOptions
from purgatory.changes.quarantine import MOST_DETAIL, Quarantined
from purgatory.changes.record import Record, number_of
from purgatory.changes.schema import Schema
from purgatory.changes.statements import Item, Operation, execute, operations_of
from purgatory.changes.targets.target import Target

_DEFAULTS = ApplyOptions()


@dataclass(frozen=True)
class Applied:
    """What became of some records.

    Args:
        applied: how many took effect, those included that had nothing to do.
        skipped: how many had been applied before.
        quarantined: how many were set aside.
        pending: how many more wait for the rest of their transaction; below 0 if fewer do.
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


def apply_batch(
    target: Target,
    topic: str,
    partition: int,
    records: Iterable[Record],
    options: ApplyOptions = _DEFAULTS,
) -> Applied:
    """Apply consecutive records of one partition in one transaction of the target.

    Args:
        target: prepared (`Target.prepare`).
        topic, partition: which all the records are of.
        records: by rising offsets; those that were applied before are skipped.
        options: how.

    Returns:
        What became of them.

    Raises:
        StoppedOnBadError: asked to stop, it met a change that can't be applied; what is before it
            has been committed.
        Exception: what the target's driver raises; then nothing has happened.
    """
    return Writer(target, options).apply_batch(topic, partition, records)


class Batch:
    """Records on their way into the target: what is to be done for each, and what is set aside."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.bad: dict[tuple[str, int, int], Quarantined] = {}

    def set_aside(self, record: Record, error: BadChangeError) -> None:
        """Take a record for one that can't be applied."""
        # What came in may be quoted in it, and not every text can be stored.
        detail = error.detail[:MOST_DETAIL].replace("\0", "\\0")
        detail = detail.encode("utf-8", "backslashreplace").decode()
        self.bad[record[:3]] = Quarantined(*record[:3], error.reason, detail, record.value)

    def first_bad(self) -> Quarantined | None:
        """The first record that can't be applied, in the order in which they came."""
        return next(
            (self.bad[item.record[:3]] for item in self.items if item.record[:3] in self.bad), None
        )


class Writer:
    """Applies batches over one connection, and knows its tables. One thread at a time."""

    def __init__(self, target: Target, options: ApplyOptions = _DEFAULTS) -> None:
        self.target = target
        self.options = options
        self._schema = Schema(target, options)

    def apply_batch(self, topic: str, partition: int, records: Iterable[Record]) -> Applied:
        """See `apply_batch`."""
        batch = self.compile(records)
        self.note_reads(batch)
        if not self.options.stop_on_bad:
            return self.commit(topic, partition, batch)
        bad = batch.first_bad()
        while bad is not None:
            batch.items = [item for item in batch.items if item.record.offset < bad.offset]
            try:
                self.commit(topic, partition, batch)
            except BadChangeMetError as met:
                bad = met.bad
                continue
            raise StoppedOnBadError(stopped(bad))
        try:
            return self.commit(topic, partition, batch)
        except BadChangeMetError as met:
            batch.items = [item for item in batch.items if item.record.offset < met.bad.offset]
            self.commit(topic, partition, batch)
            raise StoppedOnBadError(stopped(met.bad)) from None

    def compile(self, records: Iterable[Record]) -> Batch:
        """Parse records, and find or make the tables of their changes. Outside of transactions."""
        self._schema.begin_batch()
        batch = Batch()
        for record in records:
            if record.value is None:
                # A tombstone: the delete came before it.
                batch.items.append(Item(record, None, ()))
                continue
            change = None
            operations: tuple[Operation, ...] = ()
            try:
                change = parse_change(record.value, most_bytes=self.options.most_value_bytes)
                operations = self._operations(record, change)
            except BadChangeError as error:
                batch.set_aside(record, error)
            except (self.target.driver_error, ValueError, OverflowError) as error:
                refusal = self.target.refusal(error)
                if refusal is None:
                    raise
                batch.set_aside(record, refusal)
            batch.items.append(Item(record, change, operations))
        return batch

    def _operations(self, record: Record, change: Change) -> tuple[Operation, ...]:
        if change.kind in ROW_KINDS:
            return operations_of(change, self._schema.plan(change, record.key))
        if change.kind in TABLE_KINDS or change.kind in DATABASE_KINDS:
            self._schema.define(change)
        return ()

    def commit(self, topic: str, partition: int, batch: Batch) -> Applied:
        """Apply what was compiled, all of one partition, in one transaction.

        Raises:
            BadChangeMetError: the database refused one, and it was asked to stop there.
        """
        if not batch.items:
            return Applied()
        with self.target.transaction():
            next_offset = self.target.lock_offset(topic, partition)
            fresh = [item for item in batch.items if item.record.offset >= next_offset]
            skipped = len(batch.items) - len(fresh)
            if not fresh:
                return Applied(skipped=skipped)
            applied = self.apply_items(batch, fresh)
            end = fresh[-1].record.offset + 1
            self.target.store_offset(topic, partition, end)
            self.note_commits([(topic, partition, end)])
        return applied + Applied(skipped=skipped)

    def apply_items(self, batch: Batch, items: Sequence[Item]) -> Applied:
        """Within a transaction: apply items in order, and write what is set aside and the effects.

        Raises:
            BadChangeMetError: the database refused one, and it was asked to stop there.
        """
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

    def note_commits(self, ends: Sequence[tuple[str, int, int]]) -> None:
        """Within a transaction: write down up to where the results are stored."""
        if self.options.effects:
            now_us = time.time_ns() // 1000
            self.target.insert_own("purgatory_commits", [(*end, now_us) for end in ends])


class BadChangeMetError(Exception):
    """Within a transaction, a change was refused at which to stop: the transaction is undone."""

    def __init__(self, bad: Quarantined) -> None:
        super().__init__(bad.detail)
        self.bad = bad


def stopped(bad: Quarantined) -> str:
    """What is told when it stops at a change."""
    return (
        f"{bad.topic}, partition {bad.partition}, offset {bad.offset}: {bad.reason}: {bad.detail} "
        "(all before it is applied; mend it, or go on without --stop-on-bad)"
    )


def _value_id(item: Item) -> int:
    """What stands for the content; one that does not say where it comes from is like no other."""
    if item.change is not None and item.change.position is not None:
        return number_of(item.record.value)
    return number_of(repr(item.record[:3]).encode())


def _effect(item: Item, is_bad: bool, applied_us: int) -> tuple[str, int, int, int, int, int]:
    """What is written of one application: to which row, and the how manieth change of it.

    What did nothing to a row is an effect on itself: in the quarantine, or just passed by.
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
