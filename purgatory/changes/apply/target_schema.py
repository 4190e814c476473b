"""Which table of the target a change belongs to, made or widened where it is missing.

Tables and columns are made in transactions of their own, before the one that applies a batch: made
twice does no harm, and two tasks that widen a table while both write to it would wait for each
other for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from purgatory.changes.alteration import Alteration, NewColumn, keeps_values
from purgatory.changes.apply.apply_options import ApplyOptions, TableSpec
from purgatory.changes.apply.set_aside import (
    MALFORMED,
    MISSING_KEY,
    NOT_APPLIED,
    UNKNOWN_COLUMN,
    UNKNOWN_TABLE,
)
from purgatory.changes.change import Change, key_columns_of
from purgatory.changes.column_types import (
    ColumnType,
    Value,
    type_in_mysql_words,
    type_of_value,
)
from purgatory.changes.errors import BadChangeError
from purgatory.changes.targets.target import PREFIX, Table, Target

_NOTHING_SAID = TableSpec()


class SchemaMovedError(Exception):
    """Somebody changed a schema since what is to be applied was planned: plan again."""


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
        self._version = -1

    def begin(self) -> int:
        """Look again for tables that were not there, and for what somebody else changed.

        Returns:
            The version of the target's schemas that is known now.
        """
        self._refused.clear()
        version = self._target.schema_version()
        if version != self._version:
            self.forget()
            self._version = version
        return version

    def forget(self) -> None:
        """Ask the target again for all tables."""
        self._tables.clear()
        self._plans.clear()
        self._refused.clear()

    def plan(self, change: Change, record_key: bytes | None) -> Plan:
        """Return how a change of a row is applied; may make or widen its table. O(1) once known.

        Args:
            change: of a row.
            record_key: the key of its record, which may name the columns of the primary key.

        Raises:
            BadChangeError: there is no such table or column, or no key.
            SchemaMovedError: `begin` was called before somebody else changed a schema.
        """
        data = change.data
        shape = (change.source, tuple(data))
        plan = self._plans.get(shape)
        if plan is None or (plan.missing and any(data[name] is not None for name in plan.missing)):
            table = self._widened(change, self._table(change, record_key))
            plan = self._plans[shape] = self._new_plan(table, data)
        return plan

    def apply(self, change: Change) -> None:
        """Within a transaction: apply a change of a schema.

        Raises:
            BadChangeError: a person has to do it (`NOT_APPLIED`), or there is no key.
        """
        self._target.schema_lock()
        self._target.raise_schema_version()
        self._version = self._target.schema_version()
        self.forget()
        match change.kind:
            case "table-truncate":
                self._truncate(change)
            case "table-drop":
                self._drop(change.source)
            case "database-drop":
                for source in self._sources():
                    if source.startswith(f"{change.database}."):
                        self._drop(source)
            case "table-create" | "table-alter" if change.steps is None:
                self._define(change)
            case _:
                self._take_steps(change)
        self.forget()

    def _define(self, change: Change) -> None:
        """Make a table that is not there, or the columns that it lacks."""
        definition = change.definition or {}
        renamed = definition.get("table", change.table)
        if renamed != change.table:
            raise BadChangeError(
                NOT_APPLIED, f"{change.source} was renamed to {renamed}: rename it by hand"
            )
        self._check_may_create(change)
        words = _words_of(definition)
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
        self._note_words(change.source, words)

    def _take_steps(self, change: Change) -> None:
        alteration = Alteration(change.steps or ())
        if alteration.refusal is not None:
            raise BadChangeError(NOT_APPLIED, f"{change.source}: {alteration.refusal}")
        if alteration.like is not None:
            self._create_like(change, alteration.like)
            return
        table = self._there(change.source)
        if table is not None:
            if alteration.changes_columns and not self._options.create:
                raise BadChangeError(NOT_APPLIED, f"{change.kind}: to alter tables is off")
            self._alter(change.source, table, alteration)
        if alteration.renamed is not None:
            self._rename(change.source, alteration.renamed, table)

    def _alter(self, source: str, table: Table, alteration: Alteration) -> None:
        """All names of a statement are those from before it: what goes away goes first."""
        target, name = self._target, table.name
        gone = set(alteration.dropped) & set(table.columns)
        if gone & set(table.primary_key):
            raise BadChangeError(NOT_APPLIED, f"{name} would lose {min(gone)} of its primary key")
        for column in sorted(gone):
            target.drop_column(name, column)
        left = [column for column in table.columns if column not in gone]
        self._rename_columns(name, left, alteration.renames)
        words = {
            alteration.renames.get(column, column): kind
            for column, kind in self._words(source).items()
            if column not in alteration.dropped
        }
        for new in alteration.retyped:
            self._check_retyped(source, new, words)
        table = target.table(name) or table
        for new in alteration.added:
            if new.name not in table.columns:
                self._add_filled(source, table, new)
                table = target.table(name) or table
        self._note_words(source, {**words, **{new.name: new.words for new in alteration.described}})

    def _rename_columns(self, table: str, left: list[str], renames: Mapping[str, str]) -> None:
        todo = {old: new for old, new in renames.items() if old in left and old != new}
        staying = {column for column in left if column not in todo}
        for new in todo.values():
            if new in staying:
                raise BadChangeError(NOT_APPLIED, f"{table} has a column {new} already")
        # Two that change places are both renamed to something else first.
        passing = [old for old, new in todo.items() if new in todo]
        for old in passing:
            self._target.rename_column(table, old, PREFIX + old)
        for old, new in todo.items():
            self._check_names([new])
            self._target.rename_column(table, PREFIX + old if old in passing else old, new)

    def _check_retyped(self, source: str, new: NewColumn, words: Mapping[str, str]) -> None:
        """Nothing in the log says what became of the values: they must not have changed."""
        table = self._there(source)
        if table is None or new.name not in table.columns:
            return
        name = f"{table.name}.{new.name}"
        was = words.get(new.name)
        if not self._target.has_rows(table.name) and new.name not in table.primary_key:
            kind = type_in_mysql_words(new.words) or ColumnType.TEXT
            if table.columns[new.name] is not kind:
                self._target.drop_column(table.name, new.name)
                self._target.add_column(table.name, new.name, kind)
            return
        if was is None or not keeps_values(was, new.words):
            raise BadChangeError(
                NOT_APPLIED,
                f"{name} was {was or 'of a type that is not known'}, and is {new.words}: the "
                "source may have changed its values",
            )
        if not new.nullable and self._target.has_rows(table.name, null_in=new.name):
            raise BadChangeError(NOT_APPLIED, f"{name} has nulls, which the source replaced")

    def _add_filled(self, source: str, table: Table, new: NewColumn) -> None:
        has_rows = self._target.has_rows(table.name)
        if has_rows and new.unknown is not None:
            raise BadChangeError(NOT_APPLIED, f"{table.name}.{new.name} is new, and {new.unknown}")
        said = self._said(source).columns.get(new.name)
        kind = said or type_in_mysql_words(new.words) or ColumnType.TEXT
        self._add(source, table, {new.name: kind})
        if has_rows and new.fill is not None:
            value = self._target.converter(kind)(new.fill)
            self._target.fill_column(table.name, new.name, value)

    def _create_like(self, change: Change, like: str) -> None:
        model = self._there(like)
        if model is None:
            raise BadChangeError(
                NOT_APPLIED, f"{change.source} is like {like}, which the target does not have"
            )
        self._check_may_create(change)
        self._known_or_new(change.source, list(model.primary_key), model.columns)
        self._note_words(change.source, self._words(like))

    def _rename(self, source: str, new: str, table: Table | None) -> None:
        name = self._target_name(new)
        if table is not None and table.name != name:
            self._check_table_name(name)
            if self._target.table(name) is not None:
                raise BadChangeError(
                    NOT_APPLIED, f"{source} was renamed to {new}: the target has a table {name}"
                )
            self._target.rename_table(table.name, name)
        words = self._words(source)
        self._disown(source)
        if table is not None:
            self._claim(name, new)
            self._note_words(new, words)

    def _truncate(self, change: Change) -> None:
        table = self._there(change.source)
        if table is not None:
            self._target.clear_table(table.name)

    def _drop(self, source: str) -> None:
        table = self._there(source)
        if table is not None:
            if not self._options.create:
                raise BadChangeError(NOT_APPLIED, f"{source} was dropped: to drop tables is off")
            self._target.drop_table(table.name)
        self._disown(source)

    def _there(self, source: str) -> Table | None:
        """The table of the target that stands for a source's; None if there is none yet."""
        name = self._target_name(source)
        if self._owner(name) not in (None, source):
            return None
        return self._target.table(name)

    def _check_may_create(self, change: Change) -> None:
        if not self._options.create:
            raise BadChangeError(NOT_APPLIED, f"{change.kind}: to make tables is off")

    def _target_name(self, source: str) -> str:
        return self._said(source).name or source.partition(".")[2]

    def _sources(self) -> list[str]:
        return [row[1] for row in self._target.select_own("purgatory_tables")]

    def _disown(self, source: str) -> None:
        self._target.delete_own("purgatory_tables", source=source)
        self._target.delete_own("purgatory_columns", source=source)

    def _words(self, source: str) -> dict[str, str]:
        """What the source calls the types of a table's columns, as far as it is known."""
        rows = self._target.select_own("purgatory_columns", source=source)
        return {row[1]: row[2] for row in rows}

    def _note_words(self, source: str, words: Mapping[str, str]) -> None:
        self._target.delete_own("purgatory_columns", source=source)
        self._target.insert_own(
            "purgatory_columns", [(source, name, kind) for name, kind in words.items()]
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
        name = self._target_name(source)
        self._check_table_name(name)
        with self._target.transaction():
            self._lock()
            table = self._target.table(name)
            if table is None:
                table = self._created(name, key, columns)
            self._check_key(table, key)
            self._claim(name, source)
        self._tables[source] = table
        return table

    def _lock(self) -> None:
        """Make no table that was dropped or renamed since the batch was planned."""
        self._target.schema_lock()
        if self._target.schema_version() != self._version:
            raise SchemaMovedError

    def _check_table_name(self, name: str) -> None:
        if name.lower().startswith(PREFIX) or not self._target.name_fits(name):
            raise BadChangeError(UNKNOWN_TABLE, f"no table of the target can be named {name!r}")

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

    def _check_names(self, columns: Iterable[str], beside: Iterable[str] = ()) -> None:
        for column in columns:
            if not self._target.name_fits(column):
                raise BadChangeError(UNKNOWN_COLUMN, f"no column can be named {column[:80]!r}")
        there: dict[str, str] = {}
        for column in (*beside, *columns):
            other = there.setdefault(self._target.folded(column), column)
            if other != column:
                raise BadChangeError(
                    UNKNOWN_COLUMN, f"{column} is the same name as {other} to the target"
                )

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
        owner = self._owner(name)
        if owner is None:
            self._target.insert_own("purgatory_tables", [(name, source)])
        elif owner != source:
            raise BadChangeError(
                UNKNOWN_TABLE,
                f"the target's table {name} is {owner}'s: give {source} another name (--tables)",
            )

    def _owner(self, name: str) -> str | None:
        """The source's table that a table of the target stands for."""
        folded = self._target.folded(name)
        rows = self._target.select_own("purgatory_tables")
        return next((row[1] for row in rows if self._target.folded(row[0]) == folded), None)

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
        self._check_names(columns, table.columns)
        with self._target.transaction():
            self._lock()
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


def _words_of(definition: Mapping[str, Any]) -> dict[str, str]:
    """What the source itself calls the types of its columns, where `def` says it."""
    columns = definition.get("columns")
    found = columns if isinstance(columns, list) else []
    return {
        column["name"]: column["column-type"]
        for column in found
        if isinstance(column, dict)
        and isinstance(column.get("name"), str)
        and isinstance(column.get("column-type"), str)
    }


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
