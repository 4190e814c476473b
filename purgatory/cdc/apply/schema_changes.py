"""Schema changes in the target, step by step, within a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from purgatory.cdc.apply.options import ApplyOptions
from purgatory.cdc.apply.shapes import Shape
from purgatory.cdc.apply.tables import TableMapping, TargetTables
from purgatory.cdc.change import Change, Origin, source_name
from purgatory.cdc.column_types import ColumnType, column_type_by_name
from purgatory.cdc.ddl.steps import Alteration, NewColumn, find_column
from purgatory.cdc.quarantine import MALFORMED, MISSING_KEY, NOT_APPLIED, InvalidChangeError
from purgatory.cdc.targets.target import PREFIX, Table, Target


class SchemaChanges:
    """Applies schema changes to one target.

    Args:
        tables: of the same target; its cache is cleared by each change.
    """

    def __init__(self, target: Target, options: ApplyOptions, tables: TargetTables) -> None:
        self._target = target
        self._options = options
        self._tables = tables
        self._mapping = TableMapping(target, options)

    def apply(self, change: Change) -> None:
        """Within a transaction: apply a schema change.

        Raises:
            InvalidChangeError: a person has to apply it (`NOT_APPLIED`), or there is no key.
        """
        self._tables.raise_version()
        match change.kind:
            case "table-create" if change.if_absent and change.source in self._mapping.sources():
                # MySQL's binlog has the statement though the table existed.
                pass
            case "table-truncate":
                table = self._mapping.owned(change.source)
                if table is not None:
                    self._target.clear_table(table.name)
            case "table-drop":
                self._drop(change.source)
            case "database-drop":
                for source in self._mapping.sources():
                    if source.startswith(source_name(change.database, "")):
                        self._drop(source)
            case "table-create" | "table-alter" if change.steps is None:
                self._define(change)
                self._announce(change)
            case _:
                self._apply_steps(change)
        self._tables.forget()

    def follow_row(self, change: Change, *, is_alone: bool, is_done: bool) -> None:
        """Within a transaction: apply the change of its table that a row shows.

        Args:
            is_alone: whether the topic has one partition.
            is_done: whether a person has applied it.

        Raises:
            InvalidChangeError: a person has to apply it.
        """
        self._tables.raise_version()
        origin, source = change.origin, change.source
        assert origin is not None and origin.columns is not None, "rows show their columns"
        shapes = self._tables.shapes
        shape = shapes.find(source) or Shape(frozenset(origin.columns))
        table = self._mapping.owned(source)
        if shape.has_new_snapshot(origin) and not is_done:
            others = [other for other, _ in shapes.announced(origin.snapshot) if other != source]
            for one in (source, *others):
                self._clear_for_snapshot(one, is_alone)
            for other, old in shapes.announced(origin.snapshot):
                shapes.store(other, old._replace(snapshot=origin.snapshot))
        if table is not None and not is_done:
            self._follow_columns(table, shape, origin)
        shapes.store(source, (shapes.find(source) or shape).after(origin))
        self._tables.forget()

    def _announce(self, change: Change) -> None:
        """Remember the snapshot that a created table is of: its first row empties all of them."""
        if change.origin is not None and change.origin.snapshot:
            names = frozenset(_column_types(change.definition or {}))
            shapes = self._tables.shapes
            shape = shapes.find(change.source) or Shape(names)
            shapes.store(change.source, shape._replace(announced=change.origin.snapshot))

    def _clear_for_snapshot(self, source: str, is_alone: bool) -> None:
        table = self._mapping.owned(source)
        if table is None or not self._target.has_rows(table.name):
            return
        shape = self._tables.shapes.find(source)
        if not is_alone and (shape is None or not shape.snapshot):
            # Its rows are behind the snapshot, in other partitions.
            return
        if not is_alone:
            raise InvalidChangeError(
                NOT_APPLIED,
                f"{source} comes anew, with a snapshot in several partitions: delete the rows of "
                f"{table.name}",
            )
        self._target.clear_table(table.name)

    def _follow_columns(self, table: Table, shape: Shape, origin: Origin) -> None:
        columns = origin.columns or {}
        dropped = [name for name in table.columns if name in shape.columns - columns.keys()]
        added = [name for name in columns if name not in shape.columns | table.columns.keys()]
        if not dropped and not added:
            return
        has_rows = self._target.has_rows(table.name)
        problem = ""
        if has_rows and dropped and added:
            problem = f"lost {dropped[0]} and got {added[0]}, which may be its new name"
        elif has_rows and any(name in origin.unknown for name in added):
            name = next(name for name in added if name in origin.unknown)
            problem = f"got {name}, whose values in older rows are not in the log"
        elif any(name in table.primary_key for name in dropped):
            problem = "lost a column of its primary key"
        elif dropped and not self._options.create:
            problem = f"lost {dropped[0]}, and --no-create is set"
        if problem:
            raise InvalidChangeError(NOT_APPLIED, f"the table of {table.name} {problem}")
        for name in dropped:
            self._target.drop_column(table.name, name)

    def _define(self, change: Change) -> None:
        """Create a table from its definition, or the columns that it lacks."""
        definition = change.definition or {}
        new_name = definition.get("table", change.table)
        if new_name != change.table:
            raise InvalidChangeError(
                NOT_APPLIED, f"{change.source} was renamed to {new_name}: rename it by hand"
            )
        self._check_may_create(change)
        columns = {**_column_types(definition), **self._mapping.spec(change.source).columns}
        key = definition.get("primary-key") or change.primary_key
        if not isinstance(key, list) or not all(isinstance(name, str) for name in key):
            raise InvalidChangeError(MISSING_KEY, f"{change.source} has no primary key")
        table = self._tables.find_or_create(change.source, key, columns)
        differing = [
            name
            for name, kind in columns.items()
            if name in table.columns and not _is_compatible(table.columns[name], kind)
        ]
        self._tables.add_columns(change.source, table, columns)
        if differing:
            name = differing[0]
            raise InvalidChangeError(
                NOT_APPLIED,
                f"{table.name}.{name} is {table.columns[name].value}, and would be "
                f"{columns[name].value}: change it by hand",
            )

    def _apply_steps(self, change: Change) -> None:
        table = self._mapping.owned(change.source)
        alteration = Alteration(change.steps or (), list(table.columns) if table else ())
        if alteration.error is not None:
            location = f"{change.source}: " if change.table else ""
            raise InvalidChangeError(NOT_APPLIED, f"{location}{alteration.error}")
        if alteration.template is not None:
            self._create_like(change, alteration.template)
            return
        if alteration.is_resent:
            # The log has all rows of the new table behind this change.
            self._drop(change.source)
            if change.definition is not None:
                self._define(change)
            return
        if table is not None:
            if alteration.changes_columns and not self._options.create:
                raise InvalidChangeError(NOT_APPLIED, f"{change.kind}: --no-create is set")
            if alteration.is_converted:
                self._clear_converted(table, alteration.unknown)
            self._alter(change.source, table, alteration)
        if alteration.renamed is not None:
            if table is None and change.origin is not None:
                raise InvalidChangeError(
                    NOT_APPLIED, f"{change.source} was renamed, and the target does not have it"
                )
            self._rename(change.source, alteration.renamed, table)

    def _clear_converted(self, table: Table, unknown: str | None) -> None:
        """Delete the rows, whose keys may be others; the log has all rows behind this change."""
        if unknown is not None and self._target.has_rows(table.name):
            raise InvalidChangeError(NOT_APPLIED, f"{table.name} is converted, and {unknown}")
        self._target.clear_table(table.name)

    def _alter(self, source: str, table: Table, alteration: Alteration) -> None:
        """All names in a statement are those from before it: so columns are dropped first."""
        target, name = self._target, table.name
        dropped_columns = set(alteration.dropped)
        if dropped_columns & set(table.primary_key):
            column = min(dropped_columns)
            raise InvalidChangeError(NOT_APPLIED, f"{name} would lose {column} of its primary key")
        for column in sorted(dropped_columns):
            target.drop_column(name, column)
        remaining = [column for column in table.columns if column not in dropped_columns]
        self._rename_columns(name, remaining, alteration.renames)
        for new in alteration.changed:
            self._change_column(source, target.table(name) or table, new)
        table = target.table(name) or table
        for new in alteration.added:
            if find_column(table.columns, new.name) is None:
                self._check_known(table, new)
                self._tables.add_columns(source, table, {new.name: self._type(source, new)})
                table = target.table(name) or table

    def _rename_columns(self, table: str, remaining: list[str], renames: Mapping[str, str]) -> None:
        renames = {old: new for old, new in renames.items() if old in remaining and old != new}
        fold = self._target.fold_name
        unchanged = {fold(column) for column in remaining if column not in renames}
        for new in renames.values():
            if fold(new) in unchanged:
                raise InvalidChangeError(NOT_APPLIED, f"{table} has a column {new} already")
        # A column whose name another one gets has a temporary name first.
        names = set(map(fold, renames.values()))
        reused = [old for old in renames if fold(old) in names]
        for old in reused:
            self._target.rename_column(table, old, PREFIX + old)
        for old, new in renames.items():
            self._tables.check_names([new])
            self._target.rename_column(table, PREFIX + old if old in reused else old, new)

    def _change_column(self, source: str, table: Table, new: NewColumn) -> None:
        """Give a column its new type; the log has all rows behind this change."""
        self._check_known(table, new)
        kind, target = self._type(source, new), self._target
        is_key = new.name in table.primary_key
        if is_key:
            # Rows whose keys the source converted would stay beside their new ones.
            target.clear_table(table.name)
        if table.columns.get(new.name) is kind:
            return
        if is_key:
            columns = {**table.columns, new.name: kind}
            target.drop_table(table.name)
            target.create_table(Table(table.name, columns, table.primary_key))
            return
        if new.name in table.columns:
            target.drop_column(table.name, new.name)
        self._tables.add_columns(source, target.table(table.name) or table, {new.name: kind})

    def _check_known(self, table: Table, new: NewColumn) -> None:
        if new.unknown is not None and self._target.has_rows(table.name):
            raise InvalidChangeError(
                NOT_APPLIED, f"{table.name}.{new.name} is defined anew, and {new.unknown}"
            )

    def _type(self, source: str, new: NewColumn) -> ColumnType:
        specified = self._mapping.spec(source).columns.get(new.name)
        return specified or column_type_by_name(new.type_name) or ColumnType.TEXT

    def _create_like(self, change: Change, template: str) -> None:
        model = self._mapping.owned(template)
        if model is None:
            raise InvalidChangeError(
                NOT_APPLIED, f"{change.source} is like {template}, which the target does not have"
            )
        self._check_may_create(change)
        self._tables.find_or_create(change.source, list(model.primary_key), model.columns)

    def _rename(self, source: str, new: str, table: Table | None) -> None:
        name = self._mapping.target_name(new)
        if table is not None and table.name != name:
            self._mapping.check_table_name(name)
            if self._target.table(name) is not None:
                raise InvalidChangeError(
                    NOT_APPLIED, f"{source} was renamed to {new}: the target has a table {name}"
                )
            self._target.rename_table(table.name, name)
        self._mapping.release(source)
        self._tables.shapes.rename(source, new)
        if table is not None:
            self._mapping.claim(name, new)

    def _drop(self, source: str) -> None:
        table = self._mapping.owned(source)
        if table is not None:
            if not self._options.create:
                raise InvalidChangeError(NOT_APPLIED, f"{source} was dropped: --no-create is set")
            self._target.drop_table(table.name)
        self._mapping.release(source)
        self._tables.shapes.delete(source)

    def _check_may_create(self, change: Change) -> None:
        if not self._options.create:
            raise InvalidChangeError(NOT_APPLIED, f"{change.kind}: --no-create is set")


def _column_types(definition: Mapping[str, Any]) -> dict[str, ColumnType]:
    """The columns in Maxwell's `def`; an unknown type is text."""
    columns = definition.get("columns")
    if not isinstance(columns, list):
        raise InvalidChangeError(MALFORMED, "def has no list of columns")
    types = {}
    for column in columns:
        name = column.get("name") if isinstance(column, dict) else None
        kind = column.get("type") if isinstance(column, dict) else None
        if not isinstance(name, str) or not isinstance(kind, str):
            raise InvalidChangeError(MALFORMED, f"def has the column {str(column)[:60]!r}")
        signed = column.get("signed") is not False
        types[name] = column_type_by_name(kind, signed) or ColumnType.TEXT
    return types


_NUMBERS = {ColumnType.BIGINT, ColumnType.NUMERIC, ColumnType.DOUBLE, ColumnType.BOOLEAN}


def _is_compatible(existing: ColumnType, wanted: ColumnType) -> bool:
    """Whether a column takes the values of another type, perhaps in another form."""
    return (
        existing is wanted
        or existing in (ColumnType.TEXT, ColumnType.OTHER)
        or (existing is ColumnType.NUMERIC and wanted in _NUMBERS)
        or (existing in _NUMBERS and wanted in _NUMBERS and wanted is not ColumnType.NUMERIC)
    )
