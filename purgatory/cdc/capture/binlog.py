"""The source's binlog as whole transactions and schema changes.

Ground rules
------------
* A transaction is returned when its end is there. A half one, at the end of a file that a crashed
  server left, is dropped, as the server drops it. Rows that were rolled back, whole or to a
  savepoint, are in the binlog if the transaction also made or dropped a temporary table or wrote
  into one without transactions; the latter's rows are a transaction of their own.
* The rows of a prepared (XA) transaction wait for its XA COMMIT. Until then, a restart begins
  before it (`resume_position`).
* The reader resumes only between transactions: after a lost connection it continues behind the last
  one that it returned.
* Events that would silently lose a change stop the reader: statements in place of rows, rows
  without all columns, compressed and unknown events, incidents.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pymysql
from pymysqlreplication.event import (
    FormatDescriptionEvent,
    HeartbeatLogEvent,
    NotImplementedEvent,
    RotateEvent,
    XAPrepareEvent,
    XidEvent,
)
from pymysqlreplication.row_event import (
    DeleteRowsEvent,
    TableMapEvent,
    UpdateRowsEvent,
    WriteRowsEvent,
)

from purgatory.cdc.capture.decoder import RowDecoder, repair_decoder
from purgatory.cdc.capture.errors import CaptureError, UnsupportedChangeError
from purgatory.cdc.capture.logged_statement import (
    Statement,
    TemporaryTables,
    read_statement,
    xa_id,
)
from purgatory.cdc.capture.position import Position
from purgatory.cdc.capture.records import split_key_change
from purgatory.cdc.capture.renames import find_renamed
from purgatory.cdc.capture.source import SourceAddress, TableFilter, cascade_reason, error_text
from purgatory.cdc.capture.stream import (
    BinlogStream,
    ConnectionLostError,
    DamagedEventError,
    StatementEvent,
    binlog_error,
    file_origin,
    is_refused,
    read_origin,
    unreadable,
)
from purgatory.cdc.capture.transaction_rows import TransactionRows
from purgatory.cdc.ddl.statements import Role, SchemaChange, stop_step

_HEARTBEAT_S = 1
_MAX_ATTEMPTS = 30
_PAUSE_S = 1.0
_NEW_TOPIC = "begin a new topic with --snapshot"


@dataclass(frozen=True, slots=True)
class Transaction:
    """The captured rows of a transaction; it ended at ``position``."""

    position: Position
    rows: TransactionRows


@dataclass(frozen=True, slots=True)
class SchemaStatement:
    """A statement that changed schemas, and ended at ``position``."""

    position: Position
    ts: int
    sql: str
    changes: list[SchemaChange]


@dataclass(frozen=True, slots=True)
class Progress:
    """There is nothing to capture up to here; yielded at least once a second."""

    position: Position


BinlogItem = Transaction | SchemaStatement | Progress


@dataclass
class BinlogReader:
    """Reads the binlog from a position between two transactions.

    Args:
        once: stop at the end of the binlog.
        lower_case: whether the source compares table names in lower case.
        ignore_cascades: whether foreign keys that change rows without the binlog are permitted.
        server_id: no other reader or replica of the source may have it.

    Attributes:
        read_position: up to which events have been read, including those that yield nothing.
    """

    address: SourceAddress
    start: Position
    tables: TableFilter
    once: bool = False
    lower_case: bool = False
    ignore_cascades: bool = False
    server_id: int = field(default_factory=lambda: random.randrange(2**20, 2**31))

    def __post_init__(self) -> None:
        repair_decoder()
        self._boundary = self.start
        self.read_position = self.start
        self._decoder = RowDecoder()
        self._rows = TransactionRows()
        self._temporary = TemporaryTables()
        # Prepared transactions: their rows, and the position before each.
        self._prepared: dict[bytes, tuple[TransactionRows, Position]] = {}
        self._origins: dict[str, str] = {}

    @property
    def resume_position(self) -> Position:
        """The position to restart from: before the first prepared transaction without an end."""
        positions = [position for _, position in self._prepared.values()]
        return min([*positions, self._boundary], key=lambda position: position.number)

    def begin_at(self, start: Position) -> None:
        """Begin at another position; before any is read."""
        self.start = self._boundary = self.read_position = start

    def origin(self, position: Position) -> str:
        """Which server wrote the file of a position, and when it was made."""
        if position.file not in self._origins:
            self._origins[position.file] = read_origin(self.address, position, self.server_id + 1)
        return self._origins[position.file]

    def items(self) -> Iterator[BinlogItem]:
        """Yield the binlog's items, in order.

        Raises:
            CaptureError: it can't be read.
        """
        attempts = 0
        while True:
            stream = self._open()
            try:
                for event in stream:
                    attempts = 0
                    self.read_position = stream.position
                    yield from self._handle_event(event, stream)
                self.read_position = stream.position
                return
            except ConnectionLostError as error:
                connection_error: BaseException = error
            except pymysql.OperationalError as error:
                if is_refused(error) or not attempts:
                    raise self._failure(error) from None
                connection_error = error
            except (pymysql.Error, OSError) as error:
                raise self._failure(error) from None
            except DamagedEventError as error:
                raise self._unsupported_error(stream, str(error)) from None
            except CaptureError:
                raise
            except Exception as error:
                # The library's, for an event of a kind that it doesn't know.
                text = f"{type(error).__name__}: {error_text(error)}"
                raise self._unsupported_error(
                    stream, f"the event behind it can't be read ({text}); {_NEW_TOPIC}"
                ) from error
            finally:
                stream.close()
            attempts += 1
            if attempts > _MAX_ATTEMPTS:
                raise self._failure(connection_error)
            time.sleep(_PAUSE_S)

    def _open(self) -> BinlogStream:
        self._rows.clear()
        self._decoder.clear()
        return BinlogStream(
            self.address,
            self._boundary,
            server_id=self.server_id,
            once=self.once,
            heartbeat_s=_HEARTBEAT_S,
        )

    def _failure(self, error: BaseException) -> CaptureError:
        return binlog_error(self.address, self._boundary, error)

    def _handle_event(self, event: Any, stream: BinlogStream) -> Iterator[BinlogItem]:
        match event:
            case TableMapEvent():
                if self.tables.includes(event.schema, event.table):
                    with self._placed_errors(event, stream):
                        self._decoder.describe(event)
            case WriteRowsEvent() | UpdateRowsEvent() | DeleteRowsEvent():
                if self.tables.includes(event.schema, event.table):
                    self._read_rows(event, stream)
            case XidEvent():
                yield self._finish_transaction(stream)
            case StatementEvent():
                yield from self._read_statement(event, stream)
            case RotateEvent():
                # A transaction without its end in the file was dropped by the server, too.
                self._rows.clear()
                self._decoder.clear()
                self._boundary = Position(event.next_binlog, event.position)
                yield Progress(self._boundary)
            case FormatDescriptionEvent():
                self._read_origin(event, stream)
                if event.created:
                    # The first file of a server that started: its sessions are others.
                    self._temporary.clear()
            case HeartbeatLogEvent():
                yield Progress(self._boundary)
            case XAPrepareEvent():
                xid = xa_id(event.xid_gtrid, event.xid_bqual, event.xid_format_id)
                yield self._finish_prepared(stream, xid, is_committed=bool(event.one_phase))
            case NotImplementedEvent():
                reason = unreadable(event)
                if reason is not None:
                    raise self._unsupported_error(stream, reason)

    def _read_origin(self, event: FormatDescriptionEvent, stream: BinlogStream) -> None:
        origin = file_origin(event)
        known = self._origins.setdefault(stream.log_file, origin)
        if known != origin:
            raise self._unsupported_error(
                stream, f"the source was made anew (its binlog began again): {_NEW_TOPIC}"
            )

    def _read_rows(self, event: Any, stream: BinlogStream) -> None:
        with self._placed_errors(event, stream):
            for row in self._decoder.rows(event):
                for part in split_key_change(row):
                    self._rows.append(part)

    @contextmanager
    def _placed_errors(self, event: Any, stream: BinlogStream) -> Iterator[None]:
        """Say of errors within which event of which table they are."""
        try:
            yield
        except CaptureError as error:
            raise self._unsupported_error(
                stream, f"{event.schema}.{event.table}: {error}"
            ) from None

    def _read_statement(self, event: StatementEvent, stream: BinlogStream) -> Iterator[BinlogItem]:
        statement = read_statement(event)
        match statement.role:
            case Role.BEGIN:
                self._rows.clear()
            case Role.COMMIT:
                yield self._finish_transaction(stream)
            case Role.ROLLBACK:
                self._rows.clear()
                self._boundary = stream.position
            case Role.SAVEPOINT:
                self._rows.set_savepoint(statement.savepoint)
            case Role.ROLLBACK_TO:
                if not self._rows.rollback_to(statement.savepoint) and len(self._rows):
                    raise self._unsupported_error(
                        stream, f"{statement.sql[:80]}: there is no such savepoint: {_NEW_TOPIC}"
                    )
            case Role.PREPARED:
                end = statement.xa_end
                if end is not None:
                    yield self._end_prepared(stream, *end)
            case Role.DATA:
                if self._may_change_captured(statement):
                    text = " ".join(statement.sql.split())[:120]
                    raise self._unsupported_error(
                        stream,
                        "a statement in place of rows: a session's binlog_format isn't ROW: "
                        f"{text}; {_NEW_TOPIC}",
                    )
            case Role.SCHEMA:
                yield from self._read_schema_change(event, statement, stream)
            case Role.OTHER:
                self._temporary.read(statement, lower_case=self.lower_case)

    def _may_change_captured(self, statement: Statement) -> bool:
        """Whether a statement in place of rows names a captured database, or is of its session."""
        fold = str.lower if self.lower_case else str
        databases = {statement.database, *statement.names()} - {""}
        return any(self.tables.includes_database(fold(name)) for name in databases)

    def _read_schema_change(
        self, event: Any, statement: Statement, stream: BinlogStream
    ) -> Iterator[BinlogItem]:
        sql = statement.sql
        position = self._next_position(stream)
        if event.alter_phase in ("start", "rollback"):
            # The effect of an ALTER in two phases is that of its "commit".
            self._boundary = position
            yield Progress(position)
            return
        all_changes = statement.changes(lower_case=self.lower_case)
        all_changes = self._temporary.permanent(statement, all_changes)
        changes = captured_changes(all_changes, self.tables)
        if not self.ignore_cascades:
            changes = [_without_cascade(change) for change in changes]
        if changes and all_changes[0].by_rename:
            changes = self._check_renamed(all_changes, changes, position)
        if len(self._rows):
            # CREATE TABLE ... SELECT: the statement is one part of a transaction with rows.
            raise self._unsupported_error(stream, "a schema that changes within a transaction")
        self._boundary = position
        yield (
            SchemaStatement(position, event.timestamp, sql, changes)
            if changes
            else Progress(position)
        )

    def _check_renamed(
        self, all_changes: list[SchemaChange], changes: list[SchemaChange], position: Position
    ) -> list[SchemaChange]:
        """The changes of a `RENAME TABLE`: none, if there was no such table (`IF EXISTS`)."""
        renamed = find_renamed(
            all_changes, self.address, position, self.server_id + 1, lower_case=self.lower_case
        )
        if renamed is not None:
            return captured_changes(renamed, self.tables)
        reason = (
            "RENAME TABLE of a temporary table, it seems, of which the log has nothing else; if "
            "so, there is nothing to do by hand"
        )
        return [change.with_steps([stop_step(reason)]) for change in changes[:1]]

    def _finish_transaction(self, stream: BinlogStream) -> BinlogItem:
        position = self._next_position(stream)
        rows, self._rows = self._rows, TransactionRows()
        self._boundary = position
        return Transaction(position, rows) if len(rows) else Progress(position)

    def _finish_prepared(
        self, stream: BinlogStream, xid: bytes, *, is_committed: bool
    ) -> BinlogItem:
        if is_committed:
            return self._finish_transaction(stream)
        if len(self._rows):
            self._prepared[xid] = self._rows, self._boundary
            self._rows = TransactionRows()
        self._boundary = self._next_position(stream)
        return Progress(self._boundary)

    def _end_prepared(self, stream: BinlogStream, is_committed: bool, xid: bytes) -> BinlogItem:
        """End a transaction; one without rows of captured tables is not known."""
        rows, _ = self._prepared.pop(xid, (self._rows, None))
        if is_committed:
            self._rows = rows
        else:
            rows.clear()
        return self._finish_transaction(stream)

    def _next_position(self, stream: BinlogStream) -> Position:
        position = stream.position
        if position.number <= self._boundary.number:
            # Growing places distinguish new records from those that are in the topic.
            raise self._unsupported_error(
                stream, f"the source's positions don't grow from {self._boundary}"
            )
        return position

    def _unsupported_error(self, stream: BinlogStream, description: str) -> UnsupportedChangeError:
        return UnsupportedChangeError(f"binlog {stream.position}: {description}")


def _without_cascade(change: SchemaChange) -> SchemaChange:
    if not change.cascade:
        return change
    return change.with_steps([stop_step(cascade_reason(change.cascade))])


def captured_changes(changes: Sequence[SchemaChange], tables: TableFilter) -> list[SchemaChange]:
    """The changes of captured tables.

    A table that is renamed to a name that is not captured is dropped; one that is renamed from
    such a name has rows that the log does not have.
    """
    captured = []
    for change in changes:
        if change.table is None:
            # A statement that is not understood may affect any database.
            if not change.database or tables.includes_database(change.database):
                captured.append(change)
            continue
        is_previous_captured = tables.includes(change.database, change.table)
        is_captured = (
            is_previous_captured if change.new_name is None else tables.includes(*change.new_name)
        )
        if is_previous_captured and is_captured:
            captured.append(change)
        elif is_previous_captured:
            captured.append(SchemaChange("table-drop", change.database, change.table))
        elif is_captured:
            reason = "it was not captured under its name before: begin a new topic with --snapshot"
            captured.append(replace(change, steps=[stop_step(reason)]))
    return captured
