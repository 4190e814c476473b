"""Which table of the target a change belongs to, made or widened where it is missing.

Tables and columns are made in transactions of their own, before the one that applies a batch: made
twice does no harm, and two tasks that widen a table while both write to it would wait for each
other for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from purgatory.changes.change import Change, key_columns_of
from purgatory.changes.column_types import (
    ColumnType,
    Value,
    type_in_mysql_words,
    type_of_value,
)
from purgatory.changes.errors import BadChangeError
from purgatory.changes.options import ApplyOptions, TableSpec
from purgatory.changes.quarantine import (
    MALFORMED,
    MISSING_KEY,
    NOT_APPLIED,
    UNKNOWN_COLUMN,
    UNKNOWN_TABLE,
)
from purgatory.changes.targets.target import PREFIX, Table, Target

_NOTHING_SAID = TableSpec()


@dataclass(frozen=True, slots=True)
class Plan:
    """How rows of a source's table with certain columns go into the target.

    Args:
        table: the target's table.
        columns: those of the row that the table has.
        converters: what makes their values, in the same order.
        missing: those that it lacks; their values are null, or the plan does not hold.
        key: name and converter of each column of the key.
    """

    table: Table
    columns: tuple[str, ...]
    converters: tuple[Callable[[Any], Value], ...]
    missing: tuple[str, ...]
    key: tuple[tuple[str, Callable[[Any], Value]], ...]


class Schema:
    """The tables of one target, as far as they are known. One thread at a time."""

    def __init__(self, target: Target, options: ApplyOptions) -> None:
        self._target = target
        self._options = options
        self._tables: dict[str, Table] = {}
        self._plans: dict[tuple[str, tuple[str, ...]], Plan] = {}
        self._refused: dict[str, BadChangeError] = {}

    def begin_batch(self) -> None:
        """Look again for tables that were not there: somebody may have made them."""
        self._refused.clear()

    def plan(self, change: Change, record_key: bytes | None) -> Plan:
        """Return how a change of a row is applied; may make or widen its table. O(1) once known.

        Args:
            change: of a row.
            record_key: the key of its record, which may name the columns of the primary key.

        Raises:
            BadChangeError: there is no such table or column, or no key.
        """
        data = change.data
        shape = (change.source, tuple(data))
        plan = self._plans.get(shape)
        if plan is None or (plan.missing and any(data[name] is not None for name in plan.missing)):
            table = self._widened(change, self._table(change, record_key))
            plan = self._plans[shape] = self._new_plan(table, data)
        return plan

    def define(self, change: Change) -> None:
        """Apply a change of a schema: make the table, or add the columns that it lacks.

        Raises:
            BadChangeError: it would destroy or move data, or there is no key.
        """
        if change.kind in ("database-create", "database-alter"):
            return
        if change.kind in ("table-drop", "database-drop"):
            raise BadChangeError(NOT_APPLIED, f"{change.kind}: drop it by hand if it is to go")
        definition = change.definition or {}
        renamed = definition.get("table", change.table)
        if renamed != change.table:
            raise BadChangeError(
                NOT_APPLIED, f"{change.source} was renamed to {renamed}: rename it by hand"
            )
        if not self._options.create:
            raise BadChangeError(NOT_APPLIED, f"{change.kind}: to make tables is off")
        columns = {**_defined(definition), **self._said(change.source).columns}
        key = definition.get("primary-key") or change.primary_key
        if not isinstance(key, list) or not all(isinstance(name, str) for name in key):
            raise BadChangeError(MISSING_KEY, f"{change.source} has no primary key")
        table = self._known_or_new(change.source, key, columns)
        differ = [
            name
            for name, kind in columns.items()
            if name in table.columns and not _alike(table.columns[name], kind)
        ]
        self._add(change.source, table, columns)
        if differ:
            raise BadChangeError(
                NOT_APPLIED,
                f"{table.name}.{differ[0]} is {table.columns[differ[0]].value}, and would be "
                f"{columns[differ[0]].value}: change it by hand",
            )

    def _said(self, source: str) -> TableSpec:
        return self._options.tables.get(source, _NOTHING_SAID)

    def _table(self, change: Change, record_key: bytes | None) -> Table:
        source = change.source
        known = self._tables.get(source)
        if known is not None:
            return known
        if source in self._refused:
            raise self._refused[source]
        try:
            key = self._said(source).primary_key or change.primary_key or key_columns_of(record_key)
            columns = self._columns_of(change)
            return self._known_or_new(source, list(key) if key else None, columns)
        except BadChangeError as error:
            if error.reason == UNKNOWN_TABLE:
                self._refused[source] = error
            raise

    def _columns_of(self, change: Change) -> dict[str, ColumnType]:
        """The types of the columns of which something is known."""
        said = self._said(change.source).columns
        found = {
            name: said.get(name) or type_of_value(value) for name, value in change.data.items()
        }
        return {**{name: kind for name, kind in found.items() if kind is not None}, **said}

    def _known_or_new(
        self, source: str, key: list[str] | None, columns: Mapping[str, ColumnType]
    ) -> Table:
        name = self._said(source).name or source.partition(".")[2]
        if name.lower().startswith(PREFIX) or not self._target.name_fits(name):
            raise BadChangeError(UNKNOWN_TABLE, f"no table of the target can be named {name!r}")
        with self._target.transaction():
            self._target.schema_lock()
            table = self._target.table(name)
            if table is None:
                table = self._created(name, key, columns)
            self._check_key(table, key)
            self._claim(name, source)
        self._tables[source] = table
        return table

    def _created(
        self, name: str, key: list[str] | None, columns: Mapping[str, ColumnType]
    ) -> Table:
        if not self._options.create:
            raise BadChangeError(UNKNOWN_TABLE, f"the target has no table {name}")
        if not key:
            raise BadChangeError(MISSING_KEY, f"nothing says what the primary key of {name} is")
        absent = [column for column in key if column not in columns]
        if absent:
            raise BadChangeError(MISSING_KEY, f"the row lacks {absent[0]} of the primary key")
        self._check_names(columns)
        self._target.create_table(Table(name, columns, tuple(key)))
        table = self._target.table(name)
        assert table is not None, "it was made just now"
        return table

    def _check_names(self, columns: Mapping[str, ColumnType] | Sequence[str]) -> None:
        for column in columns:
            if not self._target.name_fits(column):
                raise BadChangeError(UNKNOWN_COLUMN, f"no column can be named {column[:80]!r}")

    def _check_key(self, table: Table, key: list[str] | None) -> None:
        if not table.primary_key:
            raise BadChangeError(
                UNKNOWN_TABLE, f"the target's table {table.name} has no primary key"
            )
        if key is not None and set(key) != set(table.primary_key):
            raise BadChangeError(
                UNKNOWN_TABLE,
                f"the primary key of the target's table {table.name} is "
                f"({', '.join(table.primary_key)}), and that of the source ({', '.join(key)})",
            )

    def _claim(self, name: str, source: str) -> None:
        """Two tables of the source never go into one."""
        self._target.insert_own("purgatory_tables", [(name, source)])
        owner = self._target.select_own("purgatory_tables", name=name)[0][1]
        if owner != source:
            raise BadChangeError(
                UNKNOWN_TABLE,
                f"the target's table {name} is {owner}'s: give {source} another name (--tables)",
            )

    def _widened(self, change: Change, table: Table) -> Table:
        lacking = {
            name: kind
            for name, kind in self._columns_of(change).items()
            if name not in table.columns and change.data.get(name) is not None
        }
        if not lacking:
            return table
        if not self._options.create:
            raise BadChangeError(
                UNKNOWN_COLUMN, f"the target's table {table.name} has no column {min(lacking)}"
            )
        return self._add(change.source, table, lacking)

    def _add(self, source: str, table: Table, columns: Mapping[str, ColumnType]) -> Table:
        if all(name in table.columns for name in columns):
            return table
        self._check_names(columns)
        with self._target.transaction():
            self._target.schema_lock()
            now = self._target.table(table.name) or table
            for name, kind in columns.items():
                if name not in now.columns:
                    self._target.add_column(table.name, name, kind)
            found = self._target.table(table.name) or table
        self._tables[source] = found
        self._plans = {shape: plan for shape, plan in self._plans.items() if shape[0] != source}
        return found

    def _new_plan(self, table: Table, data: Mapping[str, Any]) -> Plan:
        converter = {name: self._target.converter(kind) for name, kind in table.columns.items()}
        columns = tuple(name for name in data if name in table.columns)
        return Plan(
            table,
            columns,
            tuple(converter[name] for name in columns),
            tuple(name for name in data if name not in table.columns),
            tuple((name, converter[name]) for name in table.primary_key),
        )


def _defined(definition: Mapping[str, Any]) -> dict[str, ColumnType]:
    """The columns of Maxwell's `def` and their types; one that is not known is a text."""
    columns = definition.get("columns")
    if not isinstance(columns, list):
        raise BadChangeError(MALFORMED, "def has no list of columns")
    found = {}
    for column in columns:
        name = column.get("name") if isinstance(column, dict) else None
        kind = column.get("type") if isinstance(column, dict) else None
        if not isinstance(name, str) or not isinstance(kind, str):
            raise BadChangeError(MALFORMED, f"def has the column {str(column)[:60]!r}")
        signed = column.get("signed") is not False
        found[name] = type_in_mysql_words(kind, signed) or ColumnType.TEXT
    return found


_NUMBERS = {ColumnType.BIGINT, ColumnType.NUMERIC, ColumnType.DOUBLE, ColumnType.BOOLEAN}


def _alike(there: ColumnType, wanted: ColumnType) -> bool:
    """Whether a column takes the values of another type, if perhaps in another form."""
    return (
        there is wanted
        or there in (ColumnType.TEXT, ColumnType.OTHER)
        or (there is ColumnType.NUMERIC and wanted in _NUMBERS)
        or (there in _NUMBERS and wanted in _NUMBERS and wanted is not ColumnType.NUMERIC)
    )
