"""Turns the columns of a file into those of the schema: what a value becomes, and when it can't.

All is SQL over the file's columns, for Spark to compute. A value that does not fit its type becomes
null, and a second expression says that there was one.
"""

from __future__ import annotations

from dataclasses import dataclass

from purgatory.analysis.traces.column_mapping import Source

JSON_OPTIONS = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
"""What makes Spark's JSON parser keep to JSON."""

_SCALED = "decimal(29,9)"
_FACTOR = "decimal(28,9)"
_SUSPECT = r"^(true|false|\[.*|\{.*|-?[0-9].*)$"
"""Text that may have been something else than a text in JSON."""


@dataclass(frozen=True)
class Cell:
    """One column: the SQL of its value, and the SQL that is true where a value does not fit."""

    value: str
    wrong: str = "false"


def quoted(name: str) -> str:
    """A column's name as SQL takes it."""
    return "`" + name.replace("`", "``") + "`"


def constant(source: Source, kind: str) -> Cell:
    """The same value in each row."""
    if isinstance(source.value, str):
        text = source.value.replace("\\", "\\\\").replace("'", "\\'")
        return Cell(f"'{text}'")
    return Cell(f"cast({str(source.value).lower()} AS {kind})")


def parquet_cell(source: Source, kind: str, found: str | None) -> Cell:
    """A column of Parquet of the type `found`, which the footer told; None: it is not there."""
    if source.name is None:
        return constant(source, kind)
    if found is None:
        return Cell(f"cast(NULL AS {kind})")
    column = quoted(source.name)
    if source.scaled:
        return _fitting(column, _scaled(column, source, kind))
    if found == kind:
        return Cell(column)
    return _fitting(column, f"try_cast({column} AS {kind})")


def json_cell(source: Source, kind: str, row: str, line: str) -> Cell:
    """A field of a line of JSON.

    Args:
        source: which field.
        kind: the type that it must have.
        row: the SQL of the object with its fields as text.
        line: the SQL of the line, for what the text alone does not tell.
    """
    if source.name is None:
        return constant(source, kind)
    text = f"{row}.{quoted(source.name)}"
    if source.scaled:
        return _fitting(text, _scaled(text, source, kind))
    if kind == "string":
        name = quoted(source.name)
        schema = f"{name} variant".replace("\\", "\\\\").replace("'", "\\'")
        parsed = f"from_json({line}, '{schema}', {_options()})"
        told = f"schema_of_variant({parsed}.{name})"
        suspect = _SUSPECT.replace("\\", "\\\\")
        wrong = f"CASE WHEN {text} RLIKE '{suspect}' THEN coalesce({told} <> 'STRING', true) END"
        return Cell(text, f"coalesce({wrong}, false)")
    if kind == "boolean":
        return _fitting(text, f"CASE {text} WHEN 'true' THEN true WHEN 'false' THEN false END")
    if kind.startswith("array"):
        listed = f"from_json({text}, '{kind}', {_options()})"
        return _fitting(text, f"CASE WHEN {text} LIKE '[%' THEN {listed} END")
    return _fitting(text, f"try_cast({text} AS {kind})")


def _options() -> str:
    return "map(" + ", ".join(f"'{name}', '{said}'" for name, said in JSON_OPTIONS.items()) + ")"


def _fitting(given: str, value: str) -> Cell:
    return Cell(value, f"({given} IS NOT NULL AND {value} IS NULL)")


def _scaled(given: str, source: Source, kind: str) -> str:
    number = f"try_cast({given} AS {_SCALED})"
    if source.times is not None:
        number = f"try_multiply({number}, cast('{source.times:f}' AS {_FACTOR}))"
    if source.plus is not None:
        number = f"try_add({number}, cast('{source.plus:f}' AS {_FACTOR}))"
    return f"try_cast(round({number}) AS {kind})"
