"""Snapshots: the rows of tables as of one binlog position, at the start and after schema changes.

MariaDB reports the position of a consistent snapshot; MySQL is locked for the moment in which the
snapshot begins.

The values of a new column in existing rows (a default that the server converted, a time, a number,
an expression) are in no event of the binlog. `Resnapshots` sends all rows of its table again, as of
a
position behind the statement:

    the statement is read:     the goal is the current end of the binlog
    the goal is reached:       read the table in a snapshot, which has a position of its own
    that position is reached:  if no statement changed the table since the goal was reached, send
                               its rows with that position; otherwise, begin again

Rows sent at the snapshot's own position need no comparison with earlier or later changes. No
checkpoint is stored until all of them are sent, so a capture that is killed begins again before the
statement.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.cursors import SSCursor

from purgatory.cdc.capture.binlog import TransactionRows
from purgatory.cdc.capture.errors import CaptureError, CaptureFaultError, source_error
from purgatory.cdc.capture.records import (
    CapturedRecord,
    Place,
    Position,
    RowChange,
    broadcast_record,
    row_record,
)
from purgatory.cdc.capture.source import (
    SourceAddress,
    TableDescription,
    TableFilter,
    connect,
    current_position,
    describe_table,
    described_tables,
    is_mariadb,
    reason,
)
from purgatory.cdc.capture.values import query_converter
from purgatory.cdc.ddl.statements import SchemaChange, stop_step

_CONSISTENT_ENGINES = {"INNODB", "ROCKSDB", "TOKUDB"}
_SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT"


_AS_IN_BINLOG = {
    # Printed with six digits unless it is made a double first.
    "float": "{} + 0e0",
    "inet4": "CAST({} AS BINARY(4))",
    "inet6": "CAST({} AS BINARY(16))",
    "uuid": "CAST({} AS BINARY(16))",
}
_CHANGED_MEANWHILE = {1054, 1146, 1412}
"""The server's errors for a table that isn't any more what it was when the snapshot began."""


class TableChangedError(CaptureFaultError):
    """A statement changed a table behind the place of the snapshot."""


class Snapshot:
    """A transaction that sees the tables as they were at ``position``. A context manager.

    Args:
        chosen: which tables; of those that are named, the ones that are there and have snapshots.

    Raises:
        CaptureError: the source can't be reached, refuses, or has tables without transactions.
    """

    def __init__(
        self, address: SourceAddress, chosen: TableFilter | Sequence[tuple[str, str]]
    ) -> None:
        self._connection = connect(address)
        try:
            self.tables: Sequence[TableDescription]
            if isinstance(chosen, TableFilter):
                self.tables = described_tables(self._connection, chosen)
                _check_engines(self.tables)
            else:
                found = [self.described(*name) for name in chosen]
                self.tables = [table for table in found if table and has_snapshots(table)]
            self.position = self._begin()
        except pymysql.Error as error:
            self._connection.close()
            told = f"no snapshot can be taken: {reason(error)}"
            raise source_error(told, error) from None
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def described(self, database: str, table: str) -> TableDescription | None:
        """Return a table's description as it is at this moment; None when there is none."""
        return describe_table(self._connection, database, table)

    def rows(self, table: TableDescription) -> Iterator[RowChange]:
        """Give out a table's rows, in the order of its key."""
        ts = int(time.time())
        converters = [query_converter(column.data_type) for column in table.columns]
        names = [column.name for column in table.columns]
        try:
            with self._connection.cursor(SSCursor) as cursor:
                # The rows stay as the server sends them: texts, and bytes of what is binary.
                self._connection.decoders = {}
                cursor.execute(_select(table))
                for values in cursor:
                    data = {
                        name: None if value is None else convert(value)
                        for name, convert, value in zip(names, converters, values, strict=True)
                    }
                    yield RowChange(
                        "bootstrap-insert",
                        table.database,
                        table.table,
                        ts,
                        data,
                        None,
                        table.primary_key,
                    )
        except pymysql.Error as error:
            if error.args and error.args[0] in _CHANGED_MEANWHILE:
                name = f"{table.database}.{table.table}"
                raise TableChangedError(f"table {name} changed as it was read") from None
            told = f"table {table.database}.{table.table} can't be read: {reason(error)}"
            raise source_error(told, error) from None

    def _begin(self) -> Position:
        with self._connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            if is_mariadb(self._connection):
                cursor.execute(_SNAPSHOT)
                cursor.execute("SHOW STATUS LIKE 'binlog_snapshot_%'")
                status = {str(name).lower(): str(value) for name, value in cursor.fetchall()}
                file = status.get("binlog_snapshot_file", "")
                return Position(file, int(status["binlog_snapshot_position"]))
            cursor.execute("FLUSH TABLES WITH READ LOCK")
            try:
                cursor.execute(_SNAPSHOT)
                return current_position(self._connection)
            finally:
                cursor.execute("UNLOCK TABLES")


def has_snapshots(table: TableDescription) -> bool:
    """Tell whether a table can be read as it was at one place of the binlog."""
    return table.engine.upper() in _CONSISTENT_ENGINES


def _check_engines(tables: Sequence[TableDescription]) -> None:
    for table in tables:
        if not has_snapshots(table):
            raise CaptureError(
                f"table {table.database}.{table.table} is of engine {table.engine}, which has no "
                "snapshots: ALTER TABLE it to InnoDB, or leave it out with --only"
            )


def _select(table: TableDescription) -> str:
    columns = ", ".join(
        _AS_IN_BINLOG.get(column.data_type, "{}").format(_quoted(column.name))
        for column in table.columns
    )
    order = ", ".join(map(_quoted, table.primary_key))
    ordered = f" ORDER BY {order}" if order else ""
    return f"SELECT {columns} FROM {_quoted(table.database)}.{_quoted(table.table)}{ordered}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


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
        return stop_step(f"{step['name']}: {why}")
    told = {name: value for name, value in step.items() if name != "resent"}
    return {**told, "unknown": why}


class Resnapshots:
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
                return [change.with_steps([stop_step(why)])]
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
        return source_error(told, error)

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
            steps = [stop_step("its rows can't be read back: it is not as the binlog says")]
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
