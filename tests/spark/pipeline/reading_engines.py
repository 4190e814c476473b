"""Both engines that read traces, and their results as plain rows: one test holds for both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
from pyspark.sql import SparkSession

from purgatory.pipeline.ingest.column_mapping import ColumnMapping, parse_mapping, read_mapping
from purgatory.pipeline.ingest.duckdb_reader import read_tables, require_none
from purgatory.pipeline.ingest.spark_copies import with_copies
from purgatory.pipeline.ingest.spark_reader import TableRows, check_rows, read_traces, trace_tables
from purgatory.pipeline.ingest.trace_set import read_trace_set
from purgatory.pipeline.result_rows import Row
from purgatory.pipeline.signals import working_folder
from purgatory.trace.trace_schema import TABLES

Rows = list[dict[str, Any]]
Given = Path | Mapping[str, Any] | None


@dataclass(frozen=True)
class FoundRows:
    """The rows that an engine read of some traces.

    `quarantine` is in the order of file and line, `counts` of table and reason; `complete` has a
    truth value for each run, `left_out` the first bad row of each run, table and reason.
    """

    rows: Callable[[str], Rows]
    quarantine: Rows
    counts: Sequence[Row]
    complete: Mapping[str, bool]
    left_out: Sequence[Row]


class ReadingEngine(ABC):
    """Reads traces."""

    @abstractmethod
    def read(
        self, paths: Path | Sequence[Path], mapping: Given = None, *, strict: bool = False
    ) -> FoundRows:
        """All rows of some traces; strict, TraceError for the first that is bad."""


@dataclass(frozen=True)
class ReadingSpark(ReadingEngine):
    """PySpark in a session."""

    session: SparkSession

    def read(
        self, paths: Path | Sequence[Path], mapping: Given = None, *, strict: bool = False
    ) -> FoundRows:
        roots, read = _asked(paths, mapping)
        trace_set = read_trace_set(roots, read, strict=strict)
        if strict:
            read_traces(self.session, paths, mapping, strict=True)
        with working_folder("csv-") as folder:
            copied = with_copies(trace_set, folder)
            table_rows = {name: TableRows(self.session, copied.traces, name) for name in TABLES}
            found = trace_tables(self.session, copied, table_rows)
            check = check_rows(self.session, copied, table_rows)
            rows = {name: getattr(found, name).toArrow().to_pylist() for name in TABLES}
            return FoundRows(
                lambda table: rows[table],
                sorted(found.quarantine.toArrow().to_pylist(), key=_place),
                check.counts(),
                {trace.run_id: trace.complete for trace in copied.traces},
                check.left_out(),
            )


class ReadingDuckdb(ReadingEngine):
    """DuckDB in memory."""

    def read(
        self, paths: Path | Sequence[Path], mapping: Given = None, *, strict: bool = False
    ) -> FoundRows:
        found = read_trace_set(*_asked(paths, mapping), strict=strict)
        connection = duckdb.connect()
        tables = read_tables(connection, found)
        if strict:
            require_none(connection)

        def rows(table: str) -> Rows:
            listed: Rows = connection.table(table).arrow().read_all().to_pylist()
            return listed

        complete = {trace.run_id: trace.complete for trace in found.traces}
        return FoundRows(
            rows,
            sorted(rows("quarantine"), key=_place),
            tables.counts(),
            complete,
            tables.left_out(),
        )


def _asked(
    paths: Path | Sequence[Path], mapping: Given
) -> tuple[Sequence[Path], ColumnMapping | None]:
    """The arguments of `read_trace_set`."""
    roots = [paths] if isinstance(paths, Path) else paths
    if mapping is None:
        return roots, None
    return roots, read_mapping(mapping) if isinstance(mapping, Path) else parse_mapping(mapping)


def _place(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["file"], row["line"] or 0
