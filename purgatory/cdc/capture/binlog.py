"""The source's binlog as whole transactions and schema changes.

Ground rules
------------
* A transaction is returned when its end is there. A half one, at the end of a file that a crashed
  server left, is dropped, as the server drops it.
* The reader resumes only between transactions: after a lost connection it continues behind the last
  one that it returned.
* Events that would silently lose a change stop the reader: statements in place of rows, rows
  without all columns, prepared (XA) transactions, compressed events.
* A row-based binlog has no temporary tables, but it has `RENAME TABLE` of one, which looks like
  that of the table it hides. Whether tables were renamed is decided by the tables that exist now,
  which must be what this statement and those behind it lead to.
"""

from __future__ import annotations

import pickle
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any, NamedTuple

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import (
    HeartbeatLogEvent,
    NotImplementedEvent,
    QueryEvent,
    RotateEvent,
    XAPrepareEvent,
    XidEvent,
)
from pymysqlreplication.row_event import (
    DeleteRowsEvent,
    PartialUpdateRowsEvent,
    TableMapEvent,
    UpdateRowsEvent,
    WriteRowsEvent,
)

from purgatory.cdc.capture.decoder import (
    Connection,
    ConnectionLostError,
    RowDecoder,
    repair_decoder,
)
from purgatory.cdc.capture.errors import CaptureError, UnsupportedChangeError, source_error
from purgatory.cdc.capture.records import Position, RowChange, split_key_change
from purgatory.cdc.capture.source import (
    SourceAddress,
    TableFilter,
    connect,
    current_position,
    error_text,
)
from purgatory.cdc.capture.values import decode_statement
from purgatory.cdc.ddl.statements import (
    Role,
    SchemaChange,
    schema_changes,
    statement_role,
    stop_step,
    unknown_statement,
)
from purgatory.cdc.ddl.tokens import SqlMode

_HEARTBEAT_S = 1
_MAX_ATTEMPTS = 30
_PAUSE_S = 1.0
_COMPRESSED = {40, 165, 166, 167, 168, 169, 170, 171}
"""Types of compressed events in MySQL and MariaDB."""


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
        server_id: no other reader or replica of the source may have it.

    Attributes:
        read_to: the position up to which events have been read, including those that yield nothing.
    """

    address: SourceAddress
    start: Position
    tables: TableFilter
    once: bool = False
    lower_case: bool = False
    server_id: int = field(default_factory=lambda: random.randrange(2**20, 2**31))

    def __post_init__(self) -> None:
        repair_decoder()
        self._boundary = self.start
        self.read_position = self.start
        self._decoder = RowDecoder()
        self._rows = TransactionRows()

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
                    self.read_position = self._stream_position(stream)
                    yield from self._handle_event(event, stream)
                self.read_position = self._stream_position(stream)
                return
            except ConnectionLostError as error:
                connection_error: BaseException = error
            except pymysql.OperationalError as error:
                # Error 1236: the server can't send from this position, permanently.
                if error.args[0] == 1236 or not attempts:
                    raise self._failure(error) from None
                connection_error = error
            except (pymysql.Error, OSError) as error:
                raise self._failure(error) from None
            finally:
                stream.close()
            attempts += 1
            if attempts > _MAX_ATTEMPTS:
                raise self._failure(connection_error)
            time.sleep(_PAUSE_S)

    def _open(self) -> BinLogStreamReader:
        self._rows.clear()
        self._decoder.clear()
        return BinLogStreamReader(
            connection_settings=self.address.connection_settings(),
            server_id=self.server_id,
            log_file=self._boundary.file,
            log_pos=self._boundary.offset,
            resume_stream=True,
            blocking=not self.once,
            slave_heartbeat=_HEARTBEAT_S,
            pymysql_wrapper=Connection,
            enable_logging=False,
            filter_non_implemented_events=False,
            only_events=[
                DeleteRowsEvent,
                HeartbeatLogEvent,
                NotImplementedEvent,
                PartialUpdateRowsEvent,
                QueryEvent,
                RotateEvent,
                TableMapEvent,
                UpdateRowsEvent,
                WriteRowsEvent,
                XAPrepareEvent,
                XidEvent,
            ],
        )

    def _failure(self, error: BaseException) -> CaptureError:
        message = (
            f"the binlog of {self.address} can't be read from {self._boundary}: {error_text(error)}"
        )
        return source_error(message, error)

    def _handle_event(self, event: Any, stream: BinLogStreamReader) -> Iterator[BinlogItem]:
        match event:
            case TableMapEvent():
                if self.tables.includes(event.schema, event.table):
                    self._decoder.describe(event)
            case WriteRowsEvent() | UpdateRowsEvent() | DeleteRowsEvent():
                if self.tables.includes(event.schema, event.table):
                    self._read_rows(event, stream)
            case XidEvent():
                yield self._finish_transaction(stream)
            case QueryEvent():
                yield from self._read_query(event, stream)
            case RotateEvent():
                # A transaction without its end in the file was dropped by the server, too.
                self._rows.clear()
                self._decoder.clear()
                self._boundary = Position(event.next_binlog, event.position)
                yield Progress(self._boundary)
            case HeartbeatLogEvent():
                yield Progress(self._boundary)
            case XAPrepareEvent():
                raise self._unsupported_error(
                    stream, "prepared (XA) transactions can't be captured"
                )
            case NotImplementedEvent() if event.event_type in _COMPRESSED:
                raise self._unsupported_error(
                    stream, "compressed events can't be read: switch that off"
                )

    def _read_rows(self, event: Any, stream: BinLogStreamReader) -> None:
        try:
            for row in self._decoder.rows(event):
                for part in split_key_change(row):
                    self._rows.append(part)
        except CaptureError as error:
            raise self._unsupported_error(
                stream, f"{event.schema}.{event.table}: {error}"
            ) from None

    def _read_query(self, event: Any, stream: BinLogStreamReader) -> Iterator[BinlogItem]:
        statement = read_statement(event)
        match statement.role:
            case Role.BEGIN:
                self._rows.clear()
            case Role.COMMIT:
                yield self._finish_transaction(stream)
            case Role.ROLLBACK:
                if len(self._rows):
                    raise self._unsupported_error(
                        stream, "rows of a transaction that was rolled back in part"
                    )
                self._boundary = self._stream_position(stream)
            case Role.PREPARED:
                raise self._unsupported_error(
                    stream, "prepared (XA) transactions can't be captured"
                )
            case Role.DATA:
                if self.tables.includes_database(statement.database):
                    raise self._unsupported_error(
                        stream, "a statement in place of rows: a session's binlog_format isn't ROW"
                    )
            case Role.SCHEMA:
                yield from self._read_schema_change(event, statement, stream)

    def _read_schema_change(
        self, event: Any, statement: Statement, stream: BinLogStreamReader
    ) -> Iterator[BinlogItem]:
        sql = statement.sql
        all_changes = statement.changes(lower_case=self.lower_case)
        changes = captured_changes(all_changes, self.tables)
        position = self._next_position(stream)
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
        lower_case = self.lower_case
        server_id = self.server_id + 1
        if are_tables_renamed(
            all_changes, self.address, position, server_id, lower_case=lower_case
        ):
            return changes
        if all_changes[0].by_rename == "if exists":
            return []
        reason = (
            "RENAME TABLE of a temporary table, it seems, of which the log has nothing else; if "
            "so, there is nothing to do by hand"
        )
        return [change.with_steps([stop_step(reason)]) for change in changes[:1]]

    def _finish_transaction(self, stream: BinLogStreamReader) -> BinlogItem:
        position = self._next_position(stream)
        rows, self._rows = self._rows, TransactionRows()
        self._boundary = position
        return Transaction(position, rows) if len(rows) else Progress(position)

    def _next_position(self, stream: BinLogStreamReader) -> Position:
        position = self._stream_position(stream)
        if position.number <= self._boundary.number:
            # Growing places distinguish new records from those that are in the topic.
            raise self._unsupported_error(
                stream, f"the source's positions don't grow from {self._boundary}"
            )
        return position

    def _stream_position(self, stream: BinLogStreamReader) -> Position:
        return Position(stream.log_file, stream.log_pos)

    def _unsupported_error(
        self, stream: BinLogStreamReader, description: str
    ) -> UnsupportedChangeError:
        return UnsupportedChangeError(f"binlog {self._stream_position(stream)}: {description}")


MAX_ROWS_IN_MEMORY = 20_000


class TransactionRows:
    """The rows of a transaction, in order; many of them in a temporary file. O(1) amortized."""

    def __init__(self, max_in_memory: int = MAX_ROWS_IN_MEMORY) -> None:
        self._max_in_memory = max_in_memory
        self._rows: list[RowChange] = []
        self._file: IO[bytes] | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, row: RowChange) -> None:
        self._rows.append(row)
        self._count += 1
        if len(self._rows) >= self._max_in_memory:
            self._spill()

    def __iter__(self) -> Iterator[RowChange]:
        if self._file is not None:
            self._file.seek(0)
            while True:
                try:
                    yield from pickle.load(self._file)
                except EOFError:
                    break
        yield from self._rows

    def clear(self) -> None:
        """Delete all rows and the file."""
        self._rows = []
        self._count = 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed in clear
        pickle.dump(self._rows, self._file, pickle.HIGHEST_PROTOCOL)
        self._rows = []


_UTF8MB4 = 45
_MODES = sum(SqlMode)

Name = tuple[str, str]


class Statement(NamedTuple):
    """A statement as its session wrote it.

    Args:
        database: its session's default database.
        unreadable: why its bytes can't be decoded, if so.
        error: the server's error code; 0 if it succeeded.
    """

    sql: str
    database: str
    mode: SqlMode
    unreadable: str | None
    error: int

    @property
    def role(self) -> Role:
        return statement_role(self.sql, self.mode)

    def changes(self, *, lower_case: bool) -> list[SchemaChange]:
        """The changes of a statement with the role SCHEMA."""
        if self.unreadable is not None:
            return [unknown_statement(self.sql, self.unreadable)]
        changes = schema_changes(self.sql, self.database, self.mode)
        if self.error:
            # A CREATE OR REPLACE that failed has dropped the table.
            if not all(change.kind in ("table-create", "table-drop") for change in changes):
                return [unknown_statement(self.sql, f"it ended with error {self.error}")]
            changes = [change for change in changes if change.kind == "table-drop"]
        return [change.in_lower_case() for change in changes] if lower_case else changes


def read_statement(event: Any) -> Statement:
    """The statement of a QueryEvent."""
    raw: bytes = event.raw_query
    database = event.schema.decode() if isinstance(event.schema, bytes) else event.schema
    mode = SqlMode(getattr(event, "sql_mode", 0) & _MODES)
    try:
        # Statements that the server itself wrote have no character set.
        sql = decode_statement(raw, getattr(event, "character_set_client", _UTF8MB4))
        return Statement(sql, database, mode, None, event.error_code)
    except CaptureError as error:
        text = raw.decode("ascii", "backslashreplace")
        return Statement(text, database, mode, str(error), event.error_code)


def are_tables_renamed(
    changes: Sequence[SchemaChange],
    address: SourceAddress,
    after: Position,
    server_id: int,
    *,
    lower_case: bool,
) -> bool:
    """Whether a `RENAME TABLE` renamed tables, and not temporary ones that hide them.

    Args:
        changes: of the statement, if it renamed tables.
        after: its end.
        server_id: no other reader of the source may have it.

    Raises:
        CaptureError: the source is unreachable.
    """
    try:
        while True:
            existing: dict[Name, bool] = {}
            is_consistent = all(_update_existing(existing, change) for change in changes)
            with connect(address) as connection:
                end = current_position(connection)
                existing_now = {name: _table_exists(connection, *name) for name in existing}
                if current_position(connection) != end:
                    continue
            for change in _changes_between(address, after, end, server_id, lower_case):
                # If two tables would have one name, one was temporary.
                is_consistent = is_consistent and _update_existing(existing, change)
            return is_consistent and all(
                existing[name] == exists for name, exists in existing_now.items()
            )
    except (pymysql.Error, ConnectionLostError, OSError) as error:
        message = f"the tables of {address} can't be listed: {error_text(error)}"
        raise source_error(message, error) from None


def _update_existing(existing: dict[Name, bool], change: SchemaChange) -> bool:
    """Update which tables exist after a change; false if that contradicts what is known."""
    if change.table is None:
        if change.kind == "database-drop":
            existing.update({name: False for name in existing if name[0] == change.database})
        return True
    name = (change.database, change.table)
    if change.kind == "table-create":
        is_consistent = change.if_absent or not existing.get(name, False)
        existing[name] = True
        return is_consistent
    if change.kind == "table-drop":
        existing[name] = False
    elif change.new_name is not None:
        is_consistent = existing.get(name, True) and not existing.get(change.new_name, False)
        existing[name], existing[change.new_name] = False, True
        return is_consistent
    return True


def _table_exists(connection: pymysql.connections.Connection, database: str, table: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            (database, table),
        )
        return cursor.fetchone() is not None


def _changes_between(
    address: SourceAddress, start: Position, end: Position, server_id: int, lower_case: bool
) -> Iterator[SchemaChange]:
    stream = BinLogStreamReader(
        connection_settings=address.connection_settings(),
        server_id=server_id,
        log_file=start.file,
        log_pos=start.offset,
        resume_stream=True,
        blocking=False,
        pymysql_wrapper=Connection,
        enable_logging=False,
        only_events=[QueryEvent],
    )
    try:
        for event in stream:
            if Position(stream.log_file, stream.log_pos).number > end.number:
                break
            statement = read_statement(event)
            if statement.role is Role.SCHEMA:
                yield from statement.changes(lower_case=lower_case)
    finally:
        stream.close()


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
