"""Writes the changes of a topic partition into a target exactly once.

    transaction:
        lock the partition's next offset
        skip records below it: a batch delivered again, a task that was presumed dead
        apply the rest in order; inapplicable changes go into the quarantine
        store the next offset
    commit

Killed before the commit, nothing has happened; killed after it, the same batch is skipped. No other
state is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from purgatory.cdc.apply.audit_log import AuditLog
from purgatory.cdc.apply.operations import Item, Operation, execute, plan_operations
from purgatory.cdc.apply.options import ApplyOptions
from purgatory.cdc.apply.pending import IncompleteGroup, PendingRecord, assign_positions
from purgatory.cdc.apply.repeats import Places, Repeats
from purgatory.cdc.apply.schema_changes import SchemaChanges
from purgatory.cdc.apply.shapes import RowShowsChangeError
from purgatory.cdc.apply.tables import SchemaChangedError, TargetTables
from purgatory.cdc.change import ROW_KINDS, SCHEMA_KINDS, Record
from purgatory.cdc.formats import parse_record
from purgatory.cdc.quarantine import NOT_APPLIED, InvalidChangeError, Quarantined, StopAtChangeError
from purgatory.cdc.targets.target import Target

_DEFAULTS = ApplyOptions()


@dataclass(frozen=True)
class Applied:
    """Counts of records.

    Args:
        applied: took effect, including those that change nothing.
        skipped: had been applied before.
        quarantined: can't be applied.
        pending: wait for the rest of their transaction, or for other partitions to reach a schema
            change; negative if fewer do than before.
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


@dataclass
class Batch:
    """Records to be applied, in the order in which they were read.

    Args:
        version: of the target's schemas, for which the items were planned.
        next_offset: of the partition, for which the items were planned.
        first_shown: the offset of a row that shows a change of its table, if any: it and all behind
            it are not planned.
        may_repeat: whether a log of the items may have changes twice.
        places: how far the items lead in such logs.
        quarantined: records that can't be applied, by topic, partition and offset.
    """

    items: list[Item] = field(default_factory=list)
    version: int = 0
    next_offset: int = 0
    first_shown: int | None = None
    may_repeat: bool = False
    places: Places = field(default_factory=dict)
    quarantined: dict[tuple[str, int, int], Quarantined] = field(default_factory=dict)

    def count_before_schema_change(self, items: Sequence[Item]) -> int:
        """The number of items before the first that changes a table, or shows such a change."""
        if self.first_shown is not None:
            items = [item for item in items if item.record.offset < self.first_shown]
        return next((n for n, item in enumerate(items) if item.changes_schema), len(items))

    def quarantine(self, record: Record, error: InvalidChangeError) -> None:
        """Mark a record as one that can't be applied."""
        self.quarantined[record[:3]] = Quarantined(
            *record[:3], error.reason, error.stored_detail, record.value
        )


class Writer:
    """Applies batches over one connection. One thread at a time."""

    def __init__(self, target: Target, options: ApplyOptions = _DEFAULTS) -> None:
        self.target = target
        self.options = options
        self.audit_log = AuditLog(target, options.audit_log)
        self._tables = TargetTables(target, options)
        self._schema_changes = SchemaChanges(target, options, self._tables)
        self.repeats = Repeats(target)
        self.incomplete: dict[str, IncompleteGroup] = {}
        """By topic: where it was found last, so that not each batch looks for it again."""

    def parse(self, records: Iterable[Record]) -> Batch:
        """Parse records, and quarantine malformed ones."""
        batch = Batch()
        for record in records:
            change = None
            try:
                change = parse_record(
                    record, self.options.log_format, max_bytes=self.options.max_value_bytes
                )
            except InvalidChangeError as error:
                batch.quarantine(record, error)
            if change is not None and change.origin is not None:
                batch.may_repeat = True
            batch.items.append(Item(record, change))
        return batch

    def plan_rows(self, batch: Batch) -> None:
        """Plan the new records of a partition, up to the first schema change.

        Outside of transactions.

        Raises:
            StopAtChangeError: a change can't be applied, and `stop_on_quarantine` is set.
            SchemaChangedError: plan again.
        """
        batch.version = self.begin()
        if not batch.items:
            return
        topic, partition = batch.items[0].record.topic_partition
        # Records that were applied must not create tables again that have been dropped since.
        offsets = self.target.select_own("purgatory_offsets", topic=topic, partition=partition)
        batch.next_offset, batch.first_shown = offsets[0][2] if offsets else 0, None
        start = sum(item.record.offset < batch.next_offset for item in batch.items)
        if batch.may_repeat:
            batch.items[start:], batch.places = self.repeats.skip(batch.items[start:])
        if self.target.last_pending(topic, partition) is not None:
            return
        end = start + batch.count_before_schema_change(batch.items[start:])
        planned = self.plan(batch, batch.items[start:end])
        batch.items[start : start + len(planned)] = planned
        if start + len(planned) < end:
            batch.first_shown = batch.items[start + len(planned)].record.offset

    def begin(self) -> int:
        """Read the target's tables again if they changed; return the version of its schemas."""
        return self._tables.begin()

    def plan(self, batch: Batch, items: Sequence[Item]) -> list[Item]:
        """Add the operations of row changes, and find or create their tables.

        Returns:
            The items before the first that changes a table, or whose row shows such a change.

        Raises:
            StopAtChangeError: a change can't be applied, and `stop_on_quarantine` is set.
        """
        planned = []
        done = batch.quarantined if batch.may_repeat else ()
        for record, change, _ in items:
            operations: tuple[Operation, ...] = ()
            if change is None or record[:3] in done:
                pass
            elif change.kind in SCHEMA_KINDS:
                break
            elif change.kind in ROW_KINDS:
                try:
                    operations = plan_operations(change, self._tables.plan(change, record.key))
                except RowShowsChangeError:
                    break
                except InvalidChangeError as error:
                    batch.quarantine(record, error)
                except (self.target.driver_error, ValueError, OverflowError) as error:
                    refusal = self.target.invalid_change(error)
                    if refusal is None:
                        raise
                    batch.quarantine(record, refusal)
            planned.append(Item(record, change, operations))
        if self.options.stop_on_quarantine:
            for item in planned:
                if item.record[:3] in batch.quarantined:
                    raise StopAtChangeError(batch.quarantined[item.record[:3]])
        return planned

    def commit(self, topic: str, partition: int, batch: Batch) -> Applied:
        """Apply planned items, all of one partition, in one transaction.

        Items from the first schema change on become pending, since it concerns other partitions,
        and so do all items while the partition has pending ones (see `transactions`).

        Raises:
            StopAtChangeError: the database refused a change, and `stop_on_quarantine` is set.
            SchemaChangedError: plan again.
        """
        if not batch.items:
            return Applied()
        with self.transaction():
            next_offset = self.target.lock_offset(topic, partition)
            new = [item for item in batch.items if item.record.offset >= next_offset]
            skipped = len(batch.items) - len(new)
            if not new:
                return Applied(skipped=skipped)
            if (self.target.schema_version(), next_offset) != (batch.version, batch.next_offset):
                raise SchemaChangedError
            last = self.target.last_pending(topic, partition)
            end = batch.count_before_schema_change(new) if last is None else 0
            applied = self.apply_items(batch, new[:end])
            last_positions = {} if last is None else {partition: last[:2]}
            self.store_pending(assign_positions(new[end:], last_positions, by_transaction=False))
            self.repeats.store(batch.places)
            self.target.store_offset(topic, partition, new[-1].record.offset + 1)
            self.audit_log.log_progress({(topic, partition): new[-1].record.offset + 1})
        return applied + Applied(skipped=skipped, pending=len(new) - end)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction of the target; a rollback also clears the cache of its tables."""
        try:
            with self.target.transaction():
                yield
        except BaseException:
            self._tables.forget()
            raise

    def store_pending(self, records: Iterable[PendingRecord]) -> None:
        """Within a transaction: store records for later."""
        rows = [
            (
                record.item.record.topic,
                *record.sort_key,
                record.group,
                record.xoffset,
                record.expected,
                record.item.record.key,
                record.item.record.value,
            )
            for record in records
        ]
        self.target.insert_own("purgatory_pending", rows)

    def change_schema(self, batch: Batch, items: Sequence[Item]) -> Applied:
        """Within a transaction: apply a schema change.

        Args:
            items: the copies of all partitions.

        Raises:
            StopAtChangeError: a person has to apply it, or `stop_on_quarantine` is set.
        """
        first = next(item for item in items if item.changes_schema)
        change, record = first.change, first.record
        assert change is not None, "it changes a schema"
        is_skipped = any(self._is_skipped(item.record) for item in items)
        with self._stopping(batch, record, change.kind, is_skipped), self.target.transaction():
            if is_skipped:
                raise InvalidChangeError(NOT_APPLIED, "skipped by --skip-ddl")
            if change.copies == 1 and change.removes_rows:
                others = "topics" if change.origin is not None and change.origin.is_apart else ""
                others = others or ("partitions" if self._partitions(record.topic) > 1 else "")
                if others:
                    raise InvalidChangeError(
                        NOT_APPLIED,
                        f"{change.kind} {change.source}: its order among the changes in the other "
                        f"{others} is not known",
                    )
            for one in (change, *change.others):
                self._schema_changes.apply(one)
        return self.apply_items(batch, items)

    def change_rows(self, batch: Batch, items: Sequence[Item]) -> Applied:
        """Within a transaction: plan and apply items, with the changes of tables that rows show.

        Raises:
            StopAtChangeError: a person has to apply one, or `stop_on_quarantine` is set.
        """
        applied = Applied()
        while items:
            planned = self.plan(batch, items)
            applied += self.apply_items(batch, planned)
            items = items[len(planned) :]
            if items and items[0].changes_schema:
                applied += self.change_schema(batch, items[:1])
                items = items[1:]
            elif items:
                self._follow_row(batch, items[0])
        return applied

    def _follow_row(self, batch: Batch, item: Item) -> None:
        """Within a transaction: apply the change of its table that a row shows."""
        change, record = item.change, item.record
        assert change is not None, "it is of a row"
        is_skipped = self._is_skipped(record)
        with self._stopping(batch, record, change.kind, False), self.target.transaction():
            is_alone = self._partitions(record.topic) <= 1
            self._schema_changes.follow_row(change, is_alone=is_alone, is_done=is_skipped)

    def _is_skipped(self, record: Record) -> bool:
        return f"{record.topic}:{record.partition}:{record.offset}" in self.options.skip_ddl

    def _partitions(self, topic: str) -> int:
        return len(self.target.select_own("purgatory_offsets", topic=topic))

    @contextmanager
    def _stopping(
        self, batch: Batch, record: Record, kind: str, is_skipped: bool
    ) -> Iterator[None]:
        """Quarantine a record whose schema change fails in the block; stop unless it is skipped."""
        try:
            yield
        except InvalidChangeError as error:
            batch.quarantine(record, error)
        except self.target.driver_error as error:
            if self.target.is_connection_error(error):
                raise
            reason = " ".join(str(error).split())
            batch.quarantine(record, InvalidChangeError(NOT_APPLIED, f"{kind}: {reason}"))
        quarantined = batch.quarantined.get(record[:3])
        if quarantined is not None:
            # The rollback also restored the version for which the rest is planned.
            self.begin()
            is_stop = quarantined.reason == NOT_APPLIED or self.options.stop_on_quarantine
            if is_stop and not is_skipped:
                raise StopAtChangeError(quarantined)

    def apply_items(self, batch: Batch, items: Sequence[Item]) -> Applied:
        """Within a transaction: apply items in order; write the quarantine and the audit log.

        Raises:
            StopAtChangeError: the database refused a change, and `stop_on_quarantine` is set.
        """
        if not items:
            return Applied()
        self._execute(batch, [item for item in items if item.record[:3] not in batch.quarantined])
        quarantined = [
            batch.quarantined[item.record[:3]]
            for item in items
            if item.record[:3] in batch.quarantined
        ]
        self.target.insert_own("purgatory_quarantine", quarantined)
        self.audit_log.log_effects(items, batch.quarantined.keys())
        return Applied(applied=len(items) - len(quarantined), quarantined=len(quarantined))

    def _execute(self, batch: Batch, items: Sequence[Item]) -> None:
        """Apply items; one that the database refuses is found by bisection, and quarantined.

        O(items) without such; k of them cost O(k log items) more.
        """
        if not items:
            return
        try:
            with self.target.savepoint():
                execute(self.target, items)
                return
        except Exception as error:
            refusal = self.target.invalid_change(error)
            if refusal is None:
                raise
            if len(items) == 1:
                record = items[0].record
                batch.quarantine(record, refusal)
                if self.options.stop_on_quarantine:
                    raise StopAtChangeError(batch.quarantined[record[:3]]) from error
                return
        middle = len(items) // 2
        self._execute(batch, items[:middle])
        self._execute(batch, items[middle:])
