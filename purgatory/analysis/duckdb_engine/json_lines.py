"""Lines of JSON as columns: those that are plain by Arrow's parser, the others by `json_cells`.

Arrow reads a piece of a file many times as fast as Python does, and stops at anything that is not
plain. What it takes and Spark does not is looked for before: a half is tried again, down to a few
lines, which `json_cells` takes one by one.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from purgatory.analysis.duckdb_engine.json_cells import MOST_DEEP, JsonCells
from purgatory.analysis.traces.column_mapping import Source

_BLOCK_BYTES = 8 << 20
_PARSED_BYTES = 4 << 20
_FEW_LINES = 256
_BLANKS = b" \t\r"
_BOM = b"\xef\xbb\xbf"
_NO_NUMBERS = (b"NaN", b"Inf")
"""What Arrow takes although it is not JSON."""
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half a character, or one of two halves."""
_LONG = re.compile(rb"[-+.0-9eE]{900}")

ARROW_KINDS = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "array<string>": pa.list_(pa.string()),
}


@dataclass(frozen=True)
class Block:
    """Some lines of a file: their columns with `_line`, `_torn` and `_wrong`, and their text."""

    columns: pa.Table
    first: int
    lines: Sequence[bytes]

    def contents(self, lines: Sequence[int]) -> list[str]:
        """The texts of lines, by their numbers in the file."""
        return [self.lines[line - self.first].decode("utf-8", "replace") for line in lines]


class JsonLines:
    """Reads files of lines of JSON, for one table.

    Args:
        kinds: the columns and their types in Spark's words.
        sources: the fields that they come from; those with a constant are left null.
    """

    def __init__(self, kinds: Mapping[str, str], sources: Mapping[str, Source]) -> None:
        self._cells = JsonCells(kinds, sources)
        self._schema = pa.schema(
            [
                (name, pa.string() if sources[name].takes_texts else ARROW_KINDS[kind])
                for name, kind in kinds.items()
            ]
        )
        self._fields = [source.name for source in sources.values()]
        named = {source.name: name for name, source in sources.items() if source.name is not None}
        texts = {field: self._schema.field(name).type for field, name in named.items()}
        numbers = {
            field: ARROW_KINDS[kinds[name]] if sources[name].values is None else pa.string()
            for field, name in named.items()
        }
        self._plain = len(named) == sum(name is not None for name in self._fields) and not any(
            source.scaled for source in sources.values()
        )
        # Ids are all numbers, or all texts; what fitted the last lines is tried first.
        self._options = [
            pj.ParseOptions(
                explicit_schema=pa.schema(list(fields.items())), unexpected_field_behavior="ignore"
            )
            for fields in (numbers, texts)
        ]

    def blocks(self, path: Path) -> Iterator[Block]:
        """The lines of a file, which is read in pieces; empty lines are no rows."""
        first = 1
        for lines in _line_blocks(path):
            stripped = [line.strip(_BLANKS) for line in lines]
            numbers = [number for number, line in enumerate(stripped, first) if line]
            if numbers:
                kept = [line for line in stripped if line]
                columns = pa.concat_tables(list(self._tables(kept)))
                columns = columns.append_column("_line", pa.array(numbers, pa.int64()))
                yield Block(columns, first, lines)
            first += len(lines)

    def _tables(self, lines: Sequence[bytes]) -> Iterator[pa.Table]:
        columns = self._plain_columns(lines) if self._plain else None
        if columns is not None:
            torn = pa.repeat(pa.scalar(False), len(lines))
            wrong = pa.nulls(len(lines), pa.string())
            table = pa.Table.from_arrays(columns, schema=self._schema)
            yield table.append_column("_torn", torn).append_column("_wrong", wrong)
        elif self._plain and len(lines) > _FEW_LINES:
            half = len(lines) // 2
            yield from self._tables(lines[:half])
            yield from self._tables(lines[half:])
        else:
            yield self._judged(lines)

    def _plain_columns(self, lines: Sequence[bytes]) -> list[pa.ChunkedArray] | None:
        """The columns of lines, each of which is one object with values of the right types.

        A line is one object if it starts and ends as one, and there are as many objects as lines:
        in no object, an end in a line is followed by a start in the next.
        """
        text = b"\n".join(lines)
        if not _may_be_plain(lines, text):
            return None
        table = self._parsed(text)
        if table is None or len(table) != len(lines):
            return None
        return [
            pa.chunked_array([pa.nulls(len(lines), kind)])
            if name is None
            else table[name].cast(kind)
            for name, kind in zip(self._fields, self._schema.types, strict=True)
        ]

    def _parsed(self, text: bytes) -> pa.Table | None:
        try:
            text.decode("utf-8")
        except UnicodeDecodeError:
            return None
        for options in self._options:
            reading = pj.ReadOptions(block_size=_PARSED_BYTES)
            with suppress(pa.ArrowException):
                table = pj.read_json(pa.BufferReader(text), reading, options)
                self._options.sort(key=lambda one: one is not options)
                return table
        return None

    def _judged(self, lines: Sequence[bytes]) -> pa.Table:
        rows: list[list[Any] | None] = []
        wrongs: list[str | None] = []
        for line in lines:
            values, wrong = self._cells.of_line(line)
            rows.append(values)
            wrongs.append(wrong)
        none = [None] * len(self._schema)
        listed = zip(*(none if row is None else row for row in rows), strict=True)
        columns = [
            pa.array(values, kind) for values, kind in zip(listed, self._schema.types, strict=True)
        ]
        torn = pa.array([row is None for row in rows], pa.bool_())
        table = pa.Table.from_arrays(columns, schema=self._schema)
        table = table.append_column("_torn", torn)
        return table.append_column("_wrong", pa.array(wrongs, pa.string()))


def _may_be_plain(lines: Sequence[bytes], text: bytes) -> bool:
    if not (text[:1] == b"{" and text[-1:] == b"}" and text.count(b"}\n{") == len(lines) - 1):
        return False
    if any(word in text for word in _NO_NUMBERS) or (b"\\u" in text and _HALF.search(text)):
        return False
    return max(map(len, lines)) < MOST_DEEP or not any(map(_may_exceed, lines))


def _may_exceed(line: bytes) -> bool:
    """Whether a line may have more digits in a number, or be deeper, than is read."""
    brackets = line.count(b"{") + line.count(b"[")
    return len(line) >= MOST_DEEP and (brackets >= MOST_DEEP or _LONG.search(line) is not None)


def _line_blocks(path: Path) -> Iterator[list[bytes]]:
    """All lines of a file, in pieces of some megabytes."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        begun = [file.read(_BLOCK_BYTES).removeprefix(_BOM)]
        while block := file.read(_BLOCK_BYTES):
            head, newline, tail = block.rpartition(b"\n")
            if newline:
                yield b"".join([*begun, head]).split(b"\n")
                begun = []
            begun.append(tail)
        yield b"".join(begun).split(b"\n")
