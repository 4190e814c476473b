"""The target's tables: which one belongs to each table of the source, created or widened if needed.

The target's own tables `purgatory_tables` and `purgatory_columns` have the mapping and the source's
column types. Tables and columns are created in transactions of their own, before the one that
applies a batch: creating them twice does no harm, while two tasks that widened a table and wrote to
it in one transaction would deadlock. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from purgatory.cdc.apply.options import ApplyOptions, TableSpec
from purgatory.cdc.change import Change, key_columns_of
from purgatory.cdc.column_types import ColumnType, Value, type_of_value
from purgatory.cdc.errors import MISSING_KEY, UNKNOWN_COLUMN, UNKNOWN_TABLE, BadChangeError
from purgatory.cdc.targets.target import PREFIX, Table, Target

_NOTHING_SAID = TableSpec()


class SourceTables:
    """The source's tables, by their names with the database, in one target."""

    def __init__(self, target: Target, options: ApplyOptions) -> None:
        self._target = target
        self._options = options

    def said(self, source: str) -> TableSpec:
        """What `--tables` says of a table."""
        return self._options.tables.get(source, _NOTHING_SAID)

    def target_name(self, source: str) -> str:
        """What the target's table is called, or would be."""
        return self.said(source).name or source.partition(".")[2]

    def there(self, source: str) -> Table | None:
        """The table of the target that stands for a source's; None if there is none yet."""
        name = self.target_name(source)
        if self.owner(name) not in (None, source):
            return None
        return self._target.table(name)

    def sources(self) -> list[str]:
        """All for which the target has a table."""
        return [row[1] for row in self._target.select_own("purgatory_tables")]

    def owner(self, name: str) -> str | None:
        """The source's table that a table of the target stands for."""
        folded = self._target.folded(name)
        rows = self._target.select_own("purgatory_tables")
        return next((row[1] for row in rows if self._target.folded(row[0]) == folded), None)

    def claim(self, name: str, source: str) -> None:
        """Note that a table of the target stands for a source's: two never go into one.

        Raises:
            BadChangeError: it stands for another.
        """
        owner = self.owner(name)
        if owner is None:
            self._target.insert_own("purgatory_tables", [(name, source)])
        elif owner != source:
            raise BadChangeError(
                UNKNOWN_TABLE,
                f"the target's table {name} is {owner}'s: give {source} another name (--tables)",
            )

    def disown(self, source: str) -> None:
        """Forget the table that stands for a source's."""
        self._target.delete_own("purgatory_tables", source=source)
        self._target.delete_own("purgatory_columns", source=source)

    def words(self, source: str) -> dict[str, str]:
        """What the source calls the types of a table's columns, as far as it is known."""
        rows = self._target.select_own("purgatory_columns", source=source)
        return {row[1]: row[2] for row in rows}

    def note_words(self, source: str, words: Mapping[str, str]) -> None:
        """Note what the source calls the types of all columns of a table."""
        self._target.delete_own("purgatory_columns", source=source)
        self._target.insert_own(
            "purgatory_columns", [(source, name, kind) for name, kind in words.items()]
        )

    def check_table_name(self, name: str) -> None:
        """Raise BadChangeError if no table of the target can be called so."""
        if name.lower().startswith(PREFIX) or not self._target.name_fits(name):
            raise BadChangeError(UNKNOWN_TABLE, f"no table of the target can be named {name!r}")


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
        self._sources = SourceTables(target, options)
        self._tables: dict[str, Table] = {}
        self._plans: dict[tuple[str, tuple[str, ...], tuple[str, ...] | None], Plan] = {}
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

    def raise_version(self) -> None:
        """Within a transaction: begin to change a schema; nobody else changes one until its end."""
        self._target.schema_lock()
        self._target.raise_schema_version()
        self._version = self._target.schema_version()
        self.forget()

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
        key = None if change.primary_key is None else tuple(change.primary_key)
        shape = (change.source, tuple(data), key)
        plan = self._plans.get(shape)
        if plan is None or (plan.missing and any(data[name] is not None for name in plan.missing)):
            table = self._table(change, record_key)
            if not self._sources.said(change.source).primary_key:
                self._check_key(table, key)
            table = self._widened(change, table)
            plan = self._plans[shape] = self._new_plan(table, data)
        return plan

    def _table(self, change: Change, record_key: bytes | None) -> Table:
        source = change.source
        known = self._tables.get(source)
        if known is not None:
            return known
        if source in self._refused:
            raise self._refused[source]
        try:
            key = (
                self._sources.said(source).primary_key
                or change.primary_key
                or key_columns_of(record_key)
            )
            columns = self._columns_of(change)
            return self.known_or_new(source, list(key) if key else None, columns)
        except BadChangeError as error:
            if error.reason == UNKNOWN_TABLE:
                self._refused[source] = error
            raise

    def _columns_of(self, change: Change) -> dict[str, ColumnType]:
        """The types of the columns of which something is known."""
        said = self._sources.said(change.source).columns
        found = {
            name: said.get(name) or type_of_value(value) for name, value in change.data.items()
        }
        return {**{name: kind for name, kind in found.items() if kind is not None}, **said}

    def known_or_new(
        self, source: str, key: list[str] | None, columns: Mapping[str, ColumnType]
    ) -> Table:
        """Return the target's table for a source's; made if there is none.

        Raises:
            BadChangeError: it can't be made, or has another key, or stands for another table.
        """
        name = self._sources.target_name(source)
        self._sources.check_table_name(name)
        with self._target.transaction():
            self._lock()
            table = self._target.table(name)
            if table is None:
                table = self._created(name, key, columns)
            # Another table of its name may have another key: the name is what is told then.
            self._sources.claim(name, source)
            self._check_key(table, key)
        self._tables[source] = table
        return table

    def _lock(self) -> None:
        """Make no table that was dropped or renamed since the batch was planned."""
        self._target.schema_lock()
        if self._target.schema_version() != self._version:
            raise SchemaMovedError

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
        self.check_names(columns)
        self._target.create_table(Table(name, columns, tuple(key)))
        table = self._target.table(name)
        assert table is not None, "it was made just now"
        return table

    def check_names(self, columns: Iterable[str], beside: Iterable[str] = ()) -> None:
        """Raise BadChangeError where new columns can't have these names beside those there."""
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

    def _check_key(self, table: Table, key: Sequence[str] | None) -> None:
        if not table.primary_key:
            raise BadChangeError(
                UNKNOWN_TABLE, f"the target's table {table.name} has no primary key"
            )
        if key is not None and not key:
            raise BadChangeError(MISSING_KEY, f"the source's table {table.name} has no primary key")
        if key is not None and set(key) != set(table.primary_key):
            raise BadChangeError(
                UNKNOWN_TABLE,
                f"the primary key of the target's table {table.name} is "
                f"({', '.join(table.primary_key)}), and that of the source ({', '.join(key)})",
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
        return self.add(change.source, table, lacking)

    def add(self, source: str, table: Table, columns: Mapping[str, ColumnType]) -> Table:
        """Return the table with those of the columns that it lacked."""
        if all(name in table.columns for name in columns):
            return table
        self.check_names(columns, table.columns)
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
