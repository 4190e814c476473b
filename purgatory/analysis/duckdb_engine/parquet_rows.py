"""The rows of Parquet files: read by DuckDB itself where all that is needed are the good ones.

Where a row's place is asked for, where names are told apart by case only, which DuckDB does not do,
and where numbers are computed, Arrow reads the file, piece by piece.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.analysis.duckdb_engine.checked_rows import (
    ARROW,
    Rows,
    constant_cell,
    named,
    null_cell,
)
from purgatory.analysis.duckdb_engine.duckdb_types import duckdb_type, literal
from purgatory.analysis.duckdb_engine.scaled_numbers import scaled
from purgatory.analysis.errors import TraceError
from purgatory.analysis.traces.cell_types import Cell, id_cell, translated
from purgatory.analysis.traces.column_mapping import Source
from purgatory.analysis.traces.trace_parts import Part
from purgatory.trace.trace_schema import TABLES

_PIECE_ROWS = 1 << 16
_PATTERN = frozenset("*?[]{}\\")
_ARROW_KINDS = {"int": pa.int32(), "bigint": pa.int64()}


@dataclass(frozen=True)
class Piece:
    """Some rows of a file: the columns that are read with `_line`, and those as they were."""

    columns: pa.Table
    raw: pa.Table
    first: int

    def contents(self, lines: Sequence[int]) -> list[str]:
        """Rows as objects of JSON without nulls, by their numbers in the file."""
        rows = self.raw.take(pa.array([line - self.first for line in lines], pa.int64()))
        for place, column in enumerate(rows.schema):
            if pa.types.is_float32(column.type):
                # The shortest number that its type tells from others: as a double, it has more.
                exact = rows[place].cast(pa.string()).cast(pa.float64())
                rows = rows.set_column(place, column.name, exact)
        return [
            json.dumps(
                {name: _told(value) for name, value in row.items() if value is not None},
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
        self._kinds = kinds
        self._places = {name: f"column_{place}" for place, name in enumerate(kinds)}
        self._run_id = run_id
        self._sources = {
            name: (kind, sources[name], kinds.get(sources[name].name or ""))
            for name, kind in TABLES[table].items()
        }
        self._scaled = [
            name
            for name, (_, source, found) in self._sources.items()
            if source.scaled and found is not None
        ]

    def at_once(self, parts: Sequence[Part]) -> Rows | None:
        """The rows of some files, which DuckDB reads together; None where it can't."""
        strange = any(part.twin or not _PATTERN.isdisjoint(str(part.here)) for part in parts)
        if strange or self._scaled:
            return None
        paths = literal([str(part.here) for part in parts])
        origin = f"read_parquet({paths}, union_by_name = true, hive_partitioning = false)"
        return Rows(self._run_id, origin, self._cells({}))

    def in_pieces(self) -> Rows:
        """The rows of a piece, which are called `ARROW`."""
        return Rows(self._run_id, ARROW, self._cells(self._places))

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
                    yield Piece(self._computed(raw).append_column("_line", lines), raw, first)
                    first += len(batch)
        except (OSError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0]
            raise TraceError(f"{part.path}: can't be read as Parquet: {reason}") from error

    def _cells(self, places: Mapping[str, str]) -> dict[str, Cell]:
        return {name: self._cell(name, places) for name in self._sources}

    def _cell(self, name: str, places: Mapping[str, str]) -> Cell:
        kind, source, found = self._sources[name]
        if source.name is None:
            return constant_cell(source, kind)
        if found is None:
            return null_cell(kind)
        if source.scaled:
            place = self._scaled.index(name)
            return Cell(f'"_scaled_{place}"', f'"_unscaled_{place}"')
        column = named(places.get(source.name, source.name))
        if source.values is not None:
            return translated(f"CAST({column} AS STRING)", source, duckdb_type(kind), literal)
        if source.is_id and found == "string":
            return id_cell(column)
        if found == kind:
            return Cell(column)
        value = f"TRY_CAST({column} AS {duckdb_type(kind)})"
        return Cell(value, f"({column} IS NOT NULL AND {value} IS NULL)")

    def _computed(self, raw: pa.Table) -> pa.Table:
        """A piece with the columns that are of another unit."""
        table = raw.rename_columns(list(self._places.values()))
        for place, name in enumerate(self._scaled):
            kind, source, _ = self._sources[name]
            given = raw[source.name].to_pylist()
            values = [None if one is None else scaled(one, source, kind) for one in given]
            wrong = [
                one is not None and value is None for one, value in zip(given, values, strict=True)
            ]
            column = pa.array(values, _ARROW_KINDS[kind])
            table = table.append_column(f"_scaled_{place}", column)
            table = table.append_column(f"_unscaled_{place}", pa.array(wrong, pa.bool_()))
        return table


def _told(value: Any) -> Any:
    """A cell as JSON has it."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    return value
