"""PostgreSQL as a target.

Ground rules: values are sent as text of unknown type, so that the column determines their type, and
one prepared statement takes all of them; the server checks ranges and lengths.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import psycopg
from psycopg import errors

from purgatory.cdc.column_types import CONVERTERS, ColumnType, Value
from purgatory.cdc.errors import TargetError, TargetUnavailableError
from purgatory.cdc.quarantine import REJECTED, TOO_LARGE, WRONG_TYPE, InvalidChangeError
from purgatory.cdc.targets.target import Table, Target

_CONNECT_TIMEOUT_S = 10
_REFUSED = re.compile(
    r"invalid |missing \"=\"|authentication failed|pg_hba\.conf|no password supplied|does not exist"
    r"|permission denied",
    re.IGNORECASE,
)
"""Messages of permanent errors; others may be transient. libpq has no error code for a connection
that failed."""
_SCHEMA_LOCK = 0x70757267
"""The advisory lock that is held while the schema is changed."""
_MAX_NAME_BYTES = 63
_SYSTEM_COLUMNS = {"ctid", "cmax", "cmin", "tableoid", "xmax", "xmin"}
"""Every table has these."""

_TYPES = {
    "int2": ColumnType.BIGINT,
    "int4": ColumnType.BIGINT,
    "int8": ColumnType.BIGINT,
    "numeric": ColumnType.NUMERIC,
    "float4": ColumnType.DOUBLE,
    "float8": ColumnType.DOUBLE,
    "bool": ColumnType.BOOLEAN,
    "text": ColumnType.TEXT,
    "varchar": ColumnType.TEXT,
    "bpchar": ColumnType.TEXT,
    "json": ColumnType.JSON,
    "jsonb": ColumnType.JSON,
    "bytea": ColumnType.BINARY,
    "date": ColumnType.DATE,
    "timestamp": ColumnType.DATETIME,
    "timestamptz": ColumnType.DATETIME,
}
_AS_TEXT = {ColumnType.BIGINT, ColumnType.NUMERIC, ColumnType.DOUBLE}
_ZERO = re.compile("\0")
_ZERO_VALUES = {
    ColumnType.TEXT: _ZERO,
    ColumnType.OTHER: _ZERO,
    ColumnType.DATE: _ZERO,
    ColumnType.DATETIME: _ZERO,
    # Escaped, after an even number of backslashes.
    ColumnType.JSON: re.compile(r"(?<!\\)(?:\\\\)*\\u0000"),
}
"""Finds the character 0 in a value."""
_TOO_LARGE = (
    errors.StringDataRightTruncation,
    errors.NumericValueOutOfRange,
    errors.ProgramLimitExceeded,
)
_CONNECTION_ERRORS = (
    psycopg.OperationalError,
    errors.DeadlockDetected,
    errors.SerializationFailure,
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
)


class PostgresTarget(Target):
    """A connection to a PostgreSQL server.

    Args:
        url: as libpq takes it.

    Raises:
        TargetError: the server is unreachable, or refuses the connection.
    """

    driver_error: ClassVar[type[Exception]] = psycopg.Error
    placeholder = "%s"
    lock_row = " FOR UPDATE"
    type_names: ClassVar[Mapping[ColumnType, str]] = {
        ColumnType.BIGINT: "bigint",
        ColumnType.NUMERIC: "numeric",
        ColumnType.DOUBLE: "double precision",
        ColumnType.BOOLEAN: "boolean",
        ColumnType.TEXT: "text",
        ColumnType.JSON: "jsonb",
        ColumnType.BINARY: "bytea",
        ColumnType.DATE: "date",
        ColumnType.DATETIME: "timestamp",
        ColumnType.OTHER: "text",
    }

    def __init__(self, url: str) -> None:
        super().__init__()
        try:
            self._connection = psycopg.connect(
                url, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S
            )
        except psycopg.Error as error:
            reason = " ".join(str(error).split())
            kind = TargetError if _REFUSED.search(reason) else TargetUnavailableError
            raise kind(f"the target can't be reached: {reason}") from error

    def close(self) -> None:
        self._connection.close()

    def quote(self, name: str) -> str:
        return super().quote(name).replace("%", "%%")

    def schema_lock(self) -> None:
        self._run("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))

    def table(self, name: str) -> Table | None:
        rows = self._run(
            "SELECT a.attname, t.typname, array_position(i.indkey::int2[], a.attnum) "
            "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
            "LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary "
            "WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped "
            "ORDER BY a.attnum",
            (Target.quote(self, name),),
        ).fetchall()
        if not rows:
            return None
        columns = {rows[0]: _TYPES.get(rows[1], ColumnType.OTHER) for rows in rows}
        key = sorted((rows[2], rows[0]) for rows in rows if rows[2] is not None)
        return Table(name, columns, tuple(name for _, name in key))

    def converter(self, column_type: ColumnType) -> Callable[[Any], Value]:
        convert = CONVERTERS[column_type]
        if column_type in _AS_TEXT:
            return lambda value: str(convert(value))
        if column_type in _ZERO_VALUES:
            zero = _ZERO_VALUES[column_type]
            return lambda value: _zero_to_null(convert(value), zero)
        return convert

    def name_fits(self, name: str) -> bool:
        return bool(name) and "\0" not in name and len(name.encode()) <= _MAX_NAME_BYTES

    def column_fits(self, name: str) -> bool:
        return self.name_fits(name) and name not in _SYSTEM_COLUMNS

    def fold_name(self, name: str) -> str:
        return name

    def invalid_change(self, error: Exception) -> InvalidChangeError | None:
        if isinstance(error, UnicodeError):
            return InvalidChangeError(WRONG_TYPE, str(error))
        if not isinstance(error, psycopg.Error) or self.is_connection_error(error):
            return None
        message = " ".join(str(error).split())
        if isinstance(error, _TOO_LARGE):
            return InvalidChangeError(TOO_LARGE, message)
        if isinstance(error, psycopg.DataError | errors.DatatypeMismatch):
            return InvalidChangeError(WRONG_TYPE, message)
        if isinstance(error, psycopg.IntegrityError):
            return InvalidChangeError(REJECTED, message)
        return None

    def is_connection_error(self, error: Exception) -> bool:
        return (
            isinstance(error, _CONNECTION_ERRORS)
            and not isinstance(error, errors.ProgramLimitExceeded)
        ) or self._connection.closed

    def _run(self, sql: str, values: Sequence[Value] = ()) -> psycopg.Cursor[Any]:
        return self._connection.execute(sql, values)

    def _run_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(sql, rows)


def _zero_to_null(value: Value, zero: re.Pattern[str]) -> Value:
    """Refuse the one character that PostgreSQL's text can't have, for this value and not a whole
    batch."""
    if isinstance(value, str) and zero.search(value):
        raise InvalidChangeError(
            WRONG_TYPE, "a text with the character 0, which PostgreSQL can't store"
        )
    return value
