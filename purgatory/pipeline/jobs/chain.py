"""A job as a chain of SQL statements: one text, which Spark and DuckDB read as it is.

A file of a chain is plain SQL. Each statement is a `create view` or a `create table`, and reads the
tables of a trace and the names of earlier statements:

    create table records as   -- a table is computed once, since several statements read it
    select ... from sends ...;

    create view counts as     -- a view becomes part of the statement that reads it
    select count(*) as records from records where sent_us < :end_us;

The engines read one text because Spark runs in ANSI mode with double-quoted identifiers, and both
have the functions of `macros`. The text keeps to what both mean alike:

* `"group"`, `"partition"`, `"offset"` and `"key"` are quoted; texts are in single quotes.
* `a || b` is null where one of both is; `concat` isn't in DuckDB.
* Whole sums are `cast(sum(x) as bigint)`, and so is `count_if`: DuckDB's have 128 bits.
* A text has no backslash: only Spark takes it for an escape.
* Numbers with a point are decimal in both: a double is written `0.5e0`.
* Nulls come first in ascending order and last in descending order. A `struct` with nulls,
  `any_value`, and `min_by` and `max_by` over nulls differ, and are left out.
* Tables stand after `from` and `join`, never after a comma.
* `/*+ broadcast(t) */` is a hint for Spark and a comment for DuckDB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from purgatory.pipeline.result_rows import Order

_STATEMENT = re.compile(
    r"(?:\s|--[^\n]*\n)*create\s+(?P<kind>view|table)\s+(?P<name>[a-z_][a-z_0-9]*)\s+as\b(?P<query>.*)",
    re.DOTALL,
)
_END = re.compile(r";[ \t]*(?:--[^\n]*)?(?:\n|\Z)")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z_0-9]*)")


@dataclass(frozen=True)
class Statement:
    """One statement of a chain.

    Attributes:
        name: the name of the view or table.
        kept: whether it is a table, which is computed once.
        query: a `select`, without a semicolon.
    """

    name: str
    kept: bool
    query: str


def read_chain(*names: str, **parameters: object) -> list[Statement]:
    """The statements of some files, one file after the other.

    Args:
        names: paths of the files under `purgatory/pipeline/jobs`, such as `audit/records.sql`.
        parameters: the values of `:name` in the text: numbers, texts, booleans or None.

    Raises:
        ValueError: a file has something else than such statements, or a parameter has no value.
    """
    folder = files("purgatory.pipeline.jobs")
    return [
        statement
        for name in names
        for statement in parse_chain(folder.joinpath(name).read_text("utf-8"), parameters, name)
    ]


def parse_chain(
    text: str, parameters: Mapping[str, object] | None = None, source: str = "the text"
) -> list[Statement]:
    """The statements of a text; arguments and errors are those of `read_chain`."""
    values = parameters or {}

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise ValueError(f"{source}: the parameter :{match[1]} has no value")
        return literal(values[match[1]])

    statements = []
    for part in _END.split(text):
        if not re.sub(r"--[^\n]*", "", part).strip():
            continue
        found = _STATEMENT.fullmatch(part)
        if found is None:
            raise ValueError(f"{source}: neither a create view nor a create table: {part.strip()}")
        query = _PARAMETER.sub(value, found["query"].strip())
        statements.append(Statement(found["name"], found["kind"] == "table", query))
    return statements


_NO_ALIAS = (
    "where|join|left|right|inner|cross|full|semi|anti|group|order|using|on|union|limit|having"
    "|except|window"
)


def renamed(statements: Iterable[Statement], names: Mapping[str, str]) -> list[Statement]:
    """A chain with other names of its tables, so that it runs twice, or beside others' tables.

    A name is a table's where it follows `from` or `join`; elsewhere it is a column's or an alias.

    Args:
        statements: the chain.
        names: new names of its statements and inputs by their old ones.
    """
    table = re.compile(
        rf"\b(?P<word>from|join)\s+(?P<name>{'|'.join(map(re.escape, names))})\b"
        rf"(?P<alias>\s+(?:as\s+)?(?!(?:{_NO_ALIAS})\b)[a-z_]\w*)?"
    )

    def other(found: re.Match[str]) -> str:
        alias = found["alias"] or f" as {found['name']}"
        return f"{found['word']} {names[found['name']]}{alias}"

    return [
        Statement(names.get(one.name, one.name), one.kept, table.sub(other, one.query))
        for one in statements
    ]


def literal(value: object) -> str:
    """A value as both engines read it.

    Raises:
        TypeError: it is something else than None, a boolean, a number, a text or a list of such.
    """
    match value:
        case None | bool() | int():
            return "null" if value is None else str(value).lower()
        case float():
            return f"cast('{value!r}' as double)"
        case str():
            parts = re.split(r"([\0\\])", value.replace("'", "''"))
            pieces = (
                f"chr({ord(part)})" if part in ("\0", "\\") else f"'{part}'" for part in parts
            )
            return f"({' || '.join(pieces)})"
        case list() | tuple():
            return f"({', '.join(map(literal, value))})"
        case _:
            raise TypeError(f"{value!r} can't be written in SQL")


def order_by(order: Order) -> str:
    """An order as both engines read it: nulls first, and a value outside its list before others."""
    return ", ".join(
        f"{_place(name, among) if among else quoted([name])} asc nulls first"
        for name, among in order
    )


def _place(name: str, among: Sequence[str]) -> str:
    cases = " ".join(f"when {literal(value)} then {place}" for place, value in enumerate(among, 1))
    column = quoted([name])
    return f"case when {column} is null then null else case {column} {cases} else 0 end end"


def quoted(names: Iterable[str]) -> str:
    """Names of columns as a list of SQL."""
    return ", ".join('"' + name.replace('"', '""') + '"' for name in names)
