"""The tables of a trace that are lines of JSON: found and read as the jobs find and read them.

A line that is torn, or has a value of another type, is left out and told of.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from purgatory.pipeline.ingest.column_mapping import Source
from purgatory.pipeline.ingest.json_lines import ARROW_KINDS, JsonLines
from purgatory.pipeline.ingest.trace_files import json_files
from purgatory.trace.change_rows import CHANGE_COLUMNS, CHANGES
from purgatory.trace.trace_schema import TABLES

_KINDS: Mapping[str, Mapping[str, str]] = {**TABLES, CHANGES: CHANGE_COLUMNS}


def has_json(folder: Path) -> bool:
    """Return whether any table of a trace is in lines of JSON."""
    return any(json_files(folder, table) for table in _KINDS)


def read_json_tables(folder: Path, table: str, notes: list[str]) -> list[pa.Table]:
    """Return the rows that lines of JSON have of a table, with the schema's columns.

    Args:
        folder: of the trace.
        table: its name.
        notes: takes what is left out, and why.
    """
    kinds = _KINDS[table]
    reader = JsonLines(kinds, {name: Source(name) for name in kinds})
    found = []
    for path in json_files(folder, table):
        try:
            found += _sound_lines(reader, Path(str(path)), notes)
        except (OSError, EOFError, zlib.error) as error:
            notes.append(f"{path.name} is left out: {error}")
    schema = pa.schema([(name, ARROW_KINDS[kind]) for name, kind in kinds.items()])
    return [one.select(list(kinds)).cast(schema) for one in found]


def _sound_lines(reader: JsonLines, path: Path, notes: list[str]) -> list[pa.Table]:
    tables: list[pa.Table] = []
    left, first = 0, ""
    for block in reader.blocks(path):
        columns = block.columns
        sound = pc.and_(pc.invert(columns["_torn"]), pc.is_null(columns["_wrong"]))
        kept = columns.filter(sound)
        if kept.num_rows < columns.num_rows:
            if not left:
                first = _why(columns.filter(pc.invert(sound)))
            left += columns.num_rows - kept.num_rows
        tables.append(kept)
    if left:
        lines, are = ("line", "is") if left == 1 else ("lines", "are")
        notes.append(f"{path.name}: {left:,} {lines} that can't be read {are} left out: {first}.")
    return tables


def _why(bad: pa.Table) -> str:
    row = bad.slice(0, 1).select(["_line", "_torn", "_wrong"]).to_pylist()[0]
    what = "is no JSON object" if row["_torn"] else f"has a {row['_wrong']} of another type"
    return f"line {row['_line']:,} {what}"
