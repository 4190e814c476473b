"""Options of `purgatory apply`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from purgatory.cdc.change import MAX_VALUE_BYTES
from purgatory.cdc.column_types import ColumnType, column_type_by_name
from purgatory.cdc.errors import ChangesError
from purgatory.cdc.formats import LogFormat

RETRY_FOR_S = 60.0
"""The maximum time that a target may be unreachable."""


@dataclass(frozen=True)
class TableSpec:
    """The user's specification of a table of the source.

    Args:
        name: of the target's table; the source's own by default.
        primary_key: its columns, for a log without them.
        columns: the types of columns, which otherwise follow from the first value.
    """

    name: str | None = None
    primary_key: tuple[str, ...] = ()
    columns: Mapping[str, ColumnType] = field(default_factory=dict)


@dataclass(frozen=True)
class ApplyOptions:
    """The options of applying changes.

    Args:
        create: create missing tables and columns.
        audit_log: record what was read, applied and committed in the target, for the audit.
        stop_on_quarantine: stop at the first invalid change, instead of quarantining it.
        tables: by the source's `database.table`, as `source_name` writes it.
        skip_ddl: schema changes that a person has applied, as `TOPIC:PARTITION:OFFSET`.
        max_value_bytes: longer records are quarantined without being parsed.
        log_format: Maxwell's or Debezium's; `auto` looks at each record.
    """

    create: bool = True
    audit_log: bool = False
    stop_on_quarantine: bool = False
    tables: Mapping[str, TableSpec] = field(default_factory=dict)
    skip_ddl: frozenset[str] = frozenset()
    max_value_bytes: int = MAX_VALUE_BYTES
    log_format: LogFormat = "auto"


@dataclass(frozen=True)
class TopicSettings:
    """The topics to apply, and the target.

    Args:
        target_url: as `open_target` takes it; each of Spark's tasks opens it on its own machine.
        client: options of the source, as `{"kafka.bootstrap.servers": ...}`.
        by_transaction: apply whole transactions of the source only.
        once: stop at the current ends of the topics.
        max_records: of one micro-batch.
        retry_for_s: how long the target may be unreachable.
    """

    topics: tuple[str, ...]
    target_url: str
    client: Mapping[str, str]
    options: ApplyOptions = field(default_factory=ApplyOptions)
    by_transaction: bool = False
    once: bool = False
    max_records: int = 100_000
    retry_for_s: float = RETRY_FOR_S


def load_tables(path: Path) -> dict[str, TableSpec]:
    """Read table specifications from a TOML file.

        ["shop.orders"]
        name = "orders"
        primary_key = ["id"]
        columns = { id = "bigint", total = "decimal(12,2)" }

    Raises:
        ChangesError: the file can't be read, or has an unknown key or type.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ChangesError(f"{path}: can't be read as TOML: {error}") from error
    return {source: _spec(f'{path}, ["{source}"]', spec) for source, spec in document.items()}


def _spec(location: str, spec: Any) -> TableSpec:
    if not isinstance(spec, dict):
        raise ChangesError(f"{location}: must be a section of a table, named database.table")
    unknown = sorted(spec.keys() - {"name", "primary_key", "columns"})
    if unknown:
        raise ChangesError(f"{location}: {unknown[0]} is none of name, primary_key, columns")
    name, key, columns = spec.get("name"), spec.get("primary_key", []), spec.get("columns", {})
    if name is not None and not isinstance(name, str):
        raise ChangesError(f"{location}: name must be a string, and is {name!r}")
    if not isinstance(key, list) or not all(isinstance(column, str) for column in key):
        raise ChangesError(f"{location}: primary_key must be a list of columns, and is {key!r}")
    if not isinstance(columns, dict):
        raise ChangesError(f"{location}: columns must be a table of types, and is {columns!r}")
    types = {}
    for column, name_of_type in columns.items():
        kind = column_type_by_name(name_of_type) if isinstance(name_of_type, str) else None
        if kind is None:
            raise ChangesError(
                f"{location}: {column} is {name_of_type!r}, not a MySQL type such as varchar(20)"
            )
        types[column] = kind
    return TableSpec(name, tuple(key), types)
