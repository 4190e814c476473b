"""Which tables are captured, and how the source describes them now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pymysql

from purgatory.changes.capture.charsets import charset_of_collation
from purgatory.changes.capture.errors import CaptureError

SYSTEM_DATABASES = frozenset({"mysql", "information_schema", "performance_schema", "sys"})


@dataclass(frozen=True, slots=True)
class TableFilter:
    """Chooses tables.

    Args:
        database: the only one; None for all but the system's own.
        tables: ``TABLE`` or ``DATABASE.TABLE``; empty for all.
    """

    database: str | None = None
    tables: frozenset[str] = frozenset()

    def in_lower_case(self) -> TableFilter:
        """The same for a source that has all names so."""
        database = None if self.database is None else self.database.lower()
        return TableFilter(database, frozenset(table.lower() for table in self.tables))

    def takes_database(self, database: str) -> bool:
        """Tell whether changes of a database itself are captured."""
        if self.database is not None:
            return database == self.database
        return database.lower() not in SYSTEM_DATABASES

    def takes(self, database: str, table: str) -> bool:
        """Tell whether a table is captured."""
        if not self.takes_database(database):
            return False
        return not self.tables or table in self.tables or f"{database}.{table}" in self.tables


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column.

    Args:
        data_type, column_type: as ``information_schema`` has them, but with the character set in
            ``column_type`` where that is not the table's.
    """

    name: str
    data_type: str
    column_type: str


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A table as it is now."""

    database: str
    table: str
    columns: Sequence[TableColumn]
    primary_key: Sequence[str]
    engine: str

    def definition(self) -> dict[str, Any]:
        """Return it as Maxwell writes it, under ``def``."""
        return {
            "database": self.database,
            "table": self.table,
            "columns": [
                {
                    "name": column.name,
                    "type": column.data_type,
                    "column-type": column.column_type,
                    "signed": "unsigned" not in column.column_type,
                }
                for column in self.columns
            ],
            "primary-key": list(self.primary_key),
        }


_COLUMNS = """SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME, COLUMN_KEY
FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"""
_KEYS = """SELECT INDEX_NAME, COLUMN_NAME FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0 ORDER BY INDEX_NAME, SEQ_IN_INDEX"""
_TABLES = """SELECT TABLE_SCHEMA, TABLE_NAME, ENGINE FROM information_schema.TABLES
WHERE TABLE_TYPE = 'BASE TABLE' ORDER BY TABLE_SCHEMA, TABLE_NAME"""
_TABLE = """SELECT ENGINE, TABLE_COLLATION FROM information_schema.TABLES
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND TABLE_TYPE = 'BASE TABLE'"""


def describe_table(
    connection: pymysql.connections.Connection, database: str, table: str
) -> TableDescription | None:
    """Return a table's description; None when there is none of this name."""
    with connection.cursor() as cursor:
        cursor.execute(_TABLE, (database, table))
        found = cursor.fetchone()
        if found is None:
            return None
        cursor.execute(_COLUMNS, (database, table))
        rows = cursor.fetchall()
        usual = charset_of_collation(found[1])
        columns = [
            TableColumn(
                str(name),
                str(data_type),
                f"{words}{'' if charset in (None, usual) else f' character set {charset}'}",
            )
            for name, data_type, words, charset, _ in rows
        ]
        cursor.execute(_KEYS, (database, table))
        keys: dict[str, list[str]] = {}
        for index, column in cursor.fetchall():
            keys.setdefault(str(index), []).append(str(column))
    # As in the binlog: without a primary key, the first UNIQUE one of columns that are NOT NULL.
    of_key = {str(row[0]) for row in rows if row[4] == "PRI"}
    key = keys.get("PRIMARY") or next((key for key in keys.values() if set(key) == of_key), [])
    return TableDescription(database, table, columns, key, str(found[0]))


def described_tables(
    connection: pymysql.connections.Connection, chosen: TableFilter
) -> list[TableDescription]:
    """Return the tables that are captured, in the order of their names.

    Raises:
        CaptureError: a table that was named is not there, or the database isn't.
    """
    with connection.cursor() as cursor:
        cursor.execute(_TABLES)
        names = [(str(row[0]), str(row[1])) for row in cursor.fetchall()]
    taken = [name for name in names if chosen.takes(*name)]
    known = {table for _, table in taken} | {".".join(name) for name in taken}
    missing = sorted(chosen.tables - known)
    if missing:
        raise CaptureError(f"--only: the source has no table {', '.join(missing)}")
    descriptions = [describe_table(connection, *name) for name in taken]
    return [description for description in descriptions if description is not None]
