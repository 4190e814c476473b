"""Snapshots: the rows of tables as of one binlog position, at the start and after schema changes.

MariaDB reports the position of a consistent snapshot; MySQL is locked for the moment in which the
snapshot begins.

The values of a new or changed column in existing rows (a default or a value that the server
converted, a time, a number, an expression) are in no event of the binlog. `Resnapshots` sends all
rows of its table again, as of a position behind the statement:

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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.cursors import SSCursor

from purgatory.cdc.capture.errors import CaptureError, TransientCaptureError, source_error
from purgatory.cdc.capture.position import Position, RecordPosition
from purgatory.cdc.capture.records import CapturedRecord, RowChange, broadcast_record, row_record
from purgatory.cdc.capture.source import (
    SourceAddress,
    TableDescription,
    TableFilter,
    check_beginning,
    connect,
    current_position,
    describe_table,
    describe_tables,
    error_text,
    is_mariadb,
    quoted,
)
from purgatory.cdc.capture.transaction_rows import TransactionRows
from purgatory.cdc.capture.values import query_converter
from purgatory.cdc.ddl.statements import SchemaChange, stop_step

_CONSISTENT_ENGINES = {"INNODB", "ROCKSDB", "TOKUDB"}
_SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT"


_BINLOG_EXPRESSIONS = {
    # Printed with six digits unless it is made a double first.
    "float": "{} + 0e0",
    "inet4": "CAST({} AS BINARY(4))",
    "inet6": "CAST({} AS BINARY(16))",
    "uuid": "CAST({} AS BINARY(16))",
}
_TABLE_CHANGED = {1054, 1146, 1412}
"""The server's errors for a table that was altered or dropped since the snapshot began."""


class TableChangedError(TransientCaptureError):
    """A statement changed a table after the snapshot's position."""


class Snapshot:
    """A transaction that reads the tables as of ``position``. A context manager.

    Args:
        chosen: a filter; or names, of which missing tables and those without snapshots are left
            out.

    Raises:
        CaptureError: the source is unreachable, refuses, or has tables without snapshots.
    """

    def __init__(
        self, address: SourceAddress, chosen: TableFilter | Sequence[tuple[str, str]]
    ) -> None:
        self._connection = connect(address)
        try:
            self.tables: Sequence[TableDescription]
            if isinstance(chosen, TableFilter):
                self.tables = describe_tables(self._connection, chosen)
                _check_engines(self.tables)
            else:
                descriptions = [self.describe(*name) for name in chosen]
                self.tables = [table for table in descriptions if table and has_snapshots(table)]
            self.position = self._begin()
            if isinstance(chosen, TableFilter):
                check_beginning(self._connection, chosen)
        except pymysql.Error as error:
            self._connection.close()
            message = f"no snapshot can be taken: {error_text(error)}"
            raise source_error(message, error) from None
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def describe(self, database: str, table: str) -> TableDescription | None:
        """A table's current description; None if there is none."""
        return describe_table(self._connection, database, table)

    def rows(self, table: TableDescription) -> Iterator[RowChange]:
        """Yield a table's rows, in the order of its key."""
        ts = int(time.time())
        converters = [query_converter(column.data_type) for column in table.columns]
        names = [column.name for column in table.columns]
        try:
            with self._connection.cursor(SSCursor) as cursor:
                # Values stay as the server sends them: strings, and bytes if binary.
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
            if error.args and error.args[0] in _TABLE_CHANGED:
                name = f"{table.database}.{table.table}"
                raise TableChangedError(f"table {name} changed while it was read") from None
            message = f"table {table.database}.{table.table} can't be read: {error_text(error)}"
            raise source_error(message, error) from None
        except UnicodeDecodeError as error:
            raise CaptureError(
                f"table {table.database}.{table.table} has a text that is none in its character "
                f"set: {error.object[:60]!r}"
            ) from None

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
    """Whether a table's engine has consistent snapshots."""
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
        _BINLOG_EXPRESSIONS.get(column.data_type, "{}").format(quoted(column.name))
        for column in table.columns
    )
    order = ", ".join(map(quoted, table.primary_key))
    ordered = f" ORDER BY {order}" if order else ""
    return f"SELECT {columns} FROM {quoted(table.database)}.{quoted(table.table)}{ordered}"


def table_records(
    database: str, table: str, rows: Iterable[RowChange], position: Position, xoffset: int
) -> Iterator[CapturedRecord]:
    """Yield a table's rows, between `bootstrap-start` and `bootstrap-complete`."""
    ts = int(time.time())
    names = {"database": database, "table": table}
    yield broadcast_record("bootstrap-start", position, xoffset, ts, **names)
    for row in rows:
        xoffset += 1
        yield row_record(row, position, xoffset, xid=None, commit=False)
    yield broadcast_record("bootstrap-complete", position, xoffset + 1, ts, **names)


_MAX_TRIES = 20
"""The maximum number of snapshots with a table that differs from the binlog."""

Name = tuple[str, str]


@dataclass(frozen=True)
class _Rows:
    """The rows in a snapshot, by table; only tables that no statement changed since."""

    position: Position
    rows: dict[Name, TransactionRows]


def _skip_resend(step: dict[str, Any], reason: str) -> dict[str, Any]:
    if not step.get("resent"):
        return step
    rest = {name: value for name, value in step.items() if name != "resent"}
    return {**rest, "unknown": reason}


class Resnapshots:
    """The tables whose rows must be resent. Used by one thread at a time."""

    def __init__(self, source: SourceAddress) -> None:
        self._source = source
        # Whether a table is replaced, with its columns and key, or only its rows are sent.
        self._tables: dict[Name, bool] = {}
        self._goal: Position | None = None
        self._rows: _Rows | None = None
        self._attempts = 0
        # The next free number at the position of the rows that were sent.
        self._sent = RecordPosition(0, 0)

    @property
    def is_pending(self) -> bool:
        return bool(self._tables)

    def record_change(self, change: SchemaChange) -> list[SchemaChange]:
        """Add the tables that a change affects; return the changes to send in its place.

        Raises:
            CaptureError: the source is unreachable.
        """
        if change.table is None:
            if change.kind == "database-drop":
                for name in [name for name in self._tables if name[0] == change.database]:
                    self._remove(name)
            return [change]
        name = (change.database, change.table)
        steps = list(change.steps or ())
        previous = is_replaced = self._remove(name)
        new_name = change.new_name or name
        if change.kind == "table-drop":
            return [change]
        if any(step["do"] == "stop" for step in steps):
            if previous is not None:
                self._add(new_name, previous)
            return [change]
        templates = [(s["database"], s["table"]) for s in steps if s["do"] == "create-like"]
        if any(s["do"] == "resend-table" for s in steps) or any(map(self._tables.get, templates)):
            is_replaced = True
        elif is_replaced is None and any(step.get("resent") for step in steps):
            is_replaced = False
        if is_replaced is None:
            return [change]
        try:
            with connect(self._source) as connection:
                table = describe_table(connection, *new_name)
        except pymysql.Error as error:
            raise self._error(error) from None
        if table is not None and not has_snapshots(table):
            engine = table.engine
            reason = (
                f"the rows of a table of engine {engine} can't be read back (it has no snapshots)"
            )
            if change.kind == "table-truncate":
                return [change]
            if is_replaced or previous is not None:
                return [change.with_steps([stop_step(reason)])]
            reason = f"its values in existing rows are not known: {reason}"
            return [change.with_steps([_skip_resend(step, reason) for step in steps])]
        self._add(new_name, is_replaced)
        if change.kind == "table-truncate":
            return [change]
        if is_replaced:
            replaced = SchemaChange(change.kind, *new_name, steps=[{"do": "resend-table"}])
            dropped = [SchemaChange("table-drop", *name)] if change.new_name else []
            return [*dropped, replaced]
        return [change]

    def _error(self, error: pymysql.Error) -> CaptureError:
        message = f"tables of {self._source} can't be read back: {error_text(error)}"
        return source_error(message, error)

    def _add(self, name: Name, is_replaced: bool) -> None:
        self._tables[name] = is_replaced
        if self._goal is None:
            self._set_goal()

    def _remove(self, name: Name) -> bool | None:
        if self._rows is not None:
            self._rows.rows.pop(name, None)
        return self._tables.pop(name, None)

    def _set_goal(self) -> None:
        with connect(self._source) as connection:
            self._goal = current_position(connection)

    @property
    def position(self) -> Position | None:
        """The position of the next rows, if they have been read."""
        return None if self._rows is None else self._rows.position

    def is_due(self, position: Position) -> bool:
        """Whether rows are to be sent, now that the binlog is read up to a position.

        Takes the snapshot when the goal is reached.

        Raises:
            CaptureError: the source can't be read.
        """
        if self._rows is None and self._goal is not None:
            if position.number < self._goal.number:
                return False
            try:
                self._rows = self._read()
            except pymysql.Error as error:
                raise self._error(error) from None
        return self.position is not None and position.number >= self.position.number

    def _read(self) -> _Rows:
        with Snapshot(self._source, list(self._tables)) as snapshot:
            snapshot_rows = _Rows(snapshot.position, {})
            for table in snapshot.tables:
                name, rows = (table.database, table.table), TransactionRows()
                try:
                    # No target has rows of a table without a key.
                    for row in snapshot.rows(table) if table.primary_key else ():
                        rows.append(row)
                except TableChangedError:
                    continue
                # A table that was read can't be altered before the snapshot ends.
                if snapshot.describe(*name) == table:
                    snapshot_rows.rows[name] = rows
            return snapshot_rows

    def records(self, first_xoffset: int) -> Iterator[CapturedRecord]:
        """Yield the rows that are due, or a stop for tables that can't be read.

        Args:
            first_xoffset: the first free number at their position.
        """
        assert self._rows is not None, "rows are due"
        snapshot_rows, self._rows, self._goal = self._rows, None, None
        position = snapshot_rows.position
        # Several snapshots may have the same position.
        is_same = self._sent.position == position.number
        xoffset = max(first_xoffset, self._sent.xoffset) if is_same else first_xoffset
        for name, rows in snapshot_rows.rows.items():
            for record in table_records(*name, rows, position, xoffset):
                yield record
                xoffset = record.position.xoffset + 1
            rows.clear()
            del self._tables[name]
        self._attempts = self._attempts + 1 if self._tables else 0
        if self._attempts > _MAX_TRIES:
            # As behind a statement that was not understood, and renamed it.
            steps = [stop_step("its rows can't be read back: it differs from the binlog")]
            ts = int(time.time())
            for database, table in self._tables:
                names = {"database": database, "table": table}
                yield broadcast_record("table-alter", position, xoffset, ts, **names, steps=steps)
                xoffset += 1
            self._tables.clear()
            self._attempts = 0
        self._sent = RecordPosition(position.number, xoffset)
        if self._tables:
            self._set_goal()
