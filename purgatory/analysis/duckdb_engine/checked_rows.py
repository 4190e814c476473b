"""Rows on their way into DuckDB: the good go into their table, the bad are told by reason.

The rules are `row_rules`, which Spark computes too: DuckDB has another mark for names, and macros
for two of Spark's functions. What a rule says of a row is in words whose values are never null, for
which both have the same `concat`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb

from purgatory.analysis.duckdb_engine.duckdb_types import duckdb_type, literal
from purgatory.analysis.traces.cell_types import Cell, constant, id_texts_of
from purgatory.analysis.traces.column_mapping import Source
from purgatory.analysis.traces.row_rules import detail_of, filled_in, first_wrong, reason_of
from purgatory.trace.trace_schema import TABLES

MACROS = (
    "CREATE OR REPLACE TEMP MACRO try_subtract(a, b) AS TRY(a - b)",
    "CREATE OR REPLACE TEMP MACRO size(list) AS len(list)",
    "CREATE OR REPLACE TEMP MACRO conv(digits, base, other) AS CAST('0x' || digits AS BIGINT)",
)
"""What the rules, and ids that are texts, need that only Spark has."""


@dataclass(frozen=True)
class Rows:
    """Rows as SQL has them: what follows FROM, and how the columns of a table come from them."""

    run_id: str
    origin: str
    cells: Mapping[str, Cell]
    torn: str = "false"


def named(name: str) -> str:
    """A column's or a table's name as DuckDB takes it."""
    return '"' + name.replace('"', '""') + '"'


def null_cell(kind: str) -> Cell:
    """Null in each row."""
    return Cell(f"CAST(NULL AS {duckdb_type(kind)})")


def constant_cell(source: Source, kind: str) -> Cell:
    """The same value in each row."""
    return constant(source, duckdb_type(kind), literal)


def insert_good(connection: duckdb.DuckDBPyConnection, table: str, rows: Rows) -> int:
    """Let a table take the rows in which nothing is wrong; how many these are."""
    columns = ", ".join(map(named, TABLES[table]))
    text = (
        f"INSERT INTO {named(table)} SELECT {columns} FROM ({_filled(table, rows)}) "
        f"WHERE {_own(reason_of(table))} IS NULL"
    )
    inserted = connection.execute(text).fetchone()
    assert inserted is not None, "an insert tells its rows"
    return int(inserted[0])


def insert_texts(connection: duckdb.DuckDBPyConnection, rows: Rows) -> None:
    """Let the table `id_texts` take the ids that are negative as numbers, with their texts."""
    listed = ", ".join(
        f"{{'number': {value}, 'text': {text}}}" for value, text in id_texts_of(rows.cells)
    )
    connection.execute(
        "INSERT INTO id_texts SELECT DISTINCT one.number, one.text FROM "
        f"(SELECT unnest([{listed}]) AS one FROM {rows.origin}) WHERE one.number < 0"
    )


def list_bad(
    connection: duckdb.DuckDBPyConnection, table: str, rows: Rows
) -> Sequence[tuple[int, str, str]]:
    """The number, the reason and the detail of the others; the rows have a column `_line`."""
    text = (
        f"SELECT _line, {_own(reason_of(table))} AS reason, {_own(detail_of(table))} "
        f"FROM ({_filled(table, rows)}) WHERE reason IS NOT NULL ORDER BY _line"
    )
    return connection.execute(text).fetchall()


def _filled(table: str, rows: Rows) -> str:
    """The rows with all columns of a table, and with what they may not have of themselves."""
    cells = ", ".join(f"{cell.value} AS {named(name)}" for name, cell in rows.cells.items())
    wrong = first_wrong(rows.cells)
    line = ", _line" if rows.origin == ARROW else ""
    typed = f"SELECT {cells}, {rows.torn} AS _torn, {wrong} AS _wrong{line} FROM {rows.origin}"
    filled = ", ".join(f"{_own(how)} AS {named(name)}" for name, how in filled_in(table).items())
    run = f"SELECT *, {literal(rows.run_id)} AS _run"
    return f"SELECT * REPLACE ({filled}) FROM ({run} FROM ({typed}))"


ARROW = "_arrow_rows"
"""The name of rows that Python gives to DuckDB, which have a column `_line`."""


def _own(text: str) -> str:
    """Spark's SQL as DuckDB's."""
    return text.replace("`", '"')
