"""The target's tables: which one belongs to each table of the source, created or widened if needed.

The target's own table `purgatory_tables` has the mapping. Tables and columns are created in
transactions of their own, before the one that applies a batch: creating them twice does no harm,
while two tasks that widened a table and wrote to it in one transaction would deadlock. One thread
at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from purgatory.cdc.apply.options import ApplyOptions, TableSpec
from purgatory.cdc.apply.shapes import RowShowsChangeError, Shape, Shapes
from purgatory.cdc.change import Change, Origin, parse_key_columns, source_table
from purgatory.cdc.column_types import ColumnType, Value, infer_column_type
from purgatory.cdc.quarantine import MISSING_KEY, UNKNOWN_COLUMN, UNKNOWN_TABLE, InvalidChangeError
from purgatory.cdc.targets.target import Table, Target

_NO_SPEC = TableSpec()


class SchemaChangedError(Exception):
    """Another task changed a schema since the batch was planned: plan again."""


@dataclass(frozen=True)
class TableMapping:
    """Maps the source's tables, by their names with the database, to those of one target."""

    target: Target
    options: ApplyOptions

    def spec(self, source: str) -> TableSpec:
        """The specification of a table in `--tables`."""
        return self.options.tables.get(source, _NO_SPEC)

    def target_name(self, source: str) -> str:
        """The name of the target's table, whether or not it exists."""
        return self.spec(source).name or source_table(source)

    def owned(self, source: str) -> Table | None:
        """The target's table, if it was made or written to for this source, or is in `--tables`.

        Changes of schemas concern no other table, even of the same name.
        """
        name = self.target_name(source)
        is_given = source in self.options.tables and self.owner(name) is None
        return self.target.table(name) if is_given or self.owner(name) == source else None

    def sources(self) -> list[str]:
        """All tables of the source that the target has."""
        return [row[1] for row in self.target.select_own("purgatory_tables")]

    def owner(self, name: str) -> str | None:
        """The source's table that a table of the target belongs to."""
        folded_names = self.target.fold_name(name)
        rows = self.target.select_own("purgatory_tables")
        return next((row[1] for row in rows if self.target.fold_name(row[0]) == folded_names), None)

    def claim(self, name: str, source: str) -> None:
        """Assign a table of the target to one of the source: two never share one.

        Raises:
            InvalidChangeError: it belongs to another.
        """
        owner = self.owner(name)
        if owner is None:
            self.target.insert_own("purgatory_tables", [(name, source)])
        elif owner != source:
            raise InvalidChangeError(
                UNKNOWN_TABLE,
                f"the target's table {name} is {owner}'s: give {source} another name (--tables)",
            )

    def release(self, source: str) -> None:
        """Delete a table of the source from the mapping."""
        self.target.delete_own("purgatory_tables", source=source)

    def check_table_name(self, name: str) -> None:
        """Raise InvalidChangeError if the target can't have a table of this name."""
        if name.lower().startswith(self.target.reserved) or not self.target.name_fits(name):
            raise InvalidChangeError(UNKNOWN_TABLE, f"no table of the target can be named {name!r}")


@dataclass(frozen=True, slots=True)
class Plan:
    """The way in which rows of a source's table with certain columns are written into the target.

    Args:
        columns: of the row, that the table has.
        converters: of these columns' values, in the same order.
        missing: columns that the table lacks; the plan only holds while their values are null.
        key: name and converter of each column of the key.
    """

    table: Table
    columns: tuple[str, ...]
    converters: tuple[Callable[[Any], Value], ...]
    missing: tuple[str, ...]
    key: tuple[tuple[str, Callable[[Any], Value]], ...]


class TargetTables:
    """A cache of the target's tables, and of the plans to write to them."""

    def __init__(self, target: Target, options: ApplyOptions) -> None:
        self._target = target
        self._options = options
        self._mapping = TableMapping(target, options)
        self.shapes = Shapes(target)
        self._tables: dict[str, Table] = {}
        self._plans: dict[tuple[str, tuple[str, ...], tuple[str, ...] | None], Plan] = {}
        self._errors: dict[str, InvalidChangeError] = {}
        self._version = -1

    def begin(self) -> int:
        """Look again for missing tables, and for changes by other tasks.

        Returns:
            The version of the target's schemas that is known now.
        """
        self._errors.clear()
        version = self._target.schema_version()
        if version != self._version:
            self.forget()
            self._version = version
        return version

    def forget(self) -> None:
        """Clear the cache."""
        self.shapes.forget()
        self._tables.clear()
        self._plans.clear()
        self._errors.clear()

    def raise_version(self) -> None:
        """Within a transaction: begin a schema change; no other task changes one until its end."""
        self._target.schema_lock()
        self._target.raise_schema_version()
        self._version = self._target.schema_version()
        self.forget()

    def plan(self, change: Change, record_key: bytes | None) -> Plan:
        """Plan a change of a row; may create or widen its table. O(1) once known.

        Args:
            record_key: may name the columns of the primary key.

        Raises:
            InvalidChangeError: there is no such table or column, or no key.
            RowShowsChangeError: the row shows a change of its table.
            SchemaChangedError: another task changed a schema since `begin`.
        """
        data = change.data
        is_older = change.origin is not None and self._check_shape(change, change.origin)
        key = None if change.primary_key is None else tuple(change.primary_key)
        row_shape = (change.source, tuple(data), key)
        plan = self._plans.get(row_shape)
        if plan is None or (plan.missing and any(data[name] is not None for name in plan.missing)):
            table = self._table(change, record_key)
            if not self._mapping.spec(change.source).primary_key:
                _check_key(table, key)
            table = table if is_older else self._widen(change, table)
            converter = {name: self._target.converter(kind) for name, kind in table.columns.items()}
            columns = tuple(name for name in data if name in table.columns)
            plan = self._plans[row_shape] = Plan(
                table,
                columns,
                tuple(converter[name] for name in columns),
                tuple(name for name in data if name not in table.columns),
                tuple((name, converter[name]) for name in table.primary_key),
            )
        return plan

    def _check_shape(self, change: Change, origin: Origin) -> bool:
        """Whether a row is older, in another partition, than its table's present columns.

        Raises:
            RowShowsChangeError: it shows newer ones.
        """
        source = change.source
        shape = self.shapes.find(source)
        if origin.columns is None or (shape is not None and not shape.shows(origin)):
            return False
        if shape is None:
            table = self._mapping.owned(source)
            if origin.snapshot and table is not None and self._target.has_rows(table.name):
                raise RowShowsChangeError
            self.shapes.add(source, Shape(frozenset()).after(origin))
            return False
        if shape.has_new_snapshot(origin) or not shape.is_older(origin):
            raise RowShowsChangeError
        return True

    def _table(self, change: Change, record_key: bytes | None) -> Table:
        source = change.source
        table = self._tables.get(source)
        if table is not None:
            return table
        if source in self._errors:
            raise self._errors[source]
        try:
            key = (
                self._mapping.spec(source).primary_key
                or change.primary_key
                or parse_key_columns(record_key)
            )
            return self.find_or_create(
                source, list(key) if key else None, self._known_columns(change)
            )
        except InvalidChangeError as error:
            if error.reason == UNKNOWN_TABLE:
                self._errors[source] = error
            raise

    def _known_columns(self, change: Change) -> dict[str, ColumnType]:
        """The columns whose types are known."""
        specified = self._mapping.spec(change.source).columns
        known = change.origin.columns if change.origin is not None else None
        types = {
            **(known or {}),
            **{
                name: (known and known.get(name)) or infer_column_type(value)
                for name, value in change.data.items()
            },
        }
        return {**{name: kind for name, kind in types.items() if kind is not None}, **specified}

    def find_or_create(
        self, source: str, key: list[str] | None, columns: Mapping[str, ColumnType]
    ) -> Table:
        """Return the target's table for a source's; create it if there is none.

        Raises:
            InvalidChangeError: it can't be created, has another key, or belongs to another table.
        """
        name = self._mapping.target_name(source)
        self._mapping.check_table_name(name)
        with self._target.transaction():
            self._lock()
            table = self._target.table(name)
            if table is None:
                table = self._create(name, key, columns)
            # Another source's table may have another key: then its name is the error to report.
            self._mapping.claim(name, source)
            _check_key(table, key)
        self._tables[source] = table
        return table

    def _lock(self) -> None:
        """Don't create a table that was dropped or renamed since the batch was planned."""
        self._target.schema_lock()
        if self._target.schema_version() != self._version:
            raise SchemaChangedError

    def _create(self, name: str, key: list[str] | None, columns: Mapping[str, ColumnType]) -> Table:
        if not self._options.create:
            raise InvalidChangeError(UNKNOWN_TABLE, f"the target has no table {name}")
        if not key:
            raise InvalidChangeError(MISSING_KEY, f"the primary key of {name} is not known")
        missing_columns = [column for column in key if column not in columns]
        if missing_columns:
            raise InvalidChangeError(
                MISSING_KEY, f"the row lacks {missing_columns[0]} of the primary key"
            )
        self.check_names(columns)
        self._target.create_table(Table(name, columns, tuple(key)))
        table = self._target.table(name)
        assert table is not None, "it was just created"
        return table

    def check_names(self, columns: Iterable[str], existing: Iterable[str] = ()) -> None:
        """Raise InvalidChangeError if new columns can't have these names."""
        for column in columns:
            if not self._target.column_fits(column):
                raise InvalidChangeError(
                    UNKNOWN_COLUMN,
                    f"no column can be named {column[:80]!r}: rename it in the source",
                )
        folded_names: dict[str, str] = {}
        for column in (*existing, *columns):
            other = folded_names.setdefault(self._target.fold_name(column), column)
            if other != column:
                raise InvalidChangeError(
                    UNKNOWN_COLUMN, f"{column} is the same name as {other} to the target"
                )

    def _widen(self, change: Change, table: Table) -> Table:
        missing = {
            name: kind
            for name, kind in self._known_columns(change).items()
            if name not in table.columns and change.data.get(name) is not None
        }
        if not missing:
            return table
        if not self._options.create:
            raise InvalidChangeError(
                UNKNOWN_COLUMN, f"the target's table {table.name} has no column {min(missing)}"
            )
        return self.add_columns(change.source, table, missing)

    def add_columns(self, source: str, table: Table, columns: Mapping[str, ColumnType]) -> Table:
        """Add those of the columns that a table lacks; return the table."""
        if all(name in table.columns for name in columns):
            return table
        self.check_names(columns, table.columns)
        with self._target.transaction():
            self._lock()
            now = self._target.table(table.name) or table
            for name, kind in columns.items():
                if name not in now.columns:
                    self._target.add_column(table.name, name, kind)
            types = self._target.table(table.name) or table
        self._tables[source] = types
        self._plans = {
            row_shape: plan for row_shape, plan in self._plans.items() if row_shape[0] != source
        }
        return types


def _check_key(table: Table, key: Sequence[str] | None) -> None:
    if not table.primary_key:
        raise InvalidChangeError(
            UNKNOWN_TABLE, f"the target's table {table.name} has no primary key"
        )
    if key is not None and not key:
        raise InvalidChangeError(MISSING_KEY, f"the source's table {table.name} has no primary key")
    if key is not None and set(key) != set(table.primary_key):
        raise InvalidChangeError(
            UNKNOWN_TABLE,
            f"the primary key of the target's table {table.name} is "
            f"({', '.join(table.primary_key)}), and that of the source ({', '.join(key)})",
        )
