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
rows are not known; earlier versions wrote `fill`, the value itself.

Names are those in the statement. `Alteration` resolves them to columns as the source compares
names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from purgatory.cdc.errors import MALFORMED, BadChangeError

T = TypeVar("T")


class NewColumn(NamedTuple):
    """A column as a statement describes it.

    Args:
        words: its type, as the source calls it.
        nullable: whether it takes nulls.
        fill: its value in the rows that are there.
        unknown: why that is not known.
        resent: whether the log has all rows once more behind the statement.
        was: what it was called before, as it was declared; None if it is new.
        numbered: whether the source numbers its rows.
    """

    name: str
    words: str
    nullable: bool
    fill: Any
    unknown: str | None
    resent: bool
    was: str | None
    numbered: bool


def folded(name: str) -> str:
    """What is the same for all names that MariaDB takes for one column: it compares them letter by
    letter without regard to case, but with regard to accents."""
    return "".join(letter.lower()[0] for letter in name)


def declared_name(names: Iterable[str], name: str) -> str | None:
    """The one of a table's columns that a statement means by a name; None if there is none."""
    found = {folded(one): one for one in names}
    return name if name in found.values() else found.get(folded(name))


class Alteration:
    """The steps of one statement, by what they do.

    Args:
        columns: of the table before the statement.

    Raises:
        BadChangeError: they are not as they must be.
    """

    def __init__(self, steps: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
        self._columns = columns
        self.added: list[NewColumn] = []
        self.dropped: list[str] = []
        self.renames: dict[str, str] = {}
        self.retyped: list[NewColumn] = []
        self.renamed: str | None = None
        self.like: str | None = None
        self.is_resent = False
        self.refusal: str | None = None
        for step in steps:
            self._take(step)

    def _take(self, step: Mapping[str, Any]) -> None:
        match step["do"]:
            case "add-column":
                there = [*self._columns, *(new.name for new in self.added)]
                if step.get("if") != "absent" or not declared_name(there, _said(step, "name")):
                    self.added.append(_column(step, None))
            case "drop-column":
                declared = self._declared(_said(step, "name"))
                if declared is not None:
                    self.dropped.append(declared)
            case "rename-column":
                self._rename(self._declared(_said(step, "name")), _said(step, "to"))
            case "change-type":
                name = _said(step, "name")
                was = self._declared(step.get("was") or self._renamed_from(name))
                if step.get("if") != "exists" or was is not None:
                    self._rename(was, name)
                    self.retyped.append(_column(step, was))
            case "resend-table":
                self.is_resent = True
            case "rename-table":
                self.renamed = f"{_said(step, 'database')}.{_said(step, 'table')}"
            case "create-like":
                self.like = f"{_said(step, 'database')}.{_said(step, 'table')}"
            case "stop":
                self.refusal = self.refusal or _said(step, "why")
            case other:
                self.refusal = self.refusal or f"the step {other[:60]!r} is not known"

    def _declared(self, name: str) -> str | None:
        return declared_name(self._columns, name)

    def _rename(self, declared: str | None, new: str) -> None:
        if declared is not None and declared != new:
            self.renames[declared] = new

    def _renamed_from(self, name: str) -> str:
        """What a column was called that a step before renamed to this; else, the name itself."""
        return next((old for old, new in self.renames.items() if new == name), name)

    @property
    def described(self) -> list[NewColumn]:
        """All columns of which the statement says the type."""
        return [*self.added, *self.retyped]

    @property
    def changes_columns(self) -> bool:
        """Whether it does something to the table itself."""
        return bool(self.added or self.dropped or self.renames or self.retyped)


def _column(step: Mapping[str, Any], was: str | None) -> NewColumn:
    unknown = step.get("unknown")
    return NewColumn(
        _said(step, "name"),
        _said(step, "type"),
        step.get("nullable") is not False,
        step.get("fill"),
        None if unknown is None else str(unknown),
        step.get("resent") is True,
        was,
        step.get("numbered") is True,
    )


def _said(step: Mapping[str, Any], name: str) -> str:
    value = step.get(name)
    if not isinstance(value, str) or not value:
        raise BadChangeError(MALFORMED, f"{step['do']} without {name}")
    return value


_TYPE = re.compile(r"\s*(\w+)\s*(?:\((.*)\))?\s*(.*)", re.DOTALL)
_INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "integer": 32, "bigint": 64}
_TEXTS = {"tinytext": 255, "text": 2**16 - 1, "mediumtext": 2**24 - 1, "longtext": 2**32 - 1}
_BYTES = {"tinyblob": 255, "blob": 2**16 - 1, "mediumblob": 2**24 - 1, "longblob": 2**32 - 1}
_BYTES_OF_CHARACTER = 4


def keeps_values(old: str, new: str) -> bool:
    """Whether a column of one type that becomes one of another keeps all its values as they are.

    Only what is certain is: `int` to `bigint`, a longer text, more labels of an enum, and so on.

    Args:
        old, new: as MySQL calls them, such as `varchar(20)`, with their arguments.
    """
    was, arguments, attributes = _parts(old)
    now, new_arguments, new_attributes = _parts(new)
    if (was, arguments, attributes) == (now, new_arguments, new_attributes):
        return True
    charset = re.search(r"character set (\w+)", new_attributes)
    if charset is None and "character set" in attributes:
        # It is the table's now, which the statement does not say.
        return False
    if charset is not None and charset[1] != "utf8mb4":
        return False
    if was in _INTEGERS and now in _INTEGERS:
        low, high = _range(was, attributes)
        new_low, new_high = _range(now, new_attributes)
        # Above 64 bits, the target has another type.
        return new_low <= low and high <= new_high < 2**63
    if _is_text(was) and _is_text(now) and (was == "char" or now != "char"):
        return _characters(now, new_arguments, least=True) >= _characters(
            was, arguments, least=False
        )
    if (was == "varbinary" or was in _BYTES) and (now == "varbinary" or now in _BYTES):
        return _length(now, new_arguments, _BYTES) >= _length(was, arguments, _BYTES)
    if was != now:
        return False
    if was == "enum":
        return set(_labels(arguments)) <= set(_labels(new_arguments))
    if was == "set":
        labels, new_labels = _labels(arguments), _labels(new_arguments)
        return new_labels[: len(labels)] == labels
    if was == "decimal":
        (digits, scale), (new_digits, new_scale) = map(_digits, (arguments, new_arguments))
        signs = "unsigned" in attributes or "unsigned" not in new_attributes
        return signs and new_scale == scale and new_digits >= digits
    if was == "bit":
        return int(new_arguments or 1) >= int(arguments or 1)
    return arguments == new_arguments and was in ("float", "double") and attributes == ""


def _parts(words: str) -> tuple[str, str, str]:
    match = _TYPE.fullmatch(words)
    assert match is not None, "all of it is optional but the name, which was looked at"
    name, arguments = match[1].lower(), match[2] or ""
    name = {"integer": "int", "dec": "decimal", "numeric": "decimal"}.get(name, name)
    attributes = " ".join(match[3].lower().split())
    if name in _INTEGERS or name == "year":
        # How wide a number is shown, and whether with zeros, says nothing of its values.
        arguments = ""
        attributes = "unsigned" if "unsigned" in attributes or "zerofill" in attributes else ""
    return name, arguments.strip(), attributes


def _range(name: str, attributes: str) -> tuple[int, int]:
    bits = _INTEGERS[name]
    return (0, 2**bits - 1) if attributes else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _is_text(name: str) -> bool:
    return name in ("char", "varchar") or name in _TEXTS


def _characters(name: str, arguments: str, *, least: bool) -> int:
    """How many characters fit in any case, or in the best case."""
    if name not in _TEXTS:
        return int(arguments or 1)
    length = _length(name, arguments, _TEXTS, bytes_each=1 if least else _BYTES_OF_CHARACTER)
    return length // _BYTES_OF_CHARACTER if least else length


def _length(name: str, arguments: str, known: Mapping[str, int], bytes_each: int = 1) -> int:
    if name not in known:
        return int(arguments or 1)
    if not arguments:
        return known[name]
    # Of text(100) and blob(100) the source makes the smallest type that has so much.
    wanted = int(arguments) * bytes_each
    return next((length for length in known.values() if length >= wanted), max(known.values()))


def _digits(arguments: str) -> tuple[int, int]:
    digits, _, scale = arguments.partition(",")
    return int(digits or 10), int(scale or 0)


def _labels(arguments: str) -> list[str]:
    return [label.replace("''", "'") for label in re.findall(r"'((?:[^']|'')*)'", arguments)]
