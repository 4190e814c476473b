"""Schema changes in the target, step by step, within a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from purgatory.cdc.apply.options import ApplyOptions
from purgatory.cdc.apply.tables import Schema, SourceTables
from purgatory.cdc.change import Change
from purgatory.cdc.column_types import ColumnType, type_in_mysql_words
from purgatory.cdc.ddl.steps import Alteration, NewColumn, declared_name, keeps_values
from purgatory.cdc.errors import MALFORMED, MISSING_KEY, NOT_APPLIED, BadChangeError
from purgatory.cdc.targets.target import PREFIX, Table, Target


class SchemaChanges:
    """Applies changes of schemas to one target.

    Args:
        schema: of the same target; it forgets what it knows at each change.
    """

    def __init__(self, target: Target, options: ApplyOptions, schema: Schema) -> None:
        self._target = target
        self._options = options
        self._schema = schema
        self._sources = SourceTables(target, options)

    def apply(self, change: Change) -> None:
        """Within a transaction: apply a change of a schema.

        Raises:
            BadChangeError: a person has to do it (`NOT_APPLIED`), or there is no key.
        """
        self._schema.raise_version()
        match change.kind:
            case "table-truncate":
                self._truncate(change)
            case "table-drop":
                self._drop(change.source)
            case "database-drop":
                for source in self._sources.sources():
                    if source.startswith(f"{change.database}."):
                        self._drop(source)
            case "table-create" | "table-alter" if change.steps is None:
                self._define(change)
            case _:
                self._take_steps(change)
        self._schema.forget()

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
        columns = {**_defined(definition), **self._sources.said(change.source).columns}
        key = definition.get("primary-key") or change.primary_key
        if not isinstance(key, list) or not all(isinstance(name, str) for name in key):
            raise BadChangeError(MISSING_KEY, f"{change.source} has no primary key")
        table = self._schema.known_or_new(change.source, key, columns)
        differ = [
            name
            for name, kind in columns.items()
            if name in table.columns and not _alike(table.columns[name], kind)
        ]
        self._schema.add(change.source, table, columns)
        if differ:
            raise BadChangeError(
                NOT_APPLIED,
                f"{table.name}.{differ[0]} is {table.columns[differ[0]].value}, and would be "
                f"{columns[differ[0]].value}: change it by hand",
            )
        self._sources.note_words(change.source, words)

    def _take_steps(self, change: Change) -> None:
        table = self._sources.there(change.source)
        alteration = Alteration(change.steps or (), list(table.columns) if table else ())
        if alteration.refusal is not None:
            where = f"{change.source}: " if change.table else ""
            raise BadChangeError(NOT_APPLIED, f"{where}{alteration.refusal}")
        if alteration.like is not None:
            self._create_like(change, alteration.like)
            return
        if alteration.is_resent:
            self._resend(change)
            return
        if table is not None:
            if alteration.changes_columns and not self._options.create:
                raise BadChangeError(NOT_APPLIED, f"{change.kind}: to alter tables is off")
            self._alter(change.source, table, alteration)
        if alteration.renamed is not None:
            self._rename(change.source, alteration.renamed, table)

    def _alter(self, source: str, table: Table, alteration: Alteration) -> None:
        """All names of a statement are those from before it: what goes away goes first."""
        target, name = self._target, table.name
        gone = set(alteration.dropped)
        if gone & set(table.primary_key):
            raise BadChangeError(NOT_APPLIED, f"{name} would lose {min(gone)} of its primary key")
        for column in sorted(gone):
            target.drop_column(name, column)
        left = [column for column in table.columns if column not in gone]
        self._rename_columns(name, left, alteration.renames)
        words = {
            alteration.renames.get(column, column): kind
            for column, kind in self._sources.words(source).items()
            if column not in alteration.dropped
        }
        for new in alteration.retyped:
            self._check_retyped(source, new, words)
        table = target.table(name) or table
        for new in alteration.added:
            if declared_name(table.columns, new.name) is None:
                self._add_filled(source, table, new)
                table = target.table(name) or table
        self._sources.note_words(
            source, {**words, **{new.name: new.words for new in alteration.described}}
        )

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
            self._schema.check_names([new])
            self._target.rename_column(table, PREFIX + old if old in passing else old, new)

    def _check_retyped(self, source: str, new: NewColumn, words: Mapping[str, str]) -> None:
        """Nothing in the log says what became of the values: they must not have changed."""
        table = self._sources.there(source)
        if table is None or new.name not in table.columns:
            return
        name = f"{table.name}.{new.name}"
        was = words.get(new.name)
        has_rows = self._target.has_rows(table.name)
        keeps = was is not None and keeps_values(was, new.words)
        if (not has_rows or (new.resent and not keeps)) and new.name not in table.primary_key:
            kind = type_in_mysql_words(new.words) or ColumnType.TEXT
            if table.columns[new.name] is not kind:
                self._target.drop_column(table.name, new.name)
                self._target.add_column(table.name, new.name, kind)
            return
        zero = self._target.converter(table.columns[new.name])(0) if new.numbered else None
        if zero is not None and self._target.has_rows(table.name, (new.name, zero)):
            raise BadChangeError(NOT_APPLIED, f"{name} has a 0, which the source numbered anew")
        if not keeps:
            raise BadChangeError(
                NOT_APPLIED,
                f"{name} was {was or 'of a type that is not known'}, and is {new.words}: the "
                "source may have changed its values",
            )
        has_nulls = not new.nullable and self._target.has_rows(table.name, (new.name, None))
        if has_nulls and not new.resent:
            raise BadChangeError(NOT_APPLIED, f"{name} has nulls, which the source replaced")

    def _add_filled(self, source: str, table: Table, new: NewColumn) -> None:
        has_rows = self._target.has_rows(table.name)
        if has_rows and new.unknown is not None:
            raise BadChangeError(NOT_APPLIED, f"{table.name}.{new.name} is new, and {new.unknown}")
        said = self._sources.said(source).columns.get(new.name)
        kind = said or type_in_mysql_words(new.words) or ColumnType.TEXT
        self._schema.add(source, table, {new.name: kind})
        if has_rows and new.fill is not None:
            value = self._target.converter(kind)(new.fill)
            self._target.fill_column(table.name, new.name, value)

    def _resend(self, change: Change) -> None:
        """Make a table anew, whose rows the log has behind this."""
        self._drop(change.source)
        if change.definition is not None:
            self._define(change)

    def _create_like(self, change: Change, like: str) -> None:
        model = self._sources.there(like)
        if model is None:
            raise BadChangeError(
                NOT_APPLIED, f"{change.source} is like {like}, which the target does not have"
            )
        self._check_may_create(change)
        self._schema.known_or_new(change.source, list(model.primary_key), model.columns)
        self._sources.note_words(change.source, self._sources.words(like))

    def _rename(self, source: str, new: str, table: Table | None) -> None:
        name = self._sources.target_name(new)
        if table is not None and table.name != name:
            self._sources.check_table_name(name)
            if self._target.table(name) is not None:
                raise BadChangeError(
                    NOT_APPLIED, f"{source} was renamed to {new}: the target has a table {name}"
                )
            self._target.rename_table(table.name, name)
        words = self._sources.words(source)
        self._sources.disown(source)
        if table is not None:
            self._sources.claim(name, new)
            self._sources.note_words(new, words)

    def _truncate(self, change: Change) -> None:
        table = self._sources.there(change.source)
        if table is not None:
            self._target.clear_table(table.name)

    def _drop(self, source: str) -> None:
        table = self._sources.there(source)
        if table is not None:
            if not self._options.create:
                raise BadChangeError(NOT_APPLIED, f"{source} was dropped: to drop tables is off")
            self._target.drop_table(table.name)
        self._sources.disown(source)

    def _check_may_create(self, change: Change) -> None:
        if not self._options.create:
            raise BadChangeError(NOT_APPLIED, f"{change.kind}: to make tables is off")


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
