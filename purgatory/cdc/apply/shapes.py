"""The shapes of tables as rows show them: columns added or dropped, and a new snapshot.

A log without the source's statements has such changes only in the rows behind them. The target's
table `purgatory_shapes` has what the last row of each table showed.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from purgatory.cdc.change import Origin
from purgatory.cdc.targets.target import Target


class RowShowsChangeError(Exception):
    """A row shows a change of its table, which has to be applied before it."""


class Shape(NamedTuple):
    """The known shape of a table of the source.

    Args:
        columns: of its last row.
        place, time_ms: of that row, in the log.
        snapshot: of which the table's rows are; empty if of none.
        announced: the last snapshot that has the table, perhaps without rows.
    """

    columns: frozenset[str]
    place: tuple[int, ...] = ()
    time_ms: int = 0
    snapshot: str = ""
    announced: str = ""

    def shows(self, origin: Origin) -> bool:
        """Whether a row shows a change."""
        return (
            origin.columns is not None and origin.columns.keys() != self.columns
        ) or self.has_new_snapshot(origin)

    def has_new_snapshot(self, origin: Origin) -> bool:
        """Whether a row is of another snapshot."""
        return bool(origin.snapshot) and origin.snapshot != self.snapshot

    def after(self, origin: Origin) -> Shape:
        """The shape with what a row shows."""
        columns = self.columns if origin.columns is None else frozenset(origin.columns)
        return Shape(
            columns,
            origin.place or self.place,
            max(origin.time_ms, self.time_ms),
            origin.snapshot or self.snapshot,
            self.announced,
        )

    def is_older(self, origin: Origin) -> bool:
        """Whether a row comes from another partition, and lies before the last one."""
        is_before = () < origin.place < self.place
        return is_before and origin.time_ms <= self.time_ms


class Shapes:
    """The shapes in a target, with a cache."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[str, Shape | None] = {}

    def forget(self) -> None:
        """Clear the cache."""
        self._known.clear()

    def find(self, source: str) -> Shape | None:
        """The shape of a table of the source; None if it is unknown."""
        if source not in self._known:
            rows = self._target.select_own("purgatory_shapes", source=source)
            self._known[source] = _shape(rows[0]) if rows else None
        return self._known[source]

    def announced(self, snapshot: str) -> list[tuple[str, Shape]]:
        """The tables that a snapshot has, and whose rows are not of it yet."""
        rows = self._target.select_own("purgatory_shapes", announced=snapshot)
        return [(row[0], _shape(row)) for row in rows if row[4] != snapshot]

    def add(self, source: str, shape: Shape) -> None:
        """Store the first shape of a table; one that is there stays."""
        with self._target.transaction():
            self._target.insert_own("purgatory_shapes", [_row(source, shape)])
        self._known.pop(source, None)

    def store(self, source: str, shape: Shape) -> None:
        """Replace the shape of a table."""
        with self._target.transaction():
            self.delete(source)
            self._target.insert_own("purgatory_shapes", [_row(source, shape)])
        self._known[source] = shape

    def delete(self, source: str) -> None:
        """Delete the shape of a table."""
        self._target.delete_own("purgatory_shapes", source=source)
        self._known.pop(source, None)

    def rename(self, source: str, new: str) -> None:
        """Give a table's shape to another name."""
        shape = self.find(source)
        self.delete(source)
        if shape is not None:
            self.store(new, shape)


def _row(source: str, shape: Shape) -> tuple[Any, ...]:
    return source, json.dumps(sorted(shape.columns)), json.dumps(shape.place), *shape[2:]


def _shape(row: tuple[Any, ...]) -> Shape:
    return Shape(frozenset(json.loads(row[1])), tuple(json.loads(row[2])), *row[3:])
