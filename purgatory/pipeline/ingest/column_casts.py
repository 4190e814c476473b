"""The casts of a file's columns to the types of the schema.

All are SQL expressions over the file's columns, in the words of an engine (`Dialect`). A value that
does not fit its type becomes null, and a second expression is true, by which `quarantine_rules`
tells the row's defect.

An id may be a text. The text of a whole number of 64 bits becomes that number; any other text
becomes a negative number from its digest. The reader of the trace has to check that no two texts
became the same number (`spark_reader.require_distinct_ids` and `read_tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.ingest.column_mapping import Source
from purgatory.trace.trace_schema import IDS

JSON_OPTIONS = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
"""Options that keep Spark's JSON parser to JSON."""

TIMESTAMP = "timestamp"
"""The type of a point in time, which is read as microseconds since 1970."""

TIMESTAMP_NANOS = "timestamp in nanoseconds"
"""The same, as pandas writes it: Spark reads it as a number alone, with the setting below."""

DECIMAL = "decimal("
"""The beginning of a decimal type, such as a database has for numbers of many digits."""

NANOS_AS_LONG = "spark.sql.legacy.parquet.nanosAsLong"

ISO_TIME = (
    "(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
    "([T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9]([.][0-9]+)?)?"
    "(Z|[+-](0[0-9]|1[0-7])(:?[0-5][0-9])?)?)?"
)
"""A date, with or without a time and a zone, as ISO 8601 has them: a regular expression."""

ZEROS = "[.]0+"
"""The end of a whole number that is written as a float: a regular expression."""

_END = r"\z"
"""The end of a text in Java's regular expressions: `$` is before a last new line, too."""

_MOST_EXACT = 2**53
"""The greatest whole number below which a double has each."""

_DIGITS = 15
"""The number of hexadecimal digits of a text's MD5 in its number: 60 bits."""

_SUSPECT = r"^(true|false|\[.*|\{.*|-?[0-9][-+.0-9eE]*)$"
"""Texts that other JSON values than texts may have become."""


@dataclass(frozen=True)
class Cell:
    """One column: the SQL of its value, and the SQL that is true where a value does not fit.

    Of an id that may be a text, `text` is the SQL of the text. Of a value that does not fit,
    `shown` is the SQL of its text, if it has one, and `right` the words for one that would.
    """

    value: str
    wrong: str = "false"
    text: str | None = None
    right: str = ""
    shown: str | None = None


@dataclass(frozen=True)
class Dialect:
    """An engine's SQL for a text, a type in Spark's words, and a column's name."""

    literal: Callable[[str], str]
    type: Callable[[str], str]
    name: Callable[[str], str]


def backquoted(name: str) -> str:
    """A column's name as Spark takes it."""
    return "`" + name.replace("`", "``") + "`"


SPARK = Dialect(
    literal=lambda text: "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'",
    type=str,
    name=backquoted,
)


def constant(source: Source, kind: str, dialect: Dialect = SPARK) -> Cell:
    """The same value in each row."""
    value = _mapped_value(source.value, source, kind, dialect)
    text = dialect.literal(source.value) if isinstance(source.value, str) else None
    return Cell(value, text=text)


def id_cell(text: str) -> Cell:
    """An id, from the SQL of its text: a whole number is itself, any other text negative."""
    number = f"TRY_CAST({text} AS BIGINT)"
    digest = f"CAST(conv(substring(md5({text}), 1, {_DIGITS}), 16, 10) AS BIGINT)"
    same = f"CAST({number} AS STRING) = {text}"
    return Cell(f"CASE WHEN {same} THEN {number} ELSE -1 - {digest} END", text=text)


def id_text_pairs(cells: Mapping[str, Cell]) -> list[tuple[str, str]]:
    """SQL over a row: each of its ids, and the text of that."""
    ids = [cell for name, cell in cells.items() if name in IDS]
    return [(cell.value, cell.text or f"CAST({cell.value} AS STRING)") for cell in ids]


def has_texts(cells: Mapping[str, Cell]) -> str:
    """SQL over a row: whether one of its ids is no number."""
    texts = [cell for name, cell in cells.items() if name in IDS and cell.text]
    tests = [f"CAST({cell.value} AS STRING) <> {cell.text}" for cell in texts]
    return f"coalesce({' OR '.join(tests)}, false)" if tests else "false"


def same_number(first: str, second: str) -> TraceError:
    """The error for two texts with the same number."""
    return TraceError(
        f"the ids {first!r} and {second!r} become the same number, which happens once in some "
        "hundred million texts: rename one of the two, or number them"
    )


def translated_cell(text: str, source: Source, kind: str, dialect: Dialect = SPARK) -> Cell:
    """A column whose values a mapping translates; others are taken unchanged.

    Args:
        text: the SQL of the value as text.
        source: with the translations.
        kind: the type that it must have.
        dialect: the engine's.
    """
    assert source.values is not None, "the mapping has values"
    original = _from_text(text, source, kind, dialect)
    values = {
        key: _mapped_value(value, source, kind, dialect) for key, value in source.values.items()
    }
    texts = {key: dialect.literal(str(value)) for key, value in source.values.items()}
    known = ", ".join(map(dialect.literal, source.values))
    names = ", ".join(source.values).replace("'", "?").replace("\\", "?")
    return Cell(
        _cases(text, values, original, dialect),
        f"({text} IS NOT NULL AND {text} NOT IN ({known}) AND {original} IS NULL)",
        _cases(text, texts, text, dialect) if source.is_id else None,
        f"{right_values(source, kind)}, or one of the mapping: {names}",
        text,
    )


def right_values(source: Source, kind: str) -> str:
    """The values that fit a column, in words; they go into an SQL text as they are."""
    if source.is_time:
        return "microseconds, or a time such as 2026-11-01T12:00:00.5Z or 2026-11-01 13:00:00+01"
    if source.is_id:
        return "a text, or a whole number of 64 bits"
    if kind.startswith("array"):
        return 'a list of texts, such as ["orders-0"]'
    return {"string": "a text", "boolean": "true or false"}.get(kind) or (
        f"a whole number of {_BITS[kind]} bits"
    )


_BITS = {"int": 32, "bigint": 64}


def _cases(text: str, then: Mapping[str, str], otherwise: str, dialect: Dialect) -> str:
    cases = " ".join(f"WHEN {dialect.literal(key)} THEN {value}" for key, value in then.items())
    return f"CASE {text} {cases} ELSE {otherwise} END"


def _mapped_value(value: object, source: Source, kind: str, dialect: Dialect) -> str:
    """A value of a mapping in SQL; None is null."""
    if isinstance(value, str):
        literal = dialect.literal(value)
        return id_cell(literal).value if source.is_id else literal
    literal = "NULL" if value is None else str(value).lower()
    return f"CAST({literal} AS {dialect.type(kind)})"


def _from_text(text: str, source: Source, kind: str, dialect: Dialect) -> str:
    if kind == "string":
        return text
    if source.is_id:
        return id_cell(text).value
    if kind == "boolean":
        return f"CASE {text} WHEN 'true' THEN true WHEN 'false' THEN false END"
    number = f"TRY_CAST({text} AS {dialect.type(kind)})"
    return f"CASE WHEN CAST({number} AS STRING) = {text} THEN {number} END"


def parquet_cell(
    source: Source, kind: str, file_kind: str | None, dialect: Dialect = SPARK
) -> Cell:
    """A Parquet column of the type `file_kind` in the footer; None: it is missing."""
    if source.name is None:
        return constant(source, kind, dialect)
    if file_kind is None:
        return Cell(f"CAST(NULL AS {dialect.type(kind)})")
    column = dialect.name(source.name)
    if source.values is not None:
        return translated_cell(f"CAST({column} AS STRING)", source, kind, dialect)
    if source.is_id and file_kind == "string":
        return id_cell(column)
    if file_kind == kind:
        return Cell(column)
    if file_kind in (TIMESTAMP, TIMESTAMP_NANOS):
        return Cell(f"unix_micros({column})")
    number = f"TRY_CAST({column} AS {dialect.type(kind)})"
    if file_kind in ("float", "double"):
        exact = f"{number} = {column} AND abs({column}) <= {_MOST_EXACT}"
        number = f"CASE WHEN {exact} THEN {number} END"
    elif file_kind.startswith(DECIMAL):
        number = f"CASE WHEN {number} = {column} THEN {number} END"
    return _typed_cell(column, number, right_values(source, kind))


def json_cell(source: Source, kind: str, row: str, line: str) -> Cell:
    """A field of a line of JSON.

    Args:
        source: which field.
        kind: the type that it must have.
        row: the SQL of the object with its fields as text.
        line: the SQL of the line, for rules that need more than the text of the fields.
    """
    if source.name is None:
        return constant(source, kind)
    text = f"{row}.{backquoted(source.name)}"
    if source.values is not None:
        return translated_cell(text, source, kind)
    if kind == "string" or source.is_id:
        name = backquoted(source.name)
        schema = f"{name} variant".replace("\\", "\\\\").replace("'", "\\'")
        parsed = f"from_json({line}, '{schema}', {_options()})"
        variant_type = f"schema_of_variant({parsed}.{name})"
        suspect = _SUSPECT.replace("\\", "\\\\")
        is_other = f"coalesce({variant_type} <> 'STRING', true)"
        wrong = f"CASE WHEN {text} RLIKE '{suspect}' THEN {is_other} END"
        right = right_values(source, kind)
        if not source.is_id:
            return Cell(text, f"coalesce({wrong}, false)", right=right, shown=text)
        whole = f"CAST(try_cast({text} AS bigint) AS string) = {text}"
        wrong = f"CASE WHEN {whole} THEN false ELSE {wrong} END"
        wrong = f"coalesce({wrong}, false)"
        return replace(id_cell(text), wrong=wrong, right=right, shown=text)
    if kind == "boolean":
        value = f"CASE {text} WHEN 'true' THEN true WHEN 'false' THEN false END"
    elif kind.startswith("array"):
        array = f"from_json({text}, '{kind}', {_options()})"
        value = f"CASE WHEN {text} LIKE '[%' THEN {array} END"
    else:
        digits = f"regexp_replace({text}, {SPARK.literal(ZEROS + _END)}, '')"
        number = f"try_cast({digits} AS {kind})"
        value = _iso_micros(text, number) if source.is_time else number
    return replace(_typed_cell(text, value, right_values(source, kind)), shown=text)


def line_cell(name: str, kind: str, source: Source, dialect: Dialect = SPARK) -> Cell:
    """A column of a `json_lines.Block`: `_wrong` names one of another type, `_value` has that."""
    if source.name is None:
        return constant(source, kind, dialect)
    column = dialect.name(name)
    if source.values is not None:
        return translated_cell(column, source, kind, dialect)
    cell = id_cell(column) if source.takes_texts else Cell(column)
    is_wrong = f"coalesce(_wrong = {dialect.literal(name)}, false)"
    return replace(cell, wrong=is_wrong, right=right_values(source, kind), shown="_value")


def _iso_micros(text: str, otherwise: str) -> str:
    """SQL: the microseconds since 1970 of a text of `ISO_TIME`, in UTC where it names no zone."""
    pattern = SPARK.literal(f"^{ISO_TIME}{_END}")
    whole = text
    for short, longer in (
        (f"^(.{{10}}){_END}", "$1T00:00"),
        ("^(.{16})(?!:)", "$1:00"),
        (f"^(.{{19}}([.][0-9]+)?){_END}", "$1Z"),
    ):
        whole = f"regexp_replace({whole}, {SPARK.literal(short)}, '{longer}')"
    micros = f"unix_micros(try_cast({whole} AS timestamp))"
    return f"CASE WHEN {text} RLIKE {pattern} THEN {micros} ELSE {otherwise} END"


def _options() -> str:
    return "map(" + ", ".join(f"'{name}', '{value}'" for name, value in JSON_OPTIONS.items()) + ")"


def _typed_cell(source: str, value: str, right: str) -> Cell:
    return Cell(value, f"({source} IS NOT NULL AND {value} IS NULL)", right=right)
