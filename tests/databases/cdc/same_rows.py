"""Whether a target's tables are the source's, cell by cell."""

from __future__ import annotations

import base64
import re
from decimal import Decimal
from typing import Any

from purgatory.cdc import Target
from tests.databases.cdc.mariadb import MariaDb

_TEMPORAL = {"date", "datetime", "timestamp", "time"}
_CAST = {
    **dict.fromkeys(_TEMPORAL, "CHAR"),
    "inet4": "BINARY(4)",
    "inet6": "BINARY(16)",
    "uuid": "BINARY(16)",
}
_FRACTION = re.compile(r"(\d\d:\d\d:\d\d)\.(\d*?)0*")
_NO_DATE = re.compile(r"0000-|\d{4}-00-|\d{4}-\d{2}-00")


def tables_of(mariadb: MariaDb, database: str) -> dict[str, dict[str, str]]:
    """The source's tables with a primary key: their columns, with the types."""
    found: dict[str, dict[str, str]] = {}
    for table, column, kind in mariadb.rows(
        "SELECT c.TABLE_NAME, c.COLUMN_NAME, c.DATA_TYPE FROM information_schema.COLUMNS c JOIN"
        " information_schema.TABLES t USING (TABLE_SCHEMA, TABLE_NAME) WHERE c.TABLE_SCHEMA = %s"
        " AND t.TABLE_TYPE = 'BASE TABLE' ORDER BY c.TABLE_NAME, c.ORDINAL_POSITION",
        (database,),
    ):
        found.setdefault(table, {})[column] = kind
    return found


def difference(mariadb: MariaDb, database: str, target: Target) -> dict[str, object]:
    """The differences by table; none if all rows are equal in all columns, and no table is more.

    A column whose values were always null may be missing in the target.
    """
    wrong: dict[str, object] = {}
    there = {row[0] for row in target.select_own("purgatory_tables")}
    tables = tables_of(mariadb, database)
    for name, columns in tables.items():
        table = target.table(name)
        rows = _source_rows(mariadb, database, name, columns)
        if table is None:
            if rows:
                wrong[name] = "is missing"
            continue
        found = _target_rows(target, name, [c for c in columns if c in table.columns])
        more = set(table.columns) - set(columns)
        if more:
            wrong[name] = f"has {more} too"
        elif len(rows) != len(found):
            wrong[name] = f"{len(found)} rows and not {len(rows)}"
        else:
            cells = [
                (column, source[column], copy.get(column))
                for source, copy in zip(_ordered(rows, table), _ordered(found, table), strict=True)
                for column in columns
                if not _same(source[column], copy.get(column))
            ]
            if cells:
                wrong[name] = cells[:5]
    wrong.update({name: "is still there" for name in there - set(tables) if target.table(name)})
    return wrong


def _ordered(rows: list[dict[str, Any]], table: Any) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: tuple(_key(row[name]) for name in table.primary_key))


def _key(value: Any) -> Any:
    return Decimal(value) if isinstance(value, int | Decimal) or _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"-?\d+(\.\d+)?", value) is not None


def _source_rows(
    mariadb: MariaDb, database: str, table: str, columns: dict[str, str]
) -> list[dict[str, Any]]:
    shown = ", ".join(
        f"CAST(`{name}` AS {_CAST[kind]})" if kind in _CAST else f"`{name}`"
        for name, kind in columns.items()
    )
    return [
        {
            name: _of_source(value, kind)
            for (name, kind), value in zip(columns.items(), row, strict=True)
        }
        for row in mariadb.rows(f"SELECT {shown} FROM `{database}`.`{table}`")
    ]


def _of_source(value: Any, kind: str) -> Any:
    if kind == "bit" and value is not None:
        return int.from_bytes(value, "big")
    if kind in _TEMPORAL and value is not None:
        return None if _NO_DATE.match(value) else _time(value)
    return value


def _time(text: str) -> str:
    match = _FRACTION.search(text)
    if match is None:
        return text
    return text[: match.start()] + match[1] + (f".{match[2]}" if match[2] else "")


def _target_rows(target: Target, table: str, columns: list[str]) -> list[dict[str, Any]]:
    names = ", ".join(f'"{name}"' for name in columns)
    rows = target._run(f'SELECT {names} FROM "{table}"').fetchall()
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _same(source: Any, copy: Any) -> bool:
    if source is None or copy is None:
        return source is copy
    if isinstance(source, bytes):
        encoded = base64.b64encode(source).decode()
        return copy == encoded if isinstance(copy, str) else bytes(copy) == source
    if isinstance(source, int | Decimal):
        return Decimal(source) == Decimal(copy)
    if isinstance(source, float):
        return source == float(copy)
    text = str(copy)
    return str(source) == text or str(source) == _time(text)
