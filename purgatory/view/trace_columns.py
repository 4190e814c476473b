"""A trace's tables as columns in memory: tens of bytes per row, without Python objects.

Tables are Parquet or lines of JSON, which are found and read as in the analysis. Invalid parts,
lines and rows are left out with a note: a torn line, a row without a time, a value of another type.
"""

from __future__ import annotations

import json
import re
import zlib
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from purgatory.pipeline.ingest.column_mapping import Source
from purgatory.pipeline.ingest.json_lines import ARROW_KINDS, JsonLines
from purgatory.pipeline.ingest.trace_files import json_files, plain_files
from purgatory.trace import change_rows as rows
from purgatory.trace.change_rows import CHANGE_COLUMNS, CHANGE_NULLABLE, CHANGES, due_ms
from purgatory.trace.trace_schema import (
    NULLABLE,
    REQUIRED_TABLES,
    RUN_FILE,
    TABLES,
    version_error,
)
from purgatory.trace.trace_writer import arrow_schema
from purgatory.view.errors import ViewError

Ints = Sequence[int]
"""A column of whole numbers; null is `NULL`."""

NULL = -1

LATEST_US = 2**53
"""The latest time: the largest integer that JavaScript represents exactly."""

_MOST_SHOWN = 60
"""The characters of a value that a note shows."""

_TIMES = frozenset({"time_us", "start_us", "end_us", "send_us", "answer_us", "begun_us"})


class Names(NamedTuple):
    """A dictionary-encoded column of texts; code -1: null."""

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
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    buffer = values.buffers()[1]
    if buffer is None or not len(values):
        return memoryview(b"").cast("q")
    return memoryview(buffer).cast("q")[values.offset : values.offset + len(values)]


def _missing_folder_message(folder: Path) -> str:
    right = f"give the folder of a trace, which has a {RUN_FILE}"
    if _STORE.match(str(folder)):
        return f"{folder}: the view reads folders of this machine alone; copy the trace here"
    if folder.exists():
        return f"{folder}: is no folder; {right}"
    return f"{folder}: there is no such folder; {right}"


def _missing_trace_message(folder: Path) -> str:
    candidates = sorted(path.parent for path in folder.glob(f"*/{RUN_FILE}"))
    if candidates:
        traces = "a trace" if len(candidates) == 1 else f"{len(candidates):,} traces"
        return f"{folder}: is no trace, but has {traces} in it: give one, such as {candidates[0]}"
    plain = [path.name for table in TABLES for path in plain_files(folder, table)]
    if plain:
        return (
            f"{folder}: has {plain[0]} without {RUN_FILE}: the view reads that from lines of JSON "
            "alone (operations.jsonl); purgatory waits, occupancy and audit read it"
        )
    return (
        f"{folder}: is no trace: there is no {RUN_FILE}; "
        "`purgatory simulate SCENARIO --trace DIR` writes one"
    )


_STORE = re.compile(r"[a-z][a-z0-9+.-]+:/")
"""The beginning of a URI."""


class TraceFolder:
    """A trace in Parquet or lines of JSON.

    Attributes: ``head`` is run.json; ``notes`` has the parts that are left out, and why.

    Raises:
        ViewError: the folder is no trace, or can't be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []
        try:
            self._has_json = has_json(folder)
        except OSError as error:
            raise ViewError(f"{error.filename}: can't be read: {error.strerror}") from None
        self.head = self._read_head()
        self.run_id = str(self.head.get("run_id") or folder.resolve().name)
        self.complete = bool(self.head.get("complete", self._has_json))
        if not self.complete:
            reason = self.head.get("reason")
            suffix = f": {reason}" if isinstance(reason, str) else ""
            self.notes.append(f"The run was not finished{suffix}. It is shown as far as it got.")

    def _read_head(self) -> Mapping[str, Any]:
        folder, path = self.folder, self.folder / RUN_FILE
        if not folder.is_dir():
            raise ViewError(_missing_folder_message(folder))
        if not path.is_file():
            if self._has_json:
                return {}
            raise ViewError(_missing_trace_message(folder))
        try:
            head = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ViewError(f"{path}: can't be read: {error}") from None
        if not isinstance(head, dict):
            raise ViewError(f"{path}: is no JSON object")
        if (wrong := version_error(head.get("schema_version"))) is not None:
            raise ViewError(f"{path}: {wrong}")
        if not (self._has_json or (folder / "operations").is_dir()):
            raise ViewError(f"{folder}: has no table of operations")
        return head

    def table(self, name: str) -> pa.Table | None:
        """Return a table with the schema's columns; None if the trace has none of that name."""
        table_folder = self.folder / name
        in_json = read_json_tables(self.folder, name, self.notes) if self._has_json else []
        if not (table_folder.is_dir() or in_json or (self._has_json and name in REQUIRED_TABLES)):
            return None
        schema = arrow_schema(name)
        parts = [self._part(path, schema) for path in sorted(table_folder.glob("*.parquet"))]
        if any(table_folder.glob("*.parquet.part")):
            self.notes.append(f"The last part of the table {name} was never finished.")
        tables = [part for part in parts if part is not None] + in_json
        nullable_schema = pa.schema([pa.field(field.name, field.type) for field in schema])
        table = (
            pa.concat_tables(part.cast(nullable_schema) for part in tables)
            if tables
            else nullable_schema.empty_table()
        )
        return self._drop_invalid(name, table)

    def _part(self, path: Path, schema: pa.Schema) -> pa.Table | None:
        try:
            file = pq.ParquetFile(path)
            file_columns = set(file.schema_arrow.names)
            wanted = [field.name for field in schema if field.name in file_columns]
            part = file.read(columns=wanted)
            columns = [
                part.column(field.name).cast(field.type)
                if field.name in file_columns
                else pa.chunked_array([pa.nulls(part.num_rows, field.type)])
                for field in schema
            ]
        except (OSError, pa.ArrowException, ValueError) as error:
            reason = str(error).partition("\n")[0]
            self.notes.append(f"{path.name} of {path.parent.name} is left out: {reason}")
            return None
        return pa.table(columns, names=schema.names)

    def _drop_invalid(self, name: str, table: pa.Table) -> pa.Table:
        """Leave out the rows that lack a value, or have an invalid time."""
        nullable = CHANGE_NULLABLE if name == CHANGES else NULLABLE[name]
        mask = pa.scalar(True)
        for column in table.column_names:
            if column not in nullable and column not in ("run_id", "wait_us", "keys"):
                mask = pc.and_(mask, pc.is_valid(table.column(column)))
            if column in _TIMES:
                is_nonnegative = pc.greater_equal(table.column(column), 0)
                is_beyond_range = pc.greater(table.column(column), LATEST_US)
                in_range = pc.fill_null(
                    pc.and_not(is_nonnegative, is_beyond_range), column in nullable
                )
                mask = pc.and_(mask, in_range)
        if name == "operations":
            is_ordered = pc.greater_equal(table.column("end_us"), table.column("start_us"))
            mask = pc.and_(mask, pc.fill_null(is_ordered, False))
        if isinstance(mask, pa.Scalar):
            return table
        valid_rows = table.filter(mask)
        if valid_rows.num_rows < table.num_rows:
            dropped = table.num_rows - valid_rows.num_rows
            rows, verb = ("row", "is") if dropped == 1 else ("rows", "are")
            self.notes.append(f"{dropped:,} {rows} of {name} that can't be right {verb} left out.")
        return valid_rows


_KINDS: Mapping[str, Mapping[str, str]] = {**TABLES, CHANGES: CHANGE_COLUMNS}


def has_json(folder: Path) -> bool:
    """Return whether any table of a trace is in lines of JSON."""
    return any(json_files(folder, table) for table in _KINDS)


def read_json_tables(folder: Path, table: str, notes: list[str]) -> list[pa.Table]:
    """Return a table's rows from lines of JSON, with the schema's columns.

    Args:
        folder: that of the trace.
        table: its name.
        notes: receives the parts that are left out, and why.
    """
    kinds = _KINDS[table]
    sources = {name: Source(name, is_time=name.endswith("_us")) for name in kinds}
    reader = JsonLines(kinds, sources)
    tables = []
    for path in json_files(folder, table):
        try:
            tables += _valid_lines(reader, Path(str(path)), notes)
        except (OSError, EOFError, zlib.error) as error:
            notes.append(f"{path.name} is left out: {error}")
    schema = pa.schema([(name, ARROW_KINDS[kind]) for name, kind in kinds.items()])
    return [part.select(list(kinds)).cast(schema) for part in tables]


def _valid_lines(reader: JsonLines, path: Path, notes: list[str]) -> list[pa.Table]:
    tables: list[pa.Table] = []
    dropped, first = 0, ""
    for block in reader.blocks(path):
        columns = block.columns
        mask = pc.and_(pc.invert(columns["_torn"]), pc.is_null(columns["_wrong"]))
        valid_rows = columns.filter(mask)
        if valid_rows.num_rows < columns.num_rows:
            if not dropped:
                first = _reason(columns.filter(pc.invert(mask)))
            dropped += columns.num_rows - valid_rows.num_rows
        tables.append(valid_rows)
    if dropped:
        lines, verb = ("line", "is") if dropped == 1 else ("lines", "are")
        notes.append(
            f"{path.name}: {dropped:,} {lines} that can't be read {verb} left out: {first}."
        )
    return tables


def _reason(rejected: pa.Table) -> str:
    row = rejected.slice(0, 1).select(["_line", "_torn", "_wrong", "_value"]).to_pylist()[0]
    description = "is no JSON object"
    if not row["_torn"]:
        description = f'has a {row["_wrong"]} of another type, "{row["_value"][:_MOST_SHOWN]}"'
    return f"line {row['_line']:,} {description}"


Keys: TypeAlias = Any
"""An Arrow column of lists of texts."""


class ParkedOperations(NamedTuple):
    """Parked operations by their start; ``clock_ms`` as in the table `changes`."""

    time_us: Ints
    ids: Ints
    broker: Ints
    purgatory: Names
    kind: Names
    keys: Keys
    due_ms: Ints
    clock_ms: Ints


class CompletedOperations(NamedTuple):
    """Settled operations by their end; ``parked``: the index among the parked ones, or -1."""

    time_us: Ints
    ids: Ints
    broker: Ints
    purgatory: Names
    kind: Names
    keys: Keys
    outcome: Names
    wait_us: Ints
    parked: Ints


def keys_at(keys: Keys, row: int) -> list[str]:
    """Return the keys of a row; an empty list if they are unknown."""
    return [key for key in keys[row].as_py() or () if key is not None]


def split_operations(
    operations: pa.Table, changes: pa.Table
) -> tuple[ParkedOperations, CompletedOperations, Ints]:
    """Return the parked and the completed operations of a trace with the table `changes`.

    Returns:
        Both, and for each row of `changes` the index of its parked operation, or -1.
    """
    is_parked = pc.equal(changes.column("change"), rows.PARKED)
    parked = changes.filter(is_parked)
    numbers = parked.column("number")
    waiting = ParkedOperations(
        ints(parked.column("time_us")),
        ints(numbers),
        ints(parked.column("broker")),
        names(parked.column("name")),
        names(parked.column("state")),
        parked.column("names").combine_chunks(),
        ints(parked.column("due_ms")),
        ints(parked.column("clock_ms")),
    )
    operation_index = pc.index_in(changes.column("number"), value_set=numbers.combine_chunks())
    operation_index = pc.if_else(is_parked, operation_index, pa.scalar(None, pa.int32()))
    completed = _sort_by_end(operations)
    indices = pc.index_in(completed.column("operation"), value_set=numbers.combine_chunks())
    return (
        waiting,
        _completed_operations(completed, completed.column("operation"), ints(indices)),
        ints(operation_index),
    )


def add_parked_rows(operations: pa.Table, changes: pa.Table) -> pa.Table:
    """Return the table `changes` of a real-time run, with a row for each parked operation.

    The trace has such rows only for operations that never completed; `operations` has the others.
    """
    waited = operations.filter(_has_waited(operations))
    start_us, timeout_ms = ints(waited.column("start_us")), ints(waited.column("timeout_ms"))
    deadlines = [due_ms(*row) for row in zip(start_us, timeout_ms, strict=True)]
    nothing = pa.nulls(waited.num_rows)
    columns = {
        "time_us": waited.column("start_us"),
        "change": pa.array([rows.PARKED] * waited.num_rows, pa.string()),
        "broker": waited.column("broker"),
        "name": waited.column("purgatory"),
        "number": waited.column("operation"),
        "state": waited.column("kind"),
        "due_ms": pa.array(deadlines, pa.int64()),
        "names": waited.column("watch_keys"),
    }
    parked = pa.table(
        {
            field.name: pa.chunked_array([columns.get(field.name, nothing)])
            if not isinstance(columns.get(field.name), pa.ChunkedArray)
            else columns[field.name]
            for field in changes.schema
        }
    ).cast(changes.schema)
    return _sort_by(pa.concat_tables([changes, parked]), "time_us")


def _has_waited(operations: pa.Table) -> pa.ChunkedArray:
    return pc.and_(
        pc.not_equal(operations.column("outcome"), "immediate"),
        pc.greater(operations.column("end_us"), operations.column("start_us")),
    )


def operations_without_changes(
    operations: pa.Table,
) -> tuple[ParkedOperations, CompletedOperations]:
    """Return the parked and the completed operations of a trace without the table `changes`.

    An operation is due at its timeout: a real broker's timer may have another origin.
    """
    row_numbers = pa.chunked_array([pa.array(range(operations.num_rows), pa.int64())])
    operations = operations.append_column("row", row_numbers)
    parked = operations.filter(_has_waited(operations))
    parked = parked.take(pc.sort_indices(parked, [("start_us", "ascending")]))
    start_us = ints(parked.column("start_us"))
    timeout_ms = ints(parked.column("timeout_ms"))
    deadlines = array("q", (_due_ms(*row) for row in zip(start_us, timeout_ms, strict=True)))
    waiting = ParkedOperations(
        start_us,
        ints(parked.column("row")),
        ints(parked.column("broker")),
        names(parked.column("purgatory")),
        names(parked.column("kind")),
        parked.column("watch_keys").combine_chunks(),
        deadlines,
        array("q", [-1]) * len(start_us),
    )
    completed = _sort_by_end(operations)
    indices = pc.index_in(completed.column("row"), value_set=parked.column("row").combine_chunks())
    return waiting, _completed_operations(completed, completed.column("row"), ints(indices))


def _due_ms(start_us: int, timeout_ms: int) -> int:
    deadlines = due_ms(start_us, timeout_ms)
    return NULL if deadlines is None else deadlines


def _sort_by_end(operations: pa.Table) -> pa.Table:
    completed = operations.filter(pc.not_equal(operations.column("outcome"), "pending"))
    return _sort_by(completed, "end_us")


def _sort_by(table: pa.Table, column: str) -> pa.Table:
    """Sort a table by a column, stably."""
    rank = pa.array(range(table.num_rows), pa.int64())
    keyed = table.append_column("rank", pa.chunked_array([rank]))
    order = pc.sort_indices(keyed, [(column, "ascending"), ("rank", "ascending")])
    return table.take(order)


def _completed_operations(
    completed: pa.Table, ids: pa.ChunkedArray, parked: Ints
) -> CompletedOperations:
    wait_us = pc.subtract(completed.column("end_us"), completed.column("start_us"))
    return CompletedOperations(
        ints(completed.column("end_us")),
        ints(ids),
        ints(completed.column("broker")),
        names(completed.column("purgatory")),
        names(completed.column("kind")),
        completed.column("watch_keys").combine_chunks(),
        names(completed.column("outcome")),
        ints(wait_us),
        parked,
    )
