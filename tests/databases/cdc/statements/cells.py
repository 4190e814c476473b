"""The cells of a source and of its copies, each read by its own SQL, in one form for both.

No code here is the product's: its form of a value is compared with MariaDB's.
"""

from __future__ import annotations

import base64
import binascii
import calendar
import re
import sqlite3
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import psycopg
import pymysql

Cell = str | None
Row = tuple[Cell, ...]

_NUMBERS = {"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "year"}
_TEMPORAL = {"date", "datetime", "timestamp", "time"}
_TEXTS = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json"}
_FRACTION = re.compile(r"(:\d\d)(?:\.(\d*?)0*)?$")


@dataclass(frozen=True)
class SourceTable:
    """A table of the source: its columns with their types, and its rows."""

    columns: Mapping[str, str]
    rows: Sequence[Row]


@dataclass(frozen=True)
class CopiedTable:
    """A table of a copy, as its database returns it."""

    columns: Sequence[str]
    rows: Sequence[tuple[Any, ...]]


def read_source(
    connection: pymysql.connections.Connection[Any], database: str
) -> dict[str, SourceTable]:
    """Read all tables of a database; the connection's times must be in UTC."""
    columns: dict[str, dict[str, str]] = {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE FROM information_schema.COLUMNS JOIN"
            " information_schema.TABLES USING (TABLE_SCHEMA, TABLE_NAME) WHERE TABLE_SCHEMA = %s"
            " AND TABLE_TYPE = 'BASE TABLE' ORDER BY TABLE_NAME, ORDINAL_POSITION",
            (database,),
        )
        for table, column, kind in cursor.fetchall():
            columns.setdefault(table, {})[column] = kind
        found = {}
        for table, kinds in columns.items():
            shown = ", ".join(_shown(_name(column), kind) for column, kind in kinds.items())
            cursor.execute(f"SELECT {shown} FROM {_name(database)}.{_name(table)}")
            rows = [
                tuple(
                    _of_source(cell, kind) for cell, kind in zip(row, kinds.values(), strict=True)
                )
                for row in cursor.fetchall()
            ]
            found[table] = SourceTable(kinds, rows)
    return found


def keyless_tables(connection: pymysql.connections.Connection[Any], database: str) -> set[str]:
    """Return the tables that have no primary key, in small letters."""
    # Two queries: of two tables whose names differ in case, one that joins them confuses the keys.
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT TABLE_NAME FROM information_schema.TABLES"
            " WHERE TABLE_SCHEMA = %s AND TABLE_TYPE = 'BASE TABLE'",
            (database,),
        )
        tables = {row[0] for row in cursor.fetchall()}
        cursor.execute(
            "SELECT TABLE_NAME FROM information_schema.STATISTICS"
            " WHERE TABLE_SCHEMA = %s AND INDEX_NAME = 'PRIMARY'",
            (database,),
        )
        with_key = {row[0] for row in cursor.fetchall()}
    return {table.lower() for table in tables - with_key}


def _name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _shown(name: str, kind: str) -> str:
    if kind in _NUMBERS or kind in _TEMPORAL:
        return f"CAST({name} AS CHAR)"
    if kind == "bit":
        return f"CAST(CAST({name} AS UNSIGNED) AS CHAR)"
    if kind in ("float", "double"):
        return f"{name} + 0e0"  # As a double: MySQL has no CAST for it below 8.0.17.
    if kind in _TEXTS:
        return f"HEX(CONVERT({name} USING utf8mb4))"
    if kind in ("uuid", "inet6"):
        return f"HEX(CAST({name} AS BINARY(16)))"
    if kind == "inet4":
        return f"HEX(CAST({name} AS BINARY(4)))"
    return f"HEX({name})"


def _of_source(cell: Any, kind: str) -> Cell:
    if cell is None or (kind in _TEMPORAL - {"time"} and _is_no_date(cell)):
        return None
    if kind in _TEXTS:
        return bytes.fromhex(cell).decode()
    if kind in _NUMBERS or kind in _TEMPORAL or kind in ("float", "double", "bit"):
        return _of_copy(cell, kind)
    return f"bytes {cell.lower()}"


def _is_no_date(text: str) -> bool:
    year, month, day = map(int, text[:10].split("-"))
    return not (year and month and 1 <= day <= calendar.monthrange(year, month)[1])


def _of_copy(cell: Any, kind: str) -> Cell:
    """A value of a copy's column in the form of the source's type; marked if it is none of it."""
    if cell is None:
        return None
    try:
        if kind in _NUMBERS or kind == "bit":
            number = Decimal(str(int(cell) if isinstance(cell, bool) else cell))
            return format(number.normalize(), "f") if number else "0"
        if kind == "float":
            return struct.pack("<f", float(cell) + 0.0).hex() if float(cell) else "0"
        if kind == "double":
            return repr(float(cell)) if float(cell) else "0"
    except (InvalidOperation, ValueError, TypeError, OverflowError):
        return f"not a number: {cell!r}"
    if kind in _TEMPORAL:
        return _FRACTION.sub(
            lambda found: found[1] + (f".{found[2]}" if found[2] else ""), str(cell)
        )
    if kind in _TEXTS:
        return cell if isinstance(cell, str) else f"not a text: {cell!r}"
    if isinstance(cell, str):
        try:
            return f"bytes {base64.b64decode(cell, validate=True).hex()}"
        except binascii.Error:
            return f"not base 64: {cell!r}"
    return f"bytes {bytes(cell).hex()}"


def read_sqlite(connection: sqlite3.Connection) -> dict[str, CopiedTable]:
    """Read all tables of a copy in SQLite but the product's own."""
    names = [
        row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    found = {}
    for name in names:
        if not name.startswith(("purgatory_", "sqlite_")):
            cursor = connection.execute(f"SELECT * FROM {_quoted(name)}")
            found[name] = CopiedTable([one[0] for one in cursor.description], cursor.fetchall())
    return found


def read_postgres(connection: psycopg.Connection[Any], schema: str) -> dict[str, CopiedTable]:
    """Read all tables of a schema of PostgreSQL but the product's own."""
    columns: dict[str, dict[str, str]] = {}
    for table, column, kind in connection.execute(
        "SELECT table_name, column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = %s ORDER BY table_name, ordinal_position",
        (schema,),
    ):
        columns.setdefault(table, {})[column] = kind
    found = {}
    for table, kinds in columns.items():
        if not table.startswith("purgatory_"):
            native = ("bigint", "numeric", "double precision", "boolean", "bytea")
            shown = [
                _quoted(column) if kind in native else f"{_quoted(column)}::text"
                for column, kind in kinds.items()
            ]
            sql = f"SELECT {', '.join(shown)} FROM {_quoted(schema)}.{_quoted(table)}"
            found[table] = CopiedTable(list(kinds), connection.execute(sql.encode()).fetchall())
    return found


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def differences(
    source: Mapping[str, SourceTable], copy: Mapping[str, CopiedTable]
) -> dict[str, str]:
    """The differences by table: none if each cell of each table is equal.

    A column of which all values are null may be missing in a copy, and a table without rows.
    """
    wrong = {name: "is there, and not in the source" for name in copy if name not in source}
    for name, table in source.items():
        if name not in copy:
            if table.rows:
                wrong[name] = f"is missing: {len(table.rows)} rows"
            continue
        told = _table_difference(table, copy[name])
        if told:
            wrong[name] = told
    return wrong


def _table_difference(source: SourceTable, copy: CopiedTable) -> str:
    more = [column for column in copy.columns if column not in source.columns]
    if more:
        lacking_columns = [name for name in source.columns if name not in copy.columns]
        return f"has the columns {more}, and not {lacking_columns}"
    places = {column: copy.columns.index(column) for column in copy.columns}
    rows = [
        tuple(
            _of_copy(row[places[column]], kind) if column in places else None
            for column, kind in source.columns.items()
        )
        for row in copy.rows
    ]
    lacking, extra = Counter(source.rows), Counter(rows)
    lacking, extra = lacking - extra, extra - lacking
    if not lacking and not extra:
        return ""
    names = list(source.columns)
    one = zip(min(lacking, key=repr, default=()), min(extra, key=repr, default=()), strict=False)
    differ = [(names[n], source.columns[names[n]]) for n, (a, b) in enumerate(one) if a != b]
    return (
        f"{len(source.rows)} and {len(rows)} rows; columns {differ}; "
        f"the source has {_some(lacking)}, the copy has {_some(extra)}"
    )


def _some(rows: Counter[Row]) -> str:
    return str(sorted(rows, key=repr)[:2])[:600]
