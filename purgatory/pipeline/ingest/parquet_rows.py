"""The insertion of rows into DuckDB: good rows into their table, bad ones with a reason.

The rules are those of `quarantine_rules`, in Spark's SQL: DuckDB quotes names differently, and gets
macros for some of Spark's functions. The values in the detail of a bad row are never null, so that
`concat` is the same in both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.pipeline.engines.duckdb.sql_engine import duckdb_type
from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.ingest.column_casts import Cell, Dialect, id_text_pairs, parquet_cell
from purgatory.pipeline.ingest.column_mapping import Source
from purgatory.pipeline.ingest.quarantine_rules import (
    derived_columns,
    detail_sql,
    first_wrong_sql,
    reason_sql,
)
from purgatory.pipeline.ingest.trace_files import Part
from purgatory.pipeline.jobs.chain import literal
from purgatory.trace.trace_schema import TABLES

MACROS = (
    "CREATE OR REPLACE TEMP MACRO try_subtract(a, b) AS TRY(a - b)",
    "CREATE OR REPLACE TEMP MACRO unix_micros(a) AS epoch_us(a)",
    "CREATE OR REPLACE TEMP MACRO size(list) AS len(list)",
    "CREATE OR REPLACE TEMP MACRO get(list, place) AS list[place + 1]",
    "CREATE OR REPLACE TEMP MACRO array_compact(list) AS "
    "list_filter(list, lambda x: x IS NOT NULL)",
    "CREATE OR REPLACE TEMP MACRO conv(digits, base, other) AS CAST('0x' || digits AS BIGINT)",
)
"""Functions of Spark that the rules and text ids need."""


@dataclass(frozen=True)
class Rows:
    """Rows in SQL: the text after FROM, and the expressions of the table's columns."""

    run_id: str
    origin: str
    cells: Mapping[str, Cell]
    torn: str = "false"


def quoted_name(name: str) -> str:
    """A column's or a table's name as DuckDB takes it."""
    return '"' + name.replace('"', '""') + '"'


DUCKDB = Dialect(literal=literal, type=duckdb_type, name=quoted_name)


def insert_good(
    connection: duckdb.DuckDBPyConnection, table: str, rows: Rows, target: str | None = None
) -> int:
    """Insert the good rows into a table, or into `target`, and return their number."""
    columns = ", ".join(map(quoted_name, TABLES[table]))
    text = (
        f"INSERT INTO {quoted_name(target or table)} SELECT {columns} "
        f"FROM ({_rows_sql(table, rows)}) "
        f"WHERE {_to_duckdb(reason_sql(table))} IS NULL"
    )
    inserted = connection.execute(text).fetchone()
    assert inserted is not None, "an insert returns its number of rows"
    return int(inserted[0])


def count_good(connection: duckdb.DuckDBPyConnection, table: str, rows: Rows) -> int:
    """The number of good rows; reads all columns."""
    read = ", ".join(f"count({quoted_name(name)})" for name in TABLES[table])
    text = (
        f"SELECT count_if({_to_duckdb(reason_sql(table))} IS NULL), {read} "
        f"FROM ({_rows_sql(table, rows)})"
    )
    row = connection.execute(text).fetchone()
    assert row is not None, "there is always a count"
    return int(row[0])


def select_good(table: str, rows: Rows) -> str:
    """The SQL of rows that are all good, and thus of their folder's run."""
    cells = {**rows.cells, "run_id": Cell(f"CAST({literal(rows.run_id)} AS VARCHAR)")}
    columns = (f"{cells[name].value} AS {quoted_name(name)}" for name in TABLES[table])
    return f"SELECT {', '.join(columns)} FROM {rows.origin}"


def insert_texts(connection: duckdb.DuckDBPyConnection, rows: Rows) -> None:
    """Insert the ids that are negative as numbers, with their texts, into the table `id_texts`."""
    structs = ", ".join(
        f"{{'number': {value}, 'text': {text}}}" for value, text in id_text_pairs(rows.cells)
    )
    connection.execute(
        "INSERT INTO id_texts SELECT DISTINCT one.number, one.text FROM "
        f"(SELECT unnest([{structs}]) AS one FROM {rows.origin}) WHERE one.number < 0"
    )


def list_bad(
    connection: duckdb.DuckDBPyConnection, table: str, rows: Rows
) -> Sequence[tuple[int, str, str]]:
    """The line, the reason and the detail of the bad rows; the rows have a column `_line`."""
    text = (
        f"SELECT _line, {_to_duckdb(reason_sql(table))} AS reason, {_to_duckdb(detail_sql(table))} "
        f"FROM ({_rows_sql(table, rows)}) WHERE reason IS NOT NULL ORDER BY _line"
    )
    return connection.execute(text).fetchall()


def _rows_sql(table: str, rows: Rows) -> str:
    """The rows with all columns of a table, including those that follow from others."""
    cells = ", ".join(f"{cell.value} AS {quoted_name(name)}" for name, cell in rows.cells.items())
    wrong = first_wrong_sql(rows.cells)
    line = ", _line" if rows.origin == ARROW else ""
    typed = f"SELECT {cells}, {rows.torn} AS _torn, {wrong} AS _wrong{line} FROM {rows.origin}"
    filled = ", ".join(
        f"{_to_duckdb(expression)} AS {quoted_name(name)}"
        for name, expression in derived_columns(table).items()
    )
    run = f"SELECT *, {literal(rows.run_id)} AS _run"
    return f"SELECT * REPLACE ({filled}) FROM ({run} FROM ({typed}))"


ARROW = "_arrow_rows"
"""The name of rows that Python gives to DuckDB, which have a column `_line`."""


def _to_duckdb(text: str) -> str:
    """Spark's SQL as DuckDB's."""
    return text.replace("`", '"')


# The rows of Parquet files: DuckDB itself reads them where only good ones are needed.
#
# Arrow reads the file, piece by piece, for the place of a row, and for names that differ by case
# only, which DuckDB ignores.


_PIECE_ROWS = 1 << 16
_PATTERN = frozenset("*?[]{}\\")


@dataclass(frozen=True)
class Piece:
    """Some rows of a file: the columns that are read with `_line`, and those as they were."""

    columns: pa.Table
    raw: pa.Table
    first: int

    def contents(self, lines: Sequence[int]) -> list[str]:
        """Rows as objects of JSON without nulls, by their numbers in the file."""
        rows = self.raw.take(pa.array([line - self.first for line in lines], pa.int64()))
        for index, column in enumerate(rows.schema):
            if pa.types.is_float32(column.type):
                # The shortest number that is unique in its type: as a double, it has more digits.
                exact = rows[index].cast(pa.string()).cast(pa.float64())
                rows = rows.set_column(index, column.name, exact)
        return [
            json.dumps(
                {name: _json_value(value) for name, value in row.items() if value is not None},
                ensure_ascii=False,
                separators=(",", ":"),
            )
            for row in rows.to_pylist()
        ]


class ParquetRows:
    """Reads Parquet files that have the same columns of the same types, for one table of one run.

    Args:
        table: its name.
        sources: where its columns come from.
        kinds: the columns that are in the files, and their types in Spark's words.
        run_id: the run of all the files.
    """

    def __init__(
        self,
        table: str,
        sources: Mapping[str, Source],
        kinds: Mapping[str, str],
        run_id: str,
    ) -> None:
        self._columns = TABLES[table]
        self._sources = sources
        self._kinds = kinds
        self._column_names = {name: f"column_{index}" for index, name in enumerate(kinds)}
        self._run_id = run_id

    def whole_files(self, parts: Sequence[Part]) -> Rows | None:
        """The rows of some files, which DuckDB reads together; None where it can't."""
        needs_pieces = any(part.twin or not _PATTERN.isdisjoint(str(part.here)) for part in parts)
        if needs_pieces:
            return None
        paths = f"[{', '.join(literal(str(part.here)) for part in parts)}]"
        origin = f"read_parquet({paths}, union_by_name = true, hive_partitioning = false)"
        return Rows(self._run_id, origin, self._cells({}))

    def piece_rows(self) -> Rows:
        """The rows of a piece, which are called `ARROW`."""
        return Rows(self._run_id, ARROW, self._cells(self._column_names))

    def pieces(self, part: Part) -> Iterator[Piece]:
        """The rows of a file, in pieces.

        Raises:
            TraceError: its pages can't be read; its footer could.
        """
        first, names = 1, list(self._kinds)
        try:
            with pq.ParquetFile(part.here) as file:
                for batch in file.iter_batches(_PIECE_ROWS, columns=names):
                    batch.validate(full=True)
                    raw = pa.Table.from_batches([batch]).select(names)
                    lines = pa.array(range(first, first + len(batch)), pa.int64())
                    renamed = raw.rename_columns(list(self._column_names.values()))
                    yield Piece(renamed.append_column("_line", lines), raw, first)
                    first += len(batch)
        except (OSError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0]
            raise TraceError(f"{part.path}: can't be read as Parquet: {reason}") from error

    def _cells(self, names: Mapping[str, str]) -> dict[str, Cell]:
        """The columns of the table; the file's go under other names, if these have them."""
        cells = {}
        for column, kind in self._columns.items():
            source = self._sources[column]
            name = source.name or ""
            named = replace(source, name=names.get(name, source.name))
            cells[column] = parquet_cell(named, kind, self._kinds.get(name), DUCKDB)
        return cells


def _json_value(value: Any) -> Any:
    """A cell as JSON has it."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    return value
