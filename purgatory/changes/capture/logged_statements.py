"""Statements as the binlog has them: their bytes, their session's settings, and what it leaves out.

Temporary tables are not in a row-based binlog, but `RENAME TABLE` of one is, and looks like that of
the table of its name that it hides. Whether tables were renamed shows in what is there now: that
must be what the statement, and those behind it, lead to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import QueryEvent

from purgatory.changes.capture.address import SourceAddress
from purgatory.changes.capture.charsets import decode_statement
from purgatory.changes.capture.decoder_repairs import Connection, ConnectionLostError
from purgatory.changes.capture.errors import CaptureError
from purgatory.changes.capture.passing_faults import source_failure
from purgatory.changes.capture.position import Position
from purgatory.changes.capture.schema_statements import (
    Role,
    SchemaChange,
    not_understood,
    role_of,
    schema_changes,
)
from purgatory.changes.capture.server import connect, current_position, reason
from purgatory.changes.capture.sql_tokens import SqlMode

_UTF8MB4 = 45
_MODES = sum(SqlMode)

Name = tuple[str, str]


class Statement(NamedTuple):
    """A statement as its session wrote it.

    Args:
        database: that it was run in.
        unreadable: why its bytes can't be decoded, if they can't.
        error: with which of the server's errors it ended; 0: none.
    """

    sql: str
    database: str
    mode: SqlMode
    unreadable: str | None
    error: int

    @property
    def role(self) -> Role:
        """What it means to a capture."""
        return role_of(self.sql, self.mode)

    def changes(self, *, lower_case: bool) -> list[SchemaChange]:
        """What it changed, if its role is SCHEMA.

        Args:
            lower_case: whether the source has the names of tables so.
        """
        if self.unreadable is not None:
            return [not_understood(self.sql, self.unreadable)]
        changes = schema_changes(self.sql, self.database, self.mode)
        if self.error:
            # Of a CREATE OR REPLACE that failed, the source has done the first half.
            if not all(change.kind in ("table-create", "table-drop") for change in changes):
                return [not_understood(self.sql, f"it ended with error {self.error}")]
            changes = [change for change in changes if change.kind == "table-drop"]
        return [change.in_lower_case() for change in changes] if lower_case else changes


def statement_of(event: Any) -> Statement:
    """Return the statement of a QueryEvent."""
    raw: bytes = event.raw_query
    database = event.schema.decode() if isinstance(event.schema, bytes) else event.schema
    mode = SqlMode(getattr(event, "sql_mode", 0) & _MODES)
    try:
        # What the server writes by itself has no character set.
        sql = decode_statement(raw, getattr(event, "character_set_client", _UTF8MB4))
        return Statement(sql, database, mode, None, event.error_code)
    except CaptureError as error:
        shown = raw.decode("ascii", "backslashreplace")
        return Statement(shown, database, mode, str(error), event.error_code)


def renamed_tables(
    changes: Sequence[SchemaChange],
    address: SourceAddress,
    behind: Position,
    server_id: int,
    *,
    lower_case: bool,
) -> bool:
    """Tell whether a `RENAME TABLE` was of tables, and not of temporary ones that hide them.

    Args:
        changes: what it would have changed.
        behind: where it ended.
        server_id: that no other reader of the source has.

    Raises:
        CaptureError: the source can't be asked.
    """
    try:
        while True:
            there: dict[Name, bool] = {}
            fits = all(_follows(there, change) for change in changes)
            with connect(address) as connection:
                end = current_position(connection)
                actual = {name: _is_there(connection, *name) for name in there}
                if current_position(connection) != end:
                    continue
            for change in _changes_between(address, behind, end, server_id, lower_case):
                # Of two that would be there at once, one was not what it seemed.
                fits = fits and _follows(there, change)
            return fits and all(there[name] == found for name, found in actual.items())
    except (pymysql.Error, ConnectionLostError, OSError) as error:
        told = f"the tables of {address} can't be listed: {reason(error)}"
        raise source_failure(told, error) from None


def _follows(there: dict[Name, bool], change: SchemaChange) -> bool:
    """Note which tables are there after a change; false if it can't be, by what was known."""
    if change.table is None:
        if change.kind == "database-drop":
            there.update({name: False for name in there if name[0] == change.database})
        return True
    name = (change.database, change.table)
    if change.kind == "table-create":
        fits = not there.get(name, False)
        there[name] = True
        return fits
    if change.kind == "table-drop":
        there[name] = False
    elif change.new_name is not None:
        fits = there.get(name, True) and not there.get(change.new_name, False)
        there[name], there[change.new_name] = False, True
        return fits
    return True


def _is_there(connection: pymysql.connections.Connection, database: str, table: str) -> bool:
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
            statement = statement_of(event)
            if statement.role is Role.SCHEMA:
                yield from statement.changes(lower_case=lower_case)
    finally:
        stream.close()
