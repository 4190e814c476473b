"""The steps of a schema change, as `purgatory capture` writes them into `steps`.

{"do": "add-column", "name": "note", "type": "text", "nullable": true}
{"do": "add-column", "name": "weight", "type": "decimal(8,3)", "nullable": false, "resent": true}
{"do": "drop-column", "name": "note", "if": "exists"}
{"do": "rename-column", "name": "amount", "to": "price"}
{"do": "change-column", "name": "price", "was": "amount", "type": "decimal(14,2)", "nullable": true,
 "resent": true}
{"do": "rename-table", "database": "shop", "table": "purchases"}
{"do": "create-like", "database": "shop", "table": "orders"}
{"do": "resend-rows", "resent": true}
{"do": "resend-table"}
{"do": "stop", "why": "EXCHANGE PARTITION moves rows that the log does not have"}

A new column is null in existing rows. With `resent`, their values follow in the log: all rows of
the table are sent again (`bootstrap-insert`), as of a position behind the statement, and the
changes in between are there too. A changed column (`was`: its other name) is always resent, as the
source may have converted its values. `resend-rows` deletes the rows, all of which the source may
have converted. `resend-table` replaces the whole table, with the columns in `def`, which are the
present ones: those of the statement are in no log. `if` is a condition (`exists`, `absent`) on the
column before the statement; where it does not hold, the step does nothing. `unknown` says why the
values of a column in existing rows are not known.

Names are those in the statement. `Alteration` resolves them to columns as the source compares
names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from purgatory.cdc.change import source_name
from purgatory.cdc.quarantine import MALFORMED, InvalidChangeError


class NewColumn(NamedTuple):
    """A column as a statement describes it.

    Args:
        type_name: the source's name of its type.
        unknown: why its values in existing rows are not known; None if they are null or `resent`.
    """

    name: str
    type_name: str
    unknown: str | None


def find_column(names: Iterable[str], name: str) -> str | None:
    """The column of a table that a statement means by a name; None if there is none.

    MariaDB compares names letter by letter, case-insensitively but accent-sensitively.
    """

    def fold(name: str) -> str:
        return "".join(letter.lower()[0] for letter in name)

    matches = {fold(name): name for name in names}
    return name if name in matches.values() else matches.get(fold(name))


class Alteration:
    """The steps of one statement, by kind.

    Args:
        columns: of the table before the statement.

    Raises:
        InvalidChangeError: a step is malformed.
    """

    def __init__(self, steps: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
        self._columns = columns
        self.added: list[NewColumn] = []
        self.dropped: list[str] = []
        self.renames: dict[str, str] = {}
        self.changed: list[NewColumn] = []
        self.renamed: str | None = None
        self.template: str | None = None
        self.is_resent = False
        self.is_converted = False
        # Why the converted rows are not known.
        self.unknown: str | None = None
        self.error: str | None = None
        for step in steps:
            self._add(step)

    def _add(self, step: Mapping[str, Any]) -> None:
        match step["do"]:
            case "add-column":
                existing = [*self._columns, *(new.name for new in self.added)]
                if step.get("if") != "absent" or not find_column(existing, _text(step, "name")):
                    self.added.append(_column(step))
            case "drop-column":
                column = find_column(self._columns, _text(step, "name"))
                if column is not None:
                    self.dropped.append(column)
            case "rename-column":
                self._rename(find_column(self._columns, _text(step, "name")), _text(step, "to"))
            case "change-column":
                old = _text(step, "was" if "was" in step else "name")
                column = find_column(self._columns, old)
                if step.get("if") != "exists" or column is not None:
                    self._rename(column, _text(step, "name"))
                    self.changed.append(_column(step))
            case "resend-rows":
                self.is_converted = True
                self.unknown = None if step.get("unknown") is None else str(step["unknown"])
            case "resend-table":
                self.is_resent = True
            case "rename-table":
                self.renamed = source_name(_text(step, "database"), _text(step, "table"))
            case "create-like":
                self.template = source_name(_text(step, "database"), _text(step, "table"))
            case "stop":
                self.error = self.error or _text(step, "why")
            case other:
                self.error = self.error or f"the step {other[:60]!r} is not known"

    def _rename(self, column: str | None, new: str) -> None:
        if column is not None and column != new:
            self.renames[column] = new

    @property
    def changes_columns(self) -> bool:
        return bool(self.added or self.dropped or self.renames or self.changed)


def _column(step: Mapping[str, Any]) -> NewColumn:
    unknown = step.get("unknown")
    return NewColumn(
        _text(step, "name"),
        _text(step, "type"),
        None if unknown is None else str(unknown),
    )


def _text(step: Mapping[str, Any], name: str) -> str:
    value = step.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidChangeError(MALFORMED, f"{step['do']} without {name}")
    return value
