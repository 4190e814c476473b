"""Copies of CSV as Parquet, from which Spark reads the rows that DuckDB's way parses.

A copy has the columns of `json_lines.Block`, and `_content` with the text of each line: the same
rules then hold for its rows on both engines.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.pipeline.errors import SessionError, TraceError
from purgatory.pipeline.ingest.column_mapping import Source, sources_of
from purgatory.pipeline.ingest.json_lines import Block, JsonLines
from purgatory.pipeline.ingest.plain_data import CSV_ENDINGS
from purgatory.pipeline.ingest.trace_files import Part
from purgatory.pipeline.ingest.trace_set import Trace, TraceSet
from purgatory.trace.trace_schema import TABLES

CONTENT = "_content"
"""The column of a copy with the text of each line."""


def has_csv(trace_set: TraceSet, tables: Collection[str] = tuple(TABLES)) -> bool:
    """Whether a file of some tables is CSV without a copy."""
    return any(
        _is_csv(part)
        for trace in trace_set.traces
        for table in tables
        for part in trace.files[table]
    )


def with_copies(
    trace_set: TraceSet, folder: Path, tables: Collection[str] = tuple(TABLES)
) -> TraceSet:
    """The same traces, with a copy in `folder` of each file of CSV of some tables. O(bytes).

    Raises:
        SessionError: there is no room for the copies.
        TraceError: a file can't be read to its end.
    """
    numbers = count(len(list(folder.iterdir())))

    def with_copy(part: Part, table: str, trace: Trace) -> Part:
        if not _is_csv(part):
            return part
        copy = folder / f"{next(numbers)}.parquet"
        _write_copy(part, table, sources_of(table, trace.mapping), copy)
        return replace(part, copy=copy)

    traces = [
        replace(
            trace,
            files={
                table: [with_copy(part, table, trace) for part in parts]
                if table in tables
                else parts
                for table, parts in trace.files.items()
            },
        )
        for trace in trace_set.traces
    ]
    return replace(trace_set, traces=traces)


def _is_csv(part: Part) -> bool:
    return part.copy is None and part.path.name.endswith(CSV_ENDINGS)


def _write_copy(part: Part, table: str, sources: Mapping[str, Source], copy: Path) -> None:
    lines = JsonLines(TABLES[table], sources)
    schema = lines.schema.append(pa.field(CONTENT, pa.string()))
    with pq.ParquetWriter(copy, schema, compression="zstd") as writer:
        blocks = lines.blocks(part.path)
        while (block := _next(blocks, part)) is not None:
            with_text = block.columns.append_column(
                CONTENT, pa.array(block.contents(block.columns["_line"].to_pylist()), pa.string())
            )
            try:
                writer.write_table(with_text)
            except OSError as error:
                with suppress(OSError):
                    copy.unlink()
                raise SessionError(f"{copy}: can't be written: {error.strerror}") from error


def _next(blocks: Iterator[Block], part: Part) -> Block | None:
    try:
        return next(blocks, None)
    except (OSError, EOFError, csv.Error) as error:
        raise TraceError(f"{part.path}: can't be read: {error}") from error
