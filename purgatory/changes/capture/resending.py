"""Rows that are read back from the source, because no statement tells what became of them.

What a new column has in the rows that are there (a default that the server converted, a time, a
number, an expression) is in no event of the binlog. So all rows of its table are sent once more,
as they are at a place that lies behind the statement:

    the statement is read: the goal is where the binlog ends now
    the goal is reached:   read the table in a snapshot, which has a place of its own
    that is reached:       if no statement changed the table since the snapshot was due, send its
                           rows as of that place; if one did, begin again

Sent at the snapshot's own place, the rows are what the log says there: they need no comparison with
changes that come before or after. Until all of them are sent no checkpoint is stored, so a capture
that is killed begins again before the statement.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pymysql

from purgatory.changes.capture.address import SourceAddress
from purgatory.changes.capture.alter_table import step_of_stop
from purgatory.changes.capture.captured_records import CapturedRecord, broadcast_record, row_record
from purgatory.changes.capture.captured_tables import describe_table
from purgatory.changes.capture.errors import CaptureError
from purgatory.changes.capture.passing_faults import source_failure
from purgatory.changes.capture.position import Place, Position
from purgatory.changes.capture.schema_statements import SchemaChange
from purgatory.changes.capture.server import connect, current_position, reason
from purgatory.changes.capture.table_snapshot import Snapshot, TableChangedError, has_snapshots
from purgatory.changes.capture.transaction_rows import TransactionRows

_MOST_TRIES = 20
"""How many snapshots may find a table that is not as the binlog says."""

Name = tuple[str, str]


@dataclass(frozen=True)
class _Reading:
    """The rows that a snapshot found, by their tables; of those that no statement changed since."""

    position: Position
    rows: dict[Name, TransactionRows]


def _not_resent(step: dict[str, Any], why: str) -> dict[str, Any]:
    if not step.get("resent"):
        return step
    if step["do"] != "add-column":
        return step_of_stop(f"{step['name']}: {why}")
    told = {name: value for name, value in step.items() if name != "resent"}
    return {**told, "unknown": why}


class Resending:
    """Which tables are sent once more, and how far that is. One thread at a time."""

    def __init__(self, source: SourceAddress) -> None:
        self._source = source
        # Whether a table comes altogether anew, columns and key included, or only its rows do.
        self._tables: dict[Name, bool] = {}
        self._goal: Position | None = None
        self._reading: _Reading | None = None
        self._tries = 0
        # Up to where rows were sent: the next number at their place.
        self._sent = Place(0, 0)

    @property
    def is_pending(self) -> bool:
        """Whether something is still to be sent."""
        return bool(self._tables)

    def take(self, change: SchemaChange) -> list[SchemaChange]:
        """Take note of what a statement did; return how it is told.

        Raises:
            CaptureError: the source can't be asked where its binlog ends.
        """
        if change.table is None:
            if change.kind == "database-drop":
                for name in [name for name in self._tables if name[0] == change.database]:
                    self._forget(name)
            return [change]
        name = (change.database, change.table)
        steps = list(change.steps or ())
        was = is_anew = self._forget(name)
        new_name = change.new_name or name
        if change.kind == "table-drop":
            return [change]
        if any(step["do"] == "stop" for step in steps):
            if was is not None:
                self._await(new_name, was)
            return [change]
        likes = [(s["database"], s["table"]) for s in steps if s["do"] == "create-like"]
        if any(s["do"] == "resend-table" for s in steps) or any(map(self._tables.get, likes)):
            is_anew = True
        elif is_anew is None and any(step.get("resent") for step in steps):
            is_anew = False
        if is_anew is None:
            return [change]
        engine = self._engine_without_snapshots(*new_name)
        if engine is not None:
            why = f"the rows of a table of engine {engine} can't be read back (it has no snapshots)"
            if change.kind == "table-truncate":
                return [change]
            if is_anew or was is not None:
                return [change.with_steps([step_of_stop(why)])]
            told = [_not_resent(step, f"of its old rows nothing is known: {why}") for step in steps]
            return [change.with_steps(told)]
        self._await(new_name, is_anew)
        if change.kind == "table-truncate":
            return [change]
        if is_anew:
            anew = SchemaChange(change.kind, *new_name, steps=[{"do": "resend-table"}])
            dropped = [SchemaChange("table-drop", *name)] if change.new_name else []
            return [*dropped, anew]
        return [
            change.with_steps(
                [{**s, "resent": True} if s["do"] == "change-type" else s for s in steps]
            )
        ]

    def _engine_without_snapshots(self, database: str, table: str) -> str | None:
        try:
            with connect(self._source) as connection:
                found = describe_table(connection, database, table)
        except pymysql.Error as error:
            raise self._failure(error) from None
        return None if found is None or has_snapshots(found) else found.engine

    def _failure(self, error: pymysql.Error) -> CaptureError:
        told = f"tables of {self._source} can't be read back: {reason(error)}"
        return source_failure(told, error)

    def _await(self, name: Name, is_anew: bool) -> None:
        self._tables[name] = is_anew
        if self._goal is None:
            self._set_goal()

    def _forget(self, name: Name) -> bool | None:
        if self._reading is not None:
            self._reading.rows.pop(name, None)
        return self._tables.pop(name, None)

    def _set_goal(self) -> None:
        with connect(self._source) as connection:
            self._goal = current_position(connection)

    @property
    def position(self) -> Position | None:
        """The place at which the next rows are sent, if that is known."""
        return None if self._reading is None else self._reading.position

    def is_due(self, position: Position) -> bool:
        """Go on, now that the binlog is read up to a position; tell whether rows are to be sent.

        Raises:
            CaptureError: the source can't be read, or has no snapshots of a table.
        """
        if self._reading is None and self._goal is not None:
            if position.number < self._goal.number:
                return False
            try:
                self._reading = self._read()
            except pymysql.Error as error:
                raise self._failure(error) from None
        return self.position is not None and position.number >= self.position.number

    def _read(self) -> _Reading:
        with Snapshot(self._source, list(self._tables)) as snapshot:
            reading = _Reading(snapshot.position, {})
            for table in snapshot.tables:
                name, rows = (table.database, table.table), TransactionRows()
                try:
                    # Of a table without a key, no target has rows.
                    for row in snapshot.rows(table) if table.primary_key else ():
                        rows.append(row)
                except TableChangedError:
                    continue
                # Once read, it does not change before the snapshot ends.
                if snapshot.described(*name) == table:
                    reading.rows[name] = rows
            return reading

    def records(self, first_xoffset: int) -> Iterator[CapturedRecord]:
        """Give out the rows that are due, and a stop for tables of which none can be read.

        Args:
            first_xoffset: the first number that is free at their place.
        """
        assert self._reading is not None, "rows are due"
        reading, self._reading, self._goal = self._reading, None, None
        # Of several readings at one place, each stands behind the one before.
        is_same = self._sent.position == reading.position.number
        xoffset = max(first_xoffset, self._sent.xoffset) if is_same else first_xoffset
        for (database, table), rows in reading.rows.items():
            ts = int(time.time())
            names = {"database": database, "table": table}
            yield broadcast_record("bootstrap-start", reading.position, xoffset, ts, **names)
            for row in rows:
                xoffset += 1
                yield row_record(row, reading.position, xoffset, xid=None, commit=False)
            xoffset += 1
            yield broadcast_record("bootstrap-complete", reading.position, xoffset, ts, **names)
            xoffset += 1
            rows.clear()
            del self._tables[database, table]
        self._tries = self._tries + 1 if self._tables else 0
        if self._tries > _MOST_TRIES:
            # As behind a statement that was not understood, which renamed it.
            steps = [step_of_stop("its rows can't be read back: it is not as the binlog says")]
            ts = int(time.time())
            for database, table in self._tables:
                names = {"database": database, "table": table}
                yield broadcast_record(
                    "table-alter", reading.position, xoffset, ts, **names, steps=steps
                )
                xoffset += 1
            self._tables.clear()
            self._tries = 0
        self._sent = Place(reading.position.number, xoffset)
        if self._tables:
            self._set_goal()
