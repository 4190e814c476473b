"""Changes as few SQL statements; the changes of a row stay in order.

A batch is split into groups of one statement each (upserts of certain columns of a table, or
deletes from it). A change may join an earlier group of its statement as long as no later group
touches its row. Each row's changes run in order, and a batch of thousands is a handful of
statements.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from purgatory.cdc.apply.tables import Plan
from purgatory.cdc.change import DELETE, SCHEMA_KINDS, UPDATE, Change, Record
from purgatory.cdc.column_types import Value
from purgatory.cdc.quarantine import MISSING_KEY, InvalidChangeError
from purgatory.cdc.targets.target import Table, Target


class Operation(NamedTuple):
    """One upsert or delete of one row."""

    table: Table
    columns: tuple[str, ...] | None
    """The columns of an upsert; None for a delete, whose values are the key."""
    values: tuple[Value, ...]
    key: tuple[Value, ...]


class Item(NamedTuple):
    """A parsed record. `Writer.plan` adds the operations of a row's change."""

    record: Record
    change: Change | None
    operations: tuple[Operation, ...] = ()

    @property
    def changes_schema(self) -> bool:
        return self.change is not None and self.change.kind in SCHEMA_KINDS


def plan_operations(change: Change, plan: Plan) -> tuple[Operation, ...]:
    """Return the operations of a row's change.

    An update that changes the primary key deletes the old row and writes the new one.

    Raises:
        InvalidChangeError: a column of the key is missing, or a value does not fit.
    """
    data = change.data
    key = _key(plan, data)
    if change.kind == DELETE:
        return (Operation(plan.table, None, key, key),)
    values = []
    for name, convert in zip(plan.columns, plan.converters, strict=True):
        value = data[name]
        if value is not None:
            try:
                value = convert(value)
            except InvalidChangeError as error:
                raise InvalidChangeError(error.reason, f"{name}: {error.detail}") from None
        values.append(value)
    upsert = Operation(plan.table, plan.columns, tuple(values), key)
    if change.kind == UPDATE and change.old:
        old = change.old
        for name, _ in plan.key:
            if name in old:
                before = _key(plan, {**data, **old})
                if before != key:
                    return (Operation(plan.table, None, before, before), upsert)
                break
    return (upsert,)


def _key(plan: Plan, row: Any) -> tuple[Value, ...]:
    key = []
    for name, convert in plan.key:
        value = row.get(name)
        if value is None:
            # A source without such NULLs may have a date that is none, which change logs write so.
            detail = (
                f"{name} of the primary key is null, as zero and impossible dates are"
                if name in row
                else f"the row lacks {name} of the primary key"
            )
            raise InvalidChangeError(MISSING_KEY, detail)
        key.append(convert(value))
    return tuple(key)


def execute(target: Target, items: Iterable[Item]) -> None:
    """Execute the operations of a batch, in as few statements as their order allows. O(operations)

    Raises:
        Exception: of the target's driver.
    """
    groups: list[tuple[Operation, list[tuple[Value, ...]]]] = []
    newest: dict[tuple[str, tuple[str, ...] | None], int] = {}
    last: dict[tuple[str, tuple[Value, ...]], int] = {}
    for item in items:
        for operation in item.operations:
            name = operation.table.name
            statement = (name, operation.columns)
            row = (name, operation.key)
            number = newest.get(statement, -1)
            if number < last.get(row, 0):
                number = newest[statement] = len(groups)
                groups.append((operation, []))
            groups[number][1].append(operation.values)
            last[row] = number
    for first, rows in groups:
        if first.columns is None:
            target.delete(first.table, rows)
        else:
            target.upsert(first.table, first.columns, rows)
