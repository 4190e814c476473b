"""Statements in the binlog, as their sessions wrote them, and the temporary tables they name."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace

from purgatory.cdc.capture.errors import CaptureError
from purgatory.cdc.capture.stream import StatementEvent
from purgatory.cdc.capture.values import decode_statement
from purgatory.cdc.ddl.statements import (
    Role,
    SchemaChange,
    TemporaryChange,
    schema_changes,
    statement_role,
    stop_step,
    temporary_change,
    unknown_statement,
)
from purgatory.cdc.ddl.tokens import Kind, SqlError, SqlMode, Token, tokenize

_UTF8MB4 = 45
_MODES = sum(SqlMode) - SqlMode.MYSQL
_XA_END = re.compile(r"XA\s+(COMMIT|ROLLBACK)\s+X'([0-9a-f]*)',X'([0-9a-f]*)',(\d+)", re.IGNORECASE)
_EMPTIED = re.compile(r"DELETE FROM `((?:[^`]|``)+)`\.`((?:[^`]|``)+)`")

Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as its session wrote it.

    Args:
        database: its session's default database.
        unreadable: why its bytes can't be decoded, if so.
        error: the server's error code; 0 if it succeeded.
        event: which it is from.
    """

    sql: str
    database: str
    mode: SqlMode
    unreadable: str | None
    error: int
    event: StatementEvent

    @property
    def role(self) -> Role:
        if self._emptied is not None:
            return Role.SCHEMA
        return Role.DATA if self.event.loads_file else statement_role(self.sql, self.mode)

    @property
    def _emptied(self) -> re.Match[str] | None:
        """The names of a table in memory that lost its rows as the server started.

        Newer servers write a TRUNCATE TABLE.
        """
        return _EMPTIED.fullmatch(self.sql) if self.event.is_servers else None

    @property
    def savepoint(self) -> str:
        """The name of a savepoint that it sets or returns to, as the server compares names."""
        tokens = tokenize(self.sql, self.mode)
        return next((token.text.lower() for token in reversed(tokens) if token.text != ";"), "")

    @property
    def xa_end(self) -> tuple[bool, bytes] | None:
        """Whether it commits an XA transaction or rolls it back, and its id; None if neither."""
        match = _XA_END.match(self.sql)
        if match is None:
            return None
        xid = xa_id(bytes.fromhex(match[2]), bytes.fromhex(match[3]), int(match[4]))
        return match[1].upper() == "COMMIT", xid

    def changes(self, *, lower_case: bool) -> list[SchemaChange]:
        """The changes of a statement with the role SCHEMA."""
        if self.unreadable is not None:
            return [unknown_statement(self.sql, self.unreadable)]
        if self._emptied is not None:
            database, table = [name.replace("``", "`") for name in self._emptied.groups()]
            return [SchemaChange("table-truncate", database, table)]
        changes = schema_changes(self.sql, self.database, self.mode)
        if self.error:
            # A CREATE OR REPLACE that failed has dropped the table.
            if not all(change.kind in ("table-create", "table-drop") for change in changes):
                return [unknown_statement(self.sql, f"it ended with error {self.error}")]
            changes = [change for change in changes if change.kind == "table-drop"]
        return [change.in_lower_case() for change in changes] if lower_case else changes

    def names(self) -> set[str]:
        """All words and names that stand before a dot: among them, the databases that it names."""
        try:
            tokens = tokenize(self.sql, self.mode)
        except SqlError:
            return set()
        dot = Token(Kind.SIGN, ".")
        return {one.text for one, after in itertools.pairwise(tokens) if after == dot}


def xa_id(global_part: bytes, branch: bytes, form: int) -> bytes:
    """The id of an XA transaction."""
    return b"%d:%d:" % (form, len(global_part)) + global_part + branch


def read_statement(event: StatementEvent) -> Statement:
    """The statement of an event."""
    raw = event.raw_query
    mode = SqlMode(event.sql_mode & _MODES | (SqlMode.MYSQL if event.is_mysql else 0))
    database = event.schema.decode("utf-8", "backslashreplace")
    # Statements that the server itself wrote have no character set.
    charset = _UTF8MB4 if event.character_set is None else event.character_set
    try:
        return Statement(
            decode_statement(raw, charset), database, mode, None, event.error_code, event
        )
    except CaptureError as error:
        text = raw.decode("ascii", "backslashreplace")
        return Statement(text, database, mode, str(error), event.error_code, event)


class TemporaryTables:
    """The temporary tables that sessions made, as far as the binlog tells.

    A session with another `binlog_format` than ROW writes them into the binlog, and statements on
    them have the names of the tables that they hide. The source marks statements that used one,
    but for RENAME TABLE; those of a session with ROW write nothing but their RENAME TABLE.
    """

    def __init__(self) -> None:
        self._tables: set[tuple[int, Name]] = set()

    def clear(self) -> None:
        """Forget all: the source started anew."""
        self._tables.clear()

    def read(self, statement: Statement, *, lower_case: bool) -> None:
        """Read a statement that makes or drops temporary tables, or does something else."""
        change: TemporaryChange | None = temporary_change(
            statement.sql, statement.database, statement.mode
        )
        if change is None:
            return
        names = [_folded(name) if lower_case else name for name in change.tables]
        keys = {(statement.event.thread, name) for name in names}
        if change.creates:
            self._tables |= keys
        else:
            self._tables -= keys

    def permanent(self, statement: Statement, changes: list[SchemaChange]) -> list[SchemaChange]:
        """Those of a statement's changes that are not of temporary tables.

        One that may be of a temporary table or not gets a step that stops `apply`.
        """
        thread, is_marked = statement.event.thread, statement.event.is_thread_specific
        left = []
        for change in changes:
            key = None if change.table is None else (thread, (change.database, change.table))
            is_altered = change.kind in ("table-alter", "table-truncate")
            if key in self._tables and is_altered:
                if change.new_name is not None:
                    self._tables.remove(key)
                    self._tables.add((thread, change.new_name))
            elif is_marked and change.kind == "table-truncate":
                continue
            elif is_marked and (change.kind == "table-alter" or _is_like(change)):
                reason = (
                    "the statement used a temporary table, or its session's number, of which the "
                    "binlog has nothing else: if the table is a temporary one, there is nothing to "
                    "do by hand"
                )
                left.append(replace(change, new_name=None, steps=[stop_step(reason)]))
            else:
                left.append(change)
        return left


def _is_like(change: SchemaChange) -> bool:
    return any(step["do"] == "create-like" for step in change.steps or ())


def _folded(name: Name) -> Name:
    return name[0].lower(), name[1].lower()
