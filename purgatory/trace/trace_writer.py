"""The trace of a run as Parquet, schema version 3 (described in `docs/traces.md`).

A trace is a folder: `run.json`, and one folder of numbered parts for each table; an optional table
has one once it has a row. Rows are written as they come, so that memory holds a row group and no
more. A part has a temporary name until it is finished; `run.json` has `"complete": false` from the
start until everything is written. A reader can therefore distinguish a whole trace from an
interrupted one, and never meets half a part.

The bytes of a trace do not depend on the machine or the moment: the same seed gives the same ones
(with the same version of pyarrow, which writes its version into each file).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.trace.change_rows import CHANGE_COLUMNS, CHANGE_NULLABLE, CHANGES, ChangeRow
from purgatory.trace.table_rows import (
    ROWS,
    CommitRow,
    OperationRow,
    ReadRow,
    SendRow,
    TransactionRow,
)
from purgatory.trace.trace_schema import (
    NULLABLE,
    REQUIRED_TABLES,
    RUN_FILE,
    SCHEMA_VERSION,
    TABLES,
)

ROWS_PER_PART = 250_000
ROWS_PER_GROUP = 50_000

_UNFINISHED = ".part"

_ARROW_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "array<string>": pa.list_(pa.field("element", pa.string(), nullable=False)),
}


def arrow_schema(table: str) -> pa.Schema:
    """Return the schema of one of the tables as Arrow has it."""
    columns, nullable = CHANGE_COLUMNS, CHANGE_NULLABLE
    if table != CHANGES:
        columns, nullable = TABLES[table], NULLABLE[table]
    return pa.schema(
        [
            pa.field(name, _ARROW_TYPES[kind], nullable=name in nullable)
            for name, kind in columns.items()
        ]
    )


class TraceError(ValueError):
    """A trace folder that cannot be written. The text names it and what would be right."""


def _list_array(column: Sequence[tuple[object, ...] | None], kind: pa.ListType) -> pa.Array:
    """Lists of names, given as tuples of what has them: each different list is made once."""
    offsets: dict[tuple[object, ...], int] = {}
    indices = [
        None if names is None else offsets.setdefault(names, len(offsets)) for names in column
    ]
    distinct = pa.array([[str(name) for name in names] for names in offsets], kind)
    return distinct.take(pa.array(indices, pa.int32()))


class TableWriter:
    """One table of a trace: rows are gathered and written group by group, part by part.

    Rows have the columns of the schema in its order, without the leading `run_id`.
    """

    def __init__(self, folder: Path, table: str, run_id: str) -> None:
        self.rows = 0
        self.parts = 0
        self._folder = folder
        self._schema = arrow_schema(table)
        self._run_id = run_id
        self._gathered: list[tuple[object, ...]] = []
        self._writer: pq.ParquetWriter | None = None
        self._rows_in_part = 0
        folder.mkdir(parents=True)

    def add(self, row: tuple[object, ...]) -> None:
        """Add one row. O(1), and once per `ROWS_PER_GROUP` rows the writing of a group."""
        gathered = self._gathered
        gathered.append(row)
        if len(gathered) >= ROWS_PER_GROUP:
            self._write_group()

    def close(self) -> None:
        """Write what is gathered and finish the last part. A table without rows gets one part."""
        if self._gathered or not self.parts:
            self._write_group()
        self._finish_part()

    def _part_path(self, suffix: str = "") -> Path:
        return self._folder / f"part-{self.parts:05}.parquet{suffix}"

    def _write_group(self) -> None:
        rows, self._gathered = self._gathered, []
        columns: list[tuple[Any, ...]] = [(self._run_id,) * len(rows)]
        columns += zip(*rows, strict=True) if rows else [()] * (len(self._schema) - 1)
        arrays = [
            _list_array(column, field.type)
            if pa.types.is_list(field.type)
            else pa.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._part_path(_UNFINISHED),
                self._schema,
                compression="zstd",
                compression_level=3,
                version="2.6",
                data_page_version="1.0",
                use_dictionary=True,
            )
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        self.rows += len(rows)
        self._rows_in_part += len(rows)
        if self._rows_in_part >= ROWS_PER_PART:
            self._finish_part()

    def _finish_part(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        os.replace(self._part_path(_UNFINISHED), self._part_path())
        self.parts += 1
        self._rows_in_part = 0


class TraceWriter:
    """Writes one run's trace.

    Args:
        folder: the trace's folder; made here.
        run_id, scenario, seed: the names of the run.
        overwrite: replace an existing trace. A folder that contains anything other than a trace is
            never touched.
        faults: the injected faults, for the head of the trace.
        producers, consumers: the configuration of each group, for the head of the trace: the
            settings that decide which anomalies of order and duplicates are permitted.
        timer: `tick_ms` and `wheel_size` of the brokers' timers, for the head of the trace.
        observed: whether brokers or a proxy, rather than clients, wrote the rows, for the head of
            the trace.

    Raises:
        TraceError: the folder exists and may not be replaced, or cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        *,
        run_id: str,
        scenario: str,
        seed: int,
        overwrite: bool = False,
        faults: Sequence[Mapping[str, Any]] = (),
        producers: Sequence[Mapping[str, Any]] = (),
        consumers: Sequence[Mapping[str, Any]] = (),
        timer: Mapping[str, int] | None = None,
        observed: bool = False,
    ) -> None:
        try:
            _make_room(folder, overwrite)
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TraceError(f"{folder}: cannot be made: {error.strerror}") from error
        self.folder = folder
        self._run_id = run_id
        self._head = {
            "schema_version": SCHEMA_VERSION,
            "run_id": run_id,
            "scenario": scenario,
            "seed": seed,
            "faults": list(faults),
            "producers": list(producers),
            "consumers": list(consumers),
            **({} if timer is None else {"timer": dict(timer)}),
            **({"observed": True} if observed else {}),
        }
        self._write_run({"complete": False, "started": 0, "duration_ms": 0, "tables": {}})
        self._tables = {
            table: TableWriter(folder / table, table, run_id) for table in REQUIRED_TABLES
        }
        # Not methods: a simulation adds millions of rows.
        self.operation: Callable[[OperationRow], None] = self._tables["operations"].add
        self.send: Callable[[SendRow], None] = self._tables["sends"].add
        self.read: Callable[[ReadRow], None] = self._tables["reads"].add

    def commit(self, row: CommitRow) -> None:
        """Add a row of commits."""
        self._optional("commits").add(row)

    def transaction(self, row: TransactionRow) -> None:
        """Add a row of transactions."""
        self._optional("transactions").add(row)

    def change(self, row: ChangeRow) -> None:
        """Add a row of changes."""
        (self._tables.get(CHANGES) or self._optional(CHANGES)).add(row)

    def _optional(self, table: str) -> TableWriter:
        """A table that a trace has if it has rows of it."""
        writer = self._tables.get(table)
        if writer is None:
            writer = TableWriter(self.folder / table, table, self._run_id)
            self._tables[table] = writer
        return writer

    def finish(self, duration_ms: int, summary: Mapping[str, Any]) -> None:
        """Finish all parts and mark the trace complete."""
        for table in self._tables.values():
            table.close()
        self._write_end(duration_ms, summary, complete=True)

    def abandon(self, duration_ms: int, reason: str) -> None:
        """Finish the parts with what there is, and leave the trace marked incomplete."""
        try:
            for table in self._tables.values():
                table.close()
        finally:
            self._write_end(duration_ms, {}, complete=False, reason=reason)

    def rows(self) -> dict[str, int]:
        """The number of rows of each table by now, without those that are only buffered."""
        return {name: table.rows for name, table in self._tables.items()}

    def _write_end(
        self, duration_ms: int, summary: Mapping[str, Any], *, complete: bool, **more: Any
    ) -> None:
        tables = {
            name: {"parts": table.parts, "rows": table.rows} for name, table in self._tables.items()
        }
        document = {"complete": complete, "started": 0, "duration_ms": duration_ms}
        self._write_run({**document, **more, "tables": tables, "summary": summary})

    def _write_run(self, document: Mapping[str, Any]) -> None:
        path = self.folder / RUN_FILE
        temporary = path.with_suffix(".json" + _UNFINISHED)
        text = json.dumps({**self._head, **document}, indent=2, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")
        os.replace(temporary, path)


def _make_room(folder: Path, overwrite: bool) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise TraceError(f"{folder}: is a file; give the name of a folder to be made")
    entries = {entry.name for entry in folder.iterdir()}
    if not entries:
        return
    own_files = {RUN_FILE, RUN_FILE + _UNFINISHED, CHANGES, *ROWS}
    if not overwrite:
        raise TraceError(f"{folder}: is not empty; name another folder, or --overwrite it")
    if RUN_FILE not in entries or not entries <= own_files:
        foreign = ", ".join(sorted(entries - own_files)) or "no run.json"
        raise TraceError(f"{folder}: is no trace ({foreign}), so it is not overwritten")
    shutil.rmtree(folder)
