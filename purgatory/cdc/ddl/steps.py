"""The steps of a schema change, as `purgatory capture` writes them into `steps`.

{"do": "add-column", "name": "note", "type": "text", "nullable": true}
{"do": "add-column", "name": "weight", "type": "decimal(8,3)", "nullable": false, "resent": true}
{"do": "drop-column", "name": "note", "if": "exists"}
{"do": "rename-column", "name": "amount", "to": "price"}
{"do": "change-type", "name": "price", "was": "amount", "type": "decimal(14,2)", "nullable": true}
{"do": "rename-table", "database": "shop", "table": "purchases"}
{"do": "create-like", "database": "shop", "table": "orders"}
{"do": "resend-table"}
{"do": "stop", "why": "EXCHANGE PARTITION moves rows that the log does not have"}

A new column is null in existing rows. With `resent`, their values follow in the log: all rows of
the table are sent again (`bootstrap-insert`). `resend-table` replaces the whole table, with the
columns in `def`. `if` is a condition (`exists`, `absent`) on the column before the statement; where
it does not hold, the step does nothing. `unknown` says why the values of a new column in existing
rows are not known.

Names are those in the statement. `Alteration` resolves them to columns as the source compares
names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from purgatory.cdc.change import source_name
from purgatory.cdc.errors import MALFORMED, InvalidChangeError


class NewColumn(NamedTuple):
    """A column as a statement describes it.

    Args:
        type_name: the source's name of its type.
        unknown: why its values in existing rows are not known; None if they are null or `resent`.
        resent: whether the log has all rows again behind the statement.
        auto_increment: whether the source numbers its rows.
    """

    name: str
    type_name: str
    nullable: bool
    unknown: str | None
    resent: bool
    auto_increment: bool


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
        self.retyped: list[NewColumn] = []
        self.renamed: str | None = None
        self.template: str | None = None
        self.is_resent = False
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
            case "change-type":
                name = _text(step, "name")
                # A step before may have renamed the column to this name.
                old = next((old for old, new in self.renames.items() if new == name), name)
                column = find_column(self._columns, step.get("was") or old)
                if step.get("if") != "exists" or column is not None:
                    self._rename(column, name)
                    self.retyped.append(_column(step))
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
        return bool(self.added or self.dropped or self.renames or self.retyped)


def _column(step: Mapping[str, Any]) -> NewColumn:
    unknown = step.get("unknown")
    return NewColumn(
        _text(step, "name"),
        _text(step, "type"),
        step.get("nullable") is not False,
        None if unknown is None else str(unknown),
        step.get("resent") is True,
        step.get("auto_increment") is True,
    )


def _text(step: Mapping[str, Any], name: str) -> str:
    value = step.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidChangeError(MALFORMED, f"{step['do']} without {name}")
    return value


_TYPE = re.compile(r"\s*(\w+)\s*(?:\((.*)\))?\s*(.*)", re.DOTALL)
_INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "integer": 32, "bigint": 64}
_TEXTS = {"tinytext": 255, "text": 2**16 - 1, "mediumtext": 2**24 - 1, "longtext": 2**32 - 1}
_BYTES = {"tinyblob": 255, "blob": 2**16 - 1, "mediumblob": 2**24 - 1, "longblob": 2**32 - 1}
_BYTES_PER_CHARACTER = 4


def is_lossless(old: str, new: str) -> bool:
    """Whether a change of a column's type is certain to preserve all values.

    As `int` to `bigint`, a longer text, more labels of an enum.

    Args:
        old, new: MySQL's names of the types, such as `varchar(20)`, with their arguments.
    """
    old_name, arguments, attributes = _parts(old)
    now, new_arguments, new_attributes = _parts(new)
    if (old_name, arguments, attributes) == (now, new_arguments, new_attributes):
        return True
    charset = re.search(r"character set (\w+)", new_attributes)
    if charset is None and "character set" in attributes:
        # It has the table's now, which is not in the statement.
        return False
    if charset is not None and charset[1] != "utf8mb4":
        return False
    if old_name in _INTEGERS and now in _INTEGERS:
        low, high = _range(old_name, attributes)
        new_low, new_high = _range(now, new_attributes)
        # Above 64 bits, the target has another type.
        return new_low <= low and high <= new_high < 2**63
    if _is_text(old_name) and _is_text(now) and (old_name == "char" or now != "char"):
        return _characters(now, new_arguments, least=True) >= _characters(
            old_name, arguments, least=False
        )
    if (old_name == "varbinary" or old_name in _BYTES) and (now == "varbinary" or now in _BYTES):
        return _length(now, new_arguments, _BYTES) >= _length(old_name, arguments, _BYTES)
    if old_name != now:
        return False
    if old_name == "enum":
        return set(_labels(arguments)) <= set(_labels(new_arguments))
    if old_name == "set":
        labels, new_labels = _labels(arguments), _labels(new_arguments)
        return new_labels[: len(labels)] == labels
    if old_name == "decimal":
        (digits, scale), (new_digits, new_scale) = map(_digits, (arguments, new_arguments))
        signs = "unsigned" in attributes or "unsigned" not in new_attributes
        return signs and new_scale == scale and new_digits >= digits
    if old_name == "bit":
        return int(new_arguments or 1) >= int(arguments or 1)
    return arguments == new_arguments and old_name in ("float", "double") and attributes == ""


def _parts(words: str) -> tuple[str, str, str]:
    match = _TYPE.fullmatch(words)
    assert match is not None, "all of it is optional but the name, which was checked"
    name, arguments = match[1].lower(), match[2] or ""
    name = {"integer": "int", "dec": "decimal", "numeric": "decimal"}.get(name, name)
    attributes = " ".join(match[3].lower().split())
    if name in _INTEGERS or name == "year":
        # The display width and ZEROFILL don't affect values.
        arguments = ""
        attributes = "unsigned" if "unsigned" in attributes or "zerofill" in attributes else ""
    return name, arguments.strip(), attributes


def _range(name: str, attributes: str) -> tuple[int, int]:
    bits = _INTEGERS[name]
    return (0, 2**bits - 1) if attributes else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _is_text(name: str) -> bool:
    return name in ("char", "varchar") or name in _TEXTS


def _characters(name: str, arguments: str, *, least: bool) -> int:
    """How many characters fit in the worst case (`least`), or in the best case."""
    if name not in _TEXTS:
        return int(arguments or 1)
    length = _length(name, arguments, _TEXTS, bytes_each=1 if least else _BYTES_PER_CHARACTER)
    return length // _BYTES_PER_CHARACTER if least else length


def _length(name: str, arguments: str, lengths: Mapping[str, int], bytes_each: int = 1) -> int:
    if name not in lengths:
        return int(arguments or 1)
    if not arguments:
        return lengths[name]
    # The source makes text(100) and blob(100) the smallest type that is long enough.
    required_length = int(arguments) * bytes_each
    return next(
        (length for length in lengths.values() if length >= required_length), max(lengths.values())
    )


def _digits(arguments: str) -> tuple[int, int]:
    digits, _, scale = arguments.partition(",")
    return int(digits or 10), int(scale or 0)


def _labels(arguments: str) -> list[str]:
    return [label.replace("''", "'") for label in re.findall(r"'((?:[^']|'')*)'", arguments)]
