"""Options of `purgatory apply`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from purgatory.cdc.change import MOST_VALUE_BYTES
from purgatory.cdc.column_types import ColumnType, type_in_mysql_words
from purgatory.cdc.errors import ChangesError


@dataclass(frozen=True)
class TableSpec:
    """What is said beforehand of a source's table.

    Args:
        name: of the table in the target; the source's own by default.
        primary_key: the columns of its key, if the log does not say.
        columns: the types of columns, which are otherwise taken from the first value.
    """

    name: str | None = None
    primary_key: tuple[str, ...] = ()
    columns: Mapping[str, ColumnType] = field(default_factory=dict)


@dataclass(frozen=True)
class ApplyOptions:
    """How changes are to be applied.

    Args:
        create: make tables and columns that are missing.
        effects: write what was read, applied and committed into the target, for the audit.
        stop_on_bad: stop at the first change that can't be applied, instead of setting it aside.
        tables: what is said of tables, by their source's `database.table`.
        passed: changes of schemas that a person has applied, as `TOPIC:PARTITION:OFFSET`.
        most_value_bytes: longer records are set aside unread.
    """

    create: bool = True
    effects: bool = False
    stop_on_bad: bool = False
    tables: Mapping[str, TableSpec] = field(default_factory=dict)
    passed: frozenset[str] = frozenset()
    most_value_bytes: int = MOST_VALUE_BYTES


def load_tables(path: Path) -> dict[str, TableSpec]:
    """Read what is said of tables from a file of TOML.

        ["shop.orders"]
        name = "orders"
        primary_key = ["id"]
        columns = { id = "bigint", total = "decimal(12,2)" }

    Raises:
        ChangesError: it can't be read, or a key or a type is none; says which.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ChangesError(f"{path}: can't be read as TOML: {error}") from error
    return {source: _spec(f'{path}, ["{source}"]', said) for source, said in document.items()}


def _spec(where: str, said: Any) -> TableSpec:
    if not isinstance(said, dict):
        raise ChangesError(f"{where}: must be a section of a table, named database.table")
    unknown = sorted(said.keys() - {"name", "primary_key", "columns"})
    if unknown:
        raise ChangesError(f"{where}: {unknown[0]} is none of name, primary_key, columns")
    name, key, columns = said.get("name"), said.get("primary_key", []), said.get("columns", {})
    if name is not None and not isinstance(name, str):
        raise ChangesError(f"{where}: name must be a text, and is {name!r}")
    if not isinstance(key, list) or not all(isinstance(column, str) for column in key):
        raise ChangesError(f"{where}: primary_key must be a list of columns, and is {key!r}")
    if not isinstance(columns, dict):
        raise ChangesError(f"{where}: columns must be a table of types, and is {columns!r}")
    return TableSpec(
        name, tuple(key), {column: _type(where, column, kind) for column, kind in columns.items()}
    )


def _type(where: str, column: str, kind: object) -> ColumnType:
    found = type_in_mysql_words(kind) if isinstance(kind, str) else None
    if found is None:
        raise ChangesError(
            f"{where}: {column} is {kind!r}, and no type of MySQL, such as varchar(20)"
        )
    return found
