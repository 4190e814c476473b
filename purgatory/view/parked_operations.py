"""The operations of a trace that waited, and those that were settled, as columns."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from purgatory.trace import change_rows as rows
from purgatory.trace.change_rows import due_ms
from purgatory.view.trace_columns import NULL, Ints, Names, ints, names

Keys: TypeAlias = Any
"""A column of lists of texts, of Arrow."""


class ParkedOperations(NamedTuple):
    """What waited, in the order in which it began to; ``clock_ms`` as in the table `changes`."""

    time_us: Ints
    ids: Ints
    broker: Ints
    purgatory: Names
    kind: Names
    keys: Keys
    due_ms: Ints
    clock_ms: Ints


class SettledOperations(NamedTuple):
    """What was settled, in that order; ``parked``: which of those that waited it is, or -1."""

    time_us: Ints
    ids: Ints
    broker: Ints
    purgatory: Names
    kind: Names
    keys: Keys
    outcome: Names
    wait_us: Ints
    parked: Ints


def keys_at(keys: Keys, row: int) -> list[str]:
    """Return the keys of a row; none, if they are not known."""
    found: list[str] | None = keys[row].as_py()
    return found or []


def told(
    operations: pa.Table, changes: pa.Table
) -> tuple[ParkedOperations, SettledOperations, Ints]:
    """Return what waited and what was settled, where the table `changes` tells.

    Returns:
        Both, and for each row of `changes` that is of an operation, which one it is; else -1.
    """
    is_parked = pc.equal(changes.column("change"), rows.PARKED)
    parked = changes.filter(is_parked)
    numbers = parked.column("number")
    waiting = ParkedOperations(
        ints(parked.column("time_us")),
        ints(numbers),
        ints(parked.column("broker")),
        names(parked.column("name")),
        names(parked.column("state")),
        parked.column("names").combine_chunks(),
        ints(parked.column("due_ms")),
        ints(parked.column("clock_ms")),
    )
    which = pc.index_in(changes.column("number"), value_set=numbers.combine_chunks())
    concerns = pc.or_(is_parked, pc.equal(changes.column("change"), rows.SETTLED))
    which = pc.if_else(concerns, which, pa.scalar(None, pa.int32()))
    settled = _in_order(operations)
    found = pc.index_in(settled.column("operation"), value_set=numbers.combine_chunks())
    return waiting, _settled(settled, settled.column("operation"), ints(found)), ints(which)


def with_parked(operations: pa.Table, changes: pa.Table) -> pa.Table:
    """Return the table `changes` of a cluster in real time, with a row of each that waited.

    There only what was never settled has one: of all others `operations` tells as much.
    """
    waited = operations.filter(_has_waited(operations))
    start_us, timeout_ms = ints(waited.column("start_us")), ints(waited.column("timeout_ms"))
    due = [due_ms(*one) for one in zip(start_us, timeout_ms, strict=True)]
    nothing = pa.nulls(waited.num_rows)
    columns = {
        "time_us": waited.column("start_us"),
        "change": pa.array([rows.PARKED] * waited.num_rows, pa.string()),
        "broker": waited.column("broker"),
        "name": waited.column("purgatory"),
        "number": waited.column("operation"),
        "state": waited.column("kind"),
        "due_ms": pa.array(due, pa.int64()),
        "names": waited.column("watch_keys"),
    }
    parked = pa.table(
        {
            field.name: pa.chunked_array([columns.get(field.name, nothing)])
            if not isinstance(columns.get(field.name), pa.ChunkedArray)
            else columns[field.name]
            for field in changes.schema
        }
    ).cast(changes.schema)
    return _by(pa.concat_tables([changes, parked]), "time_us")


def _has_waited(operations: pa.Table) -> pa.ChunkedArray:
    return pc.and_(
        pc.not_equal(operations.column("outcome"), "immediate"),
        pc.greater(operations.column("end_us"), operations.column("start_us")),
    )


def guessed(operations: pa.Table) -> tuple[ParkedOperations, SettledOperations]:
    """Return what waited and what was settled, where the operations alone are known.

    An operation is due when its timeout is over: a real broker's timer may have another origin.
    """
    row_numbers = pa.chunked_array([pa.array(range(operations.num_rows), pa.int64())])
    operations = operations.append_column("row", row_numbers)
    parked = operations.filter(_has_waited(operations))
    parked = parked.take(pc.sort_indices(parked, [("start_us", "ascending")]))
    start_us = ints(parked.column("start_us"))
    timeout_ms = ints(parked.column("timeout_ms"))
    due = array("q", (_due_ms(*one) for one in zip(start_us, timeout_ms, strict=True)))
    waiting = ParkedOperations(
        start_us,
        ints(parked.column("row")),
        ints(parked.column("broker")),
        names(parked.column("purgatory")),
        names(parked.column("kind")),
        parked.column("watch_keys").combine_chunks(),
        due,
        array("q", [-1]) * len(start_us),
    )
    settled = _in_order(operations)
    found = pc.index_in(settled.column("row"), value_set=parked.column("row").combine_chunks())
    return waiting, _settled(settled, settled.column("row"), ints(found))


def _due_ms(start_us: int, timeout_ms: int) -> int:
    due = due_ms(start_us, timeout_ms)
    return NULL if due is None else due


def _in_order(operations: pa.Table) -> pa.Table:
    settled = operations.filter(pc.not_equal(operations.column("outcome"), "pending"))
    return _by(settled, "end_us")


def _by(table: pa.Table, column: str) -> pa.Table:
    """Return a table in the order of a column; rows of one moment stay in theirs."""
    rank = pa.array(range(table.num_rows), pa.int64())
    keyed = table.append_column("rank", pa.chunked_array([rank]))
    order = pc.sort_indices(keyed, [(column, "ascending"), ("rank", "ascending")])
    return table.take(order)


def _settled(settled: pa.Table, ids: pa.ChunkedArray, parked: Ints) -> SettledOperations:
    wait_us = pc.subtract(settled.column("end_us"), settled.column("start_us"))
    return SettledOperations(
        ints(settled.column("end_us")),
        ints(ids),
        ints(settled.column("broker")),
        names(settled.column("purgatory")),
        names(settled.column("kind")),
        settled.column("watch_keys").combine_chunks(),
        names(settled.column("outcome")),
        ints(wait_us),
        parked,
    )
