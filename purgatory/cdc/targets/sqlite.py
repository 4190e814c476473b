"""SQLite as a target.

One transaction at a time writes; the others wait for it, at most `BUSY_TIMEOUT_S`.
"""

from __future__ import annotations

import sqlite3
import string
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from purgatory.cdc.column_types import CONVERTERS, ColumnType, Value
from purgatory.cdc.errors import TargetError
from purgatory.cdc.quarantine import REJECTED, TOO_LARGE, WRONG_TYPE, InvalidChangeError
from purgatory.cdc.targets.target import PREFIX, Table, Target

BUSY_TIMEOUT_S = 60.0
"""The timeout of a transaction that waits for another one."""
_PAUSE_S = 0.01

_TYPE_WORDS = (
    ("INT", ColumnType.BIGINT),
    ("BOOL", ColumnType.BOOLEAN),
    ("CHAR", ColumnType.TEXT),
    ("TEXT", ColumnType.TEXT),
    ("CLOB", ColumnType.TEXT),
    ("JSON", ColumnType.JSON),
    ("BLOB", ColumnType.BINARY),
    ("REAL", ColumnType.DOUBLE),
    ("DOUB", ColumnType.DOUBLE),
    ("FLOA", ColumnType.DOUBLE),
    ("NUMERIC", ColumnType.NUMERIC),
    ("DECIMAL", ColumnType.NUMERIC),
)
"""Words in declared types, in the order of precedence."""
_LOWER_CASE = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class SqliteTarget(Target):
    """A connection to a SQLite file, which is created if it does not exist.

    Raises:
        TargetError: it can't be opened or is no database.
    """

    driver_error: ClassVar[type[Exception]] = sqlite3.Error
    begin = "BEGIN IMMEDIATE"
    # The catalog returns the declared types; their affinities keep numbers with many digits, dates
    # and texts as they are.
    reserved = (PREFIX, "sqlite_")
    type_names: ClassVar[Mapping[ColumnType, str]] = {
        ColumnType.BIGINT: "INTEGER",
        ColumnType.NUMERIC: "DECIMAL_TEXT",
        ColumnType.DOUBLE: "REAL",
        ColumnType.BOOLEAN: "BOOLEAN",
        ColumnType.TEXT: "TEXT",
        ColumnType.JSON: "JSON_TEXT",
        ColumnType.BINARY: "BLOB",
        ColumnType.DATE: "DATE_TEXT",
        ColumnType.DATETIME: "DATETIME_TEXT",
        ColumnType.OTHER: "TEXT",
    }

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        try:
            self._connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
            self._begin_journal()
            self._run("PRAGMA synchronous = FULL")
        except sqlite3.Error as error:
            raise TargetError(f"{path}: can't be opened as a SQLite database: {error}") from error

    def _begin_journal(self) -> None:
        """Switch the database to a write-ahead log, for good.

        Two processes that open a new database at once conflict, and SQLite does not wait then.
        """
        until_s = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                self._run("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if not self.is_connection_error(error) or time.monotonic() >= until_s:
                    raise
                time.sleep(_PAUSE_S)

    def close(self) -> None:
        self._connection.close()

    def schema_lock(self) -> None:
        """Do nothing: the transaction locks the whole database."""

    def table(self, name: str) -> Table | None:
        rows = self._run(f"PRAGMA table_info({self.quote(name)})").fetchall()
        if not rows:
            return None
        columns = {rows[1]: _declared_type(rows[2]) for rows in rows}
        key = sorted((rows[5], rows[1]) for rows in rows if rows[5])
        return Table(name, columns, tuple(name for _, name in key))

    def _table_options(self, table: Table) -> str:
        # The own tables keep their row ids: those of the audit log have no key.
        return " WITHOUT ROWID" if not table.name.startswith(PREFIX) else ""

    def converter(self, column_type: ColumnType) -> Callable[[Any], Value]:
        convert = CONVERTERS[column_type]
        if column_type is ColumnType.NUMERIC:
            return lambda value: format(convert(value), "f")
        if column_type is ColumnType.BOOLEAN:
            return lambda value: int(bool(convert(value)))
        return convert

    def name_fits(self, name: str) -> bool:
        return bool(name) and "\0" not in name

    def fold_name(self, name: str) -> str:
        # SQLite is case-insensitive for ASCII only.
        return name.translate(_LOWER_CASE)

    def invalid_change(self, error: Exception) -> InvalidChangeError | None:
        if isinstance(error, OverflowError):
            return InvalidChangeError(TOO_LARGE, str(error))
        if isinstance(error, UnicodeError):
            return InvalidChangeError(WRONG_TYPE, str(error))
        if isinstance(error, sqlite3.IntegrityError):
            return InvalidChangeError(
                WRONG_TYPE if "datatype" in str(error) else REJECTED, str(error)
            )
        if isinstance(error, sqlite3.DataError) or "too big" in str(error):
            return InvalidChangeError(TOO_LARGE, str(error))
        return None

    def is_connection_error(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.OperationalError) and (
            "locked" in str(error) or "busy" in str(error)
        )

    def _run(self, sql: str, values: Sequence[Value] = ()) -> sqlite3.Cursor:
        return self._connection.execute(sql, values)

    def _run_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        self._connection.executemany(sql, rows)


def _declared_type(declared: str) -> ColumnType:
    words = declared.upper()
    for name, kind in (("DATETIME", ColumnType.DATETIME), ("TIMESTAMP", ColumnType.DATETIME)):
        if name in words:
            return kind
    if words.startswith("DATE"):
        return ColumnType.DATE
    if "DECIMAL" in words:
        return ColumnType.NUMERIC
    if "JSON" in words:
        return ColumnType.JSON
    return next((kind for word, kind in _TYPE_WORDS if word in words), ColumnType.OTHER)
