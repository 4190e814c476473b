"""A server's binlog as whole transactions and changes of schemas.

Ground rules
------------
* A transaction is given out when its end is there: a half one at the end of a file that a crashed
  server left is dropped, as the server drops it itself.
* Reading goes on only from places between transactions: after a lost connection the reader begins
  anew behind the last one that it gave out.
* Events that would silently lose a change stop the reader: statements in place of rows, rows
  without all columns, prepared (XA) transactions, kinds of events that can't be read.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

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

from purgatory.changes.capture.address import SourceAddress
from purgatory.changes.capture.alter_table import step_of_stop
from purgatory.changes.capture.captured_records import RowChange, split_key_change
from purgatory.changes.capture.captured_tables import TableFilter
from purgatory.changes.capture.decoder_repairs import (
    Connection,
    ConnectionLostError,
    repair_decoder,
)
from purgatory.changes.capture.errors import CaptureError, ChangeRefusedError
from purgatory.changes.capture.logged_statements import Statement, renamed_tables, statement_of
from purgatory.changes.capture.passing_faults import source_failure
from purgatory.changes.capture.position import Position
from purgatory.changes.capture.row_decoder import RowDecoder
from purgatory.changes.capture.schema_statements import Role, SchemaChange, taken_changes
from purgatory.changes.capture.server import reason
from purgatory.changes.capture.transaction_rows import TransactionRows

_HEARTBEAT_S = 1
_TRIES = 30
_PAUSE_S = 1.0
_COMPRESSED = {40, 165, 166, 167, 168, 169, 170, 171}
"""Transactions, statements and rows that are compressed, in MySQL and MariaDB."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """The captured rows of a transaction; it ended at ``position``."""

    position: Position
    rows: TransactionRows


@dataclass(frozen=True, slots=True)
class SchemaStatement:
    """A statement that changed schemas; it ended at ``position``."""

    position: Position
    ts: int
    sql: str
    changes: list[SchemaChange]


@dataclass(frozen=True, slots=True)
class Passed:
    """Nothing to capture up to here; comes at least once a second while nothing happens."""

    position: Position


BinlogItem = Transaction | SchemaStatement | Passed


@dataclass
class BinlogReader:
    """Reads from a place between two transactions.

    Args:
        once: end where the binlog ends, rather than wait for more.
        lower_case: whether the source compares the names of tables in lower case.
        read_to: between two items, up to where the binlog is read, also what is not given out.
        server_id: how the source tells its readers apart: no other reader or replica may have it.
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
        self.read_to = self.start
        self._decoder = RowDecoder()
        self._rows = TransactionRows()

    def items(self) -> Iterator[BinlogItem]:
        """Give out what is in the binlog, in order.

        Raises:
            CaptureError: it can't be read; the message says where and why.
        """
        tries = 0
        while True:
            stream = self._open()
            try:
                for event in stream:
                    tries = 0
                    self.read_to = self._here(stream)
                    yield from self._taken(event, stream)
                self.read_to = self._here(stream)
                return
            except ConnectionLostError as error:
                lost: BaseException = error
            except pymysql.OperationalError as error:
                # Error 1236: the server refuses to send from there, and always will.
                if error.args[0] == 1236 or not tries:
                    raise self._failure(error) from None
                lost = error
            except (pymysql.Error, OSError) as error:
                raise self._failure(error) from None
            finally:
                stream.close()
            tries += 1
            if tries > _TRIES:
                raise self._failure(lost)
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
        told = f"the binlog of {self.address} can't be read from {self._boundary}: {reason(error)}"
        return source_failure(told, error)

    def _taken(self, event: Any, stream: BinLogStreamReader) -> Iterator[BinlogItem]:
        match event:
            case TableMapEvent():
                if self.tables.takes(event.schema, event.table):
                    self._decoder.describe(event)
            case WriteRowsEvent() | UpdateRowsEvent() | DeleteRowsEvent():
                if self.tables.takes(event.schema, event.table):
                    self._take_rows(event, stream)
            case XidEvent():
                yield self._end(stream)
            case QueryEvent():
                yield from self._take_query(event, stream)
            case RotateEvent():
                # Of a transaction that no end follows in its file the server has nothing either.
                self._rows.clear()
                self._decoder.clear()
                self._boundary = Position(event.next_binlog, event.position)
                yield Passed(self._boundary)
            case HeartbeatLogEvent():
                yield Passed(self._boundary)
            case XAPrepareEvent():
                raise self._refusal(stream, "prepared (XA) transactions can't be captured")
            case NotImplementedEvent() if event.event_type in _COMPRESSED:
                raise self._refusal(stream, "compressed events can't be read: switch that off")

    def _take_rows(self, event: Any, stream: BinLogStreamReader) -> None:
        try:
            for row in self._decoder.rows(event):
                for part in split_key_change(row):
                    self._rows.append(part)
        except CaptureError as error:
            raise self._refusal(stream, f"{event.schema}.{event.table}: {error}") from None

    def _take_query(self, event: Any, stream: BinLogStreamReader) -> Iterator[BinlogItem]:
        statement = statement_of(event)
        match statement.role:
            case Role.BEGIN:
                self._rows.clear()
            case Role.COMMIT:
                yield self._end(stream)
            case Role.ROLLBACK:
                if len(self._rows):
                    raise self._refusal(
                        stream, "rows of a transaction that was rolled back in part"
                    )
                self._boundary = self._here(stream)
            case Role.PREPARED:
                raise self._refusal(stream, "prepared (XA) transactions can't be captured")
            case Role.DATA:
                if self.tables.takes_database(statement.database):
                    raise self._refusal(
                        stream, "a statement in place of rows: a session's binlog_format isn't ROW"
                    )
            case Role.SCHEMA:
                yield from self._schema_changed(event, statement, stream)

    def _schema_changed(
        self, event: Any, statement: Statement, stream: BinLogStreamReader
    ) -> Iterator[BinlogItem]:
        sql = statement.sql
        all_changes = statement.changes(lower_case=self.lower_case)
        changes = taken_changes(all_changes, self.tables)
        here = self._ended(stream)
        if changes and all_changes[0].by_rename:
            changes = self._renamed(all_changes, changes, here)
        if len(self._rows):
            # CREATE TABLE ... SELECT: the statement is one part of a transaction with rows.
            raise self._refusal(stream, "a schema that changes within a transaction")
        self._boundary = here
        yield SchemaStatement(here, event.timestamp, sql, changes) if changes else Passed(here)

    def _renamed(
        self, all_changes: list[SchemaChange], changes: list[SchemaChange], here: Position
    ) -> list[SchemaChange]:
        """What a `RENAME TABLE` changed: nothing, if there was none of the name (`IF EXISTS`)."""
        lower_case = self.lower_case
        server_id = self.server_id + 1
        if renamed_tables(all_changes, self.address, here, server_id, lower_case=lower_case):
            return changes
        if all_changes[0].by_rename == "if exists":
            return []
        why = (
            "RENAME TABLE of a temporary table, it seems: of that, the log has nothing else; if it "
            "was, there is nothing to do by hand"
        )
        return [change.with_steps([step_of_stop(why)]) for change in changes[:1]]

    def _end(self, stream: BinLogStreamReader) -> BinlogItem:
        here = self._ended(stream)
        rows, self._rows = self._rows, TransactionRows()
        self._boundary = here
        return Transaction(here, rows) if len(rows) else Passed(here)

    def _ended(self, stream: BinLogStreamReader) -> Position:
        here = self._here(stream)
        if here.number <= self._boundary.number:
            # Records that are there already are told from new ones by places that grow.
            raise self._refusal(stream, f"the source's positions don't grow from {self._boundary}")
        return here

    def _here(self, stream: BinLogStreamReader) -> Position:
        return Position(stream.log_file, stream.log_pos)

    def _refusal(self, stream: BinLogStreamReader, what: str) -> ChangeRefusedError:
        return ChangeRefusedError(f"binlog {self._here(stream)}: {what}")


__all__ = ["BinlogItem", "BinlogReader", "Passed", "RowChange", "SchemaStatement", "Transaction"]
