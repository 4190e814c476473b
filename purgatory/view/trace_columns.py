"""The tables of a trace as columns in memory: tens of bytes for each row, none a Python object.

What can't be right is left out and told in `notes`: a part that is torn, a row without a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from purgatory.trace.change_rows import CHANGE_NULLABLE, CHANGES
from purgatory.trace.trace_schema import (
    NULLABLE,
    REQUIRED_TABLES,
    RUN_FILE,
    SCHEMA_VERSIONS,
)
from purgatory.trace.trace_writer import arrow_schema
from purgatory.view.errors import ViewError
from purgatory.view.json_tables import has_json, read_json_tables

Ints = Sequence[int]
"""A column of whole numbers; null is `NULL`."""

NULL = -1

LATEST_US = 2**53
"""The latest moment that is shown: the largest whole number that a page counts with exactly."""

_TIMES = frozenset({"time_us", "start_us", "end_us", "send_us", "answer_us", "begun_us"})


class Names(NamedTuple):
    """A column of texts: each different one once, and which of them a row has; -1: null."""

    values: Sequence[str]
    codes: Ints

    def at(self, row: int) -> str:
        """Return a row's text; "" for null."""
        code = self.codes[row]
        return "" if code < 0 else self.values[code]


def ints(column: pa.ChunkedArray) -> Ints:
    """Return a column of whole numbers without a copy for each row."""
    if column.null_count:
        column = pc.fill_null(column, NULL)
    return _memory(column.cast(pa.int64()))


def names(column: pa.ChunkedArray) -> Names:
    """Return a column of texts."""
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    codes = encoded.indices
    if codes.null_count:
        codes = pc.fill_null(codes, NULL)
    return Names(encoded.dictionary.to_pylist(), _memory(codes.cast(pa.int64())))


def _memory(column: pa.ChunkedArray | pa.Array) -> Ints:
    one = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    buffer = one.buffers()[1]
    if buffer is None or not len(one):
        return memoryview(b"").cast("q")
    return memoryview(buffer).cast("q")[one.offset : one.offset + len(one)]


def _no_folder(folder: Path) -> str:
    right = f"give that of a trace, which has a {RUN_FILE}"
    if _STORE.match(str(folder)):
        return f"{folder}: the view reads folders of this machine alone; copy the trace here"
    if folder.exists():
        return f"{folder}: is no folder; {right}"
    return f"{folder}: there is no such folder; {right}"


def _no_trace(folder: Path) -> str:
    inside = sorted(path.parent for path in folder.glob(f"*/{RUN_FILE}"))
    if inside:
        traces = "a trace" if len(inside) == 1 else f"{len(inside):,} traces"
        return f"{folder}: is no trace, but has {traces} in it: give one, such as {inside[0]}"
    return (
        f"{folder}: is no trace: there is no {RUN_FILE}; "
        "`purgatory simulate SCENARIO --trace DIR` writes one"
    )


_STORE = re.compile(r"[a-z][a-z0-9+.-]+:/")
"""What a path begins with that is the address of something in a store."""


class TraceFolder:
    """A trace in Parquet or lines of JSON.

    Attributes: ``head`` is run.json; ``notes`` says what is not shown, and why.

    Raises:
        ViewError: it is no trace, or none that can be read here.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self._has_json = has_json(folder)
        self.head = self._read_head()
        self.run_id = str(self.head.get("run_id") or folder.resolve().name)
        self.complete = bool(self.head.get("complete", self._has_json))
        if not self.complete:
            reason = self.head.get("reason")
            why = f": {reason}" if isinstance(reason, str) else ""
            self.notes.append(f"The run was not finished{why}. It is shown as far as it got.")

    def _read_head(self) -> Mapping[str, Any]:
        folder, path = self.folder, self.folder / RUN_FILE
        if not folder.is_dir():
            raise ViewError(_no_folder(folder))
        if not path.is_file():
            if self._has_json:
                return {}
            raise ViewError(_no_trace(folder))
        try:
            head = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ViewError(f"{path}: can't be read: {error}") from None
        if not isinstance(head, dict):
            raise ViewError(f"{path}: is no JSON object")
        version = head.get("schema_version")
        if version not in SCHEMA_VERSIONS:
            known = ", ".join(map(str, SCHEMA_VERSIONS))
            raise ViewError(f"{path}: schema version {version!r} is not known, only {known}")
        if not (self._has_json or (folder / "operations").is_dir()):
            raise ViewError(f"{folder}: has no table of operations")
        return head

    def table(self, name: str) -> pa.Table | None:
        """Return a table with the schema's columns; None if the trace has none of that name."""
        place = self.folder / name
        in_json = read_json_tables(self.folder, name, self.notes) if self._has_json else []
        if not (place.is_dir() or in_json or (self._has_json and name in REQUIRED_TABLES)):
            return None
        schema = arrow_schema(name)
        parts = [self._part(path, schema) for path in sorted(place.glob("*.parquet"))]
        if any(place.glob("*.parquet.part")):
            self.notes.append(f"The last part of the table {name} was never finished.")
        tables = [part for part in parts if part is not None] + in_json
        loose = pa.schema([pa.field(field.name, field.type) for field in schema])
        table = (
            pa.concat_tables(one.cast(loose) for one in tables) if tables else loose.empty_table()
        )
        return self._sound(name, table)

    def _part(self, path: Path, schema: pa.Schema) -> pa.Table | None:
        try:
            file = pq.ParquetFile(path)
            there = set(file.schema_arrow.names)
            wanted = [field.name for field in schema if field.name in there]
            part = file.read(columns=wanted)
            columns = [
                part.column(field.name).cast(field.type)
                if field.name in there
                else pa.chunked_array([pa.nulls(part.num_rows, field.type)])
                for field in schema
            ]
        except (OSError, pa.ArrowException, ValueError) as error:
            reason = str(error).partition("\n")[0]
            self.notes.append(f"{path.name} of {path.parent.name} is left out: {reason}")
            return None
        return pa.table(columns, names=schema.names)

    def _sound(self, name: str, table: pa.Table) -> pa.Table:
        """Leave out the rows that lack a value, or have a time that can't be."""
        nullable = CHANGE_NULLABLE if name == CHANGES else NULLABLE[name]
        sound = pa.scalar(True)
        for column in table.column_names:
            if column not in nullable and column not in ("run_id", "wait_us", "keys"):
                sound = pc.and_(sound, pc.is_valid(table.column(column)))
            if column in _TIMES:
                early = pc.greater_equal(table.column(column), 0)
                late = pc.greater(table.column(column), LATEST_US)
                can_be = pc.fill_null(pc.and_not(early, late), column in nullable)
                sound = pc.and_(sound, can_be)
        if name == "operations":
            ends = pc.greater_equal(table.column("end_us"), table.column("start_us"))
            sound = pc.and_(sound, pc.fill_null(ends, False))
        if isinstance(sound, pa.Scalar):
            return table
        kept = table.filter(sound)
        if kept.num_rows < table.num_rows:
            left = table.num_rows - kept.num_rows
            rows, are = ("row", "is") if left == 1 else ("rows", "are")
            self.notes.append(f"{left:,} {rows} of {name} that can't be right {are} left out.")
        return kept
