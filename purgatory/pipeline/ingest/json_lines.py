"""Lines of JSON as columns of a table: Arrow's parser reads most, Python's a few odd lines.

Arrow reads a piece of a file many times as fast as Python does, and stops at any line that is not
plain. The halves of the piece are tried again, down to a few lines, which `JsonCells` reads one by
one: it takes numbers in quotes, and names the column of a wrong type. Lines that neither parser
reads are torn.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.json as pj

from purgatory.pipeline.ingest.column_casts import ZEROS
from purgatory.pipeline.ingest.column_mapping import Source
from purgatory.pipeline.ingest.plain_data import CSV_ENDINGS, csv_lines, iso_micros

if TYPE_CHECKING:
    from purgatory.pipeline.ingest.stores import TracePath

_BITS = {"int": 31, "bigint": 63}
_MOST_DIGITS = 1_000
_INTEGER_TEXT = re.compile(r"[\x00-\x20\x7f]*([+-]?[0-9]+)[\x00-\x20\x7f]*")
_ZEROS = re.compile(rf"{ZEROS}\Z")
_WRONG = object()


class _Float(float):
    """A float with its text in the line, by which Spark tells whether it is a whole number."""

    text: str


class JsonCells:
    """The columns of one table from single lines of JSON.

    Args:
        kinds: the columns and their types in Spark's words.
        sources: the fields that they come from; those with a constant are left null. Those that
            take texts give the text of the field, which SQL turns into the value.
    """

    def __init__(self, kinds: Mapping[str, str], sources: Mapping[str, Source]) -> None:
        self._columns = [(name, kind, sources[name]) for name, kind in kinds.items()]
        self._decoder = json.JSONDecoder(
            parse_float=_float, parse_int=_integer, parse_constant=_refuse
        )

    def parse_line(self, line: bytes) -> tuple[list[Any] | None, str | None, str | None]:
        """The values of a line, and the first column whose value is of another type, with that.

        There are no values where the line is not one object in JSON.
        """
        try:
            record = self._decoder.decode(line.decode("utf-8"))
        except (ValueError, RecursionError):
            return None, None, None
        if not isinstance(record, dict):
            return None, None, None
        values, wrong, shown = [], None, None
        for name, kind, source in self._columns:
            field = None if source.name is None else record.get(source.name)
            value = None if field is None else self._cell(field, kind, source)
            if value is _WRONG:
                if wrong is None:
                    wrong, shown = name, _storable(_text(field))
                value = None
            values.append(value)
        return values, wrong, shown

    def _cell(self, value: Any, kind: str, source: Source) -> Any:
        if source.values is not None:
            return _storable(_text(value))
        if source.takes_texts and not isinstance(value, str):
            # An id of any type: SQL takes it as text.
            is_number = isinstance(value, int) and not isinstance(value, bool)
            number = _to_integer(value, 63) if is_number else _WRONG
            return _WRONG if number is _WRONG else str(number)
        if kind == "string" or source.takes_texts:
            return _storable(value) if isinstance(value, str) else _WRONG
        if kind == "boolean":
            return {"true": True, "false": False}.get(_text(value), _WRONG)
        if kind.startswith("array"):
            return self._texts(value)
        if isinstance(value, bool | dict | list):
            return _WRONG
        return _to_time(value) if source.is_time else _to_integer(value, _BITS[kind])

    def _texts(self, value: Any) -> Any:
        """A list of texts, from a list or from the text of one; text behind it is ignored."""
        if isinstance(value, str) and value.startswith("["):
            try:
                value, _ = self._decoder.raw_decode(value)
            except (ValueError, RecursionError):
                return _WRONG
        if not isinstance(value, list):
            return _WRONG
        return [None if item is None else _storable(_text(item)) for item in value]


def _integer(text: str) -> float:
    """A whole number; one with more digits than fit any column is a float."""
    return int(text) if len(text) <= _MOST_DIGITS else float(text)


def _float(text: str) -> float:
    value = _Float(text)
    value.text = text
    return value


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


def _storable(text: str) -> str:
    """A text without halves of characters, each of which becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _to_time(value: Any) -> Any:
    """Microseconds, from a number or a text."""
    number = _to_integer(value, _BITS["bigint"])
    if number is _WRONG and isinstance(value, str):
        micros = iso_micros(value)
        return _WRONG if micros is None else micros
    return number


def _to_integer(value: Any, bits: int) -> Any:
    if isinstance(value, str | _Float):
        text = value if isinstance(value, str) else value.text
        match = _INTEGER_TEXT.fullmatch(_ZEROS.sub("", text))
        value = int(match[1]) if match and len(match[1]) <= _MOST_DIGITS else None
    fits = isinstance(value, int) and -(1 << bits) <= value < 1 << bits
    return value if fits else _WRONG


def _text(value: Any) -> str:
    """A value as text: a text unchanged, any other value in JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, _Float):
        return value.text
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_BLOCK_BYTES = 8 << 20
_PARSED_BYTES = 4 << 20
_FEW_LINES = 256
_BLANKS = b" \t\r"
_BOM = b"\xef\xbb\xbf"
_NO_NUMBERS = (b"NaN", b"Inf")
"""Numbers that Arrow reads although they are not JSON."""
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half a character, or one of two halves."""
_MOST_BRACKETS = 900
"""The number of objects and lists in a line that Python's parser reads at any nesting."""

ARROW_KINDS = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "array<string>": pa.list_(pa.string()),
}


@dataclass(frozen=True)
class Block:
    """Some lines of a file, and their columns.

    With `_line`, `_torn`, `_wrong` (the first column of another type) and its `_value` as text.
    """

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
        self._texts = frozenset(
            source.name
            for name, source in sources.items()
            if source.name is not None and (kinds[name] == "string" or source.values is not None)
        )
        self._times = frozenset(
            source.name
            for source in sources.values()
            if source.name is not None and source.is_time and source.values is None
        )
        self._numbers = frozenset(
            source.name
            for name, source in sources.items()
            if source.name is not None and not source.takes_texts and kinds[name] in _BITS
        )
        name_of_field = {
            source.name: name for name, source in sources.items() if source.name is not None
        }
        texts = {field: self._schema.field(name).type for field, name in name_of_field.items()}
        times = dict.fromkeys(self._times, pa.string())
        numbers = {
            field: ARROW_KINDS[kinds[name]] if sources[name].values is None else pa.string()
            for field, name in name_of_field.items()
        }
        self._plain = len(name_of_field) == sum(name is not None for name in self._fields)
        # Ids are all numbers, or all texts, and so are times; the schema of the last lines is tried
        # first.
        self._options = [
            pj.ParseOptions(
                explicit_schema=pa.schema(list(fields.items())), unexpected_field_behavior="ignore"
            )
            for fields in (numbers, texts, numbers | times, texts | times)[: 4 if times else 2]
        ]

    @property
    def schema(self) -> pa.Schema:
        """That of the columns of a block."""
        added = {"_torn": pa.bool_(), "_wrong": pa.string(), "_value": pa.string()}
        return pa.schema([*self._schema, *added.items(), ("_line", pa.int64())])

    def blocks(self, path: TracePath) -> Iterator[Block]:
        """The lines of a file, which is read in pieces; empty lines are no rows."""
        first = 1
        csv = path.name.endswith(CSV_ENDINGS)
        texts = csv_lines(path, self._texts, self._times, self._numbers) if csv else None
        for lines in texts or _line_blocks(path):
            stripped = [line.strip(_BLANKS) for line in lines]
            numbers = [number for number, line in enumerate(stripped, first) if line]
            if numbers:
                nonempty = [line for line in stripped if line]
                columns = pa.concat_tables(list(self._tables(nonempty)))
                columns = columns.append_column("_line", pa.array(numbers, pa.int64()))
                yield Block(columns, first, lines)
            first += len(lines)

    def _tables(self, lines: Sequence[bytes]) -> Iterator[pa.Table]:
        columns = self._plain_columns(lines) if self._plain else None
        if columns is not None:
            torn = pa.repeat(pa.scalar(False), len(lines))
            none = pa.nulls(len(lines), pa.string())
            table = pa.Table.from_arrays(columns, schema=self._schema).append_column("_torn", torn)
            yield table.append_column("_wrong", none).append_column("_value", none)
        elif self._plain and len(lines) > _FEW_LINES:
            half = len(lines) // 2
            yield from self._tables(lines[:half])
            yield from self._tables(lines[half:])
        else:
            yield self._parse_rows(lines)

    def _plain_columns(self, lines: Sequence[bytes]) -> list[pa.Array | pa.ChunkedArray] | None:
        """The columns of lines, each of which is one object with values of the right types.

        A line is one object if it starts and ends as one, and there are as many objects as lines:
        in no object, an end in a line is followed by a start in the next.
        """
        text = b"\n".join(lines)
        if not _may_be_plain(lines, text):
            return None
        table = self._parse_plain(text)
        if table is None or len(table) != len(lines):
            return None
        columns = []
        for name, kind in zip(self._fields, self._schema.types, strict=True):
            column = pa.nulls(len(lines), kind) if name is None else table[name]
            if name in self._times and column.type == pa.string():
                texts = column.to_pylist()
                values = [None if text is None else _to_time(text) for text in texts]
                if _WRONG in values:
                    return None
                column = pa.array(values, kind)
            columns.append(column.cast(kind))
        return columns

    def _parse_plain(self, text: bytes) -> pa.Table | None:
        try:
            text.decode("utf-8")
        except UnicodeDecodeError:
            return None
        for options in self._options:
            reading = pj.ReadOptions(block_size=_PARSED_BYTES)
            with suppress(pa.ArrowException):
                table = pj.read_json(pa.BufferReader(text), reading, options)
                self._options.sort(key=lambda item: item is not options)
                return table
        return None

    def _parse_rows(self, lines: Sequence[bytes]) -> pa.Table:
        rows: list[list[Any] | None] = []
        wrongs: list[str | None] = []
        shown: list[str | None] = []
        for line in lines:
            values, wrong, value = self._cells.parse_line(line)
            rows.append(values)
            wrongs.append(wrong)
            shown.append(value)
        none = [None] * len(self._schema)
        by_column = zip(*(none if row is None else row for row in rows), strict=True)
        columns = [
            pa.array(values, kind)
            for values, kind in zip(by_column, self._schema.types, strict=True)
        ]
        torn = pa.array([row is None for row in rows], pa.bool_())
        table = pa.Table.from_arrays(columns, schema=self._schema)
        table = table.append_column("_torn", torn)
        table = table.append_column("_wrong", pa.array(wrongs, pa.string()))
        return table.append_column("_value", pa.array(shown, pa.string()))


def _may_be_plain(lines: Sequence[bytes], text: bytes) -> bool:
    if not (text[:1] == b"{" and text[-1:] == b"}" and text.count(b"}\n{") == len(lines) - 1):
        return False
    if any(constant in text for constant in _NO_NUMBERS) or (b"\\u" in text and _HALF.search(text)):
        return False
    return all(
        len(line) < _MOST_BRACKETS or line.count(b"{") + line.count(b"[") < _MOST_BRACKETS
        for line in lines
    )


def _line_blocks(path: TracePath) -> Iterator[list[bytes]]:
    """All lines of a file, in pieces of some megabytes."""
    with path.open("rb") as raw, gzip.open(raw) if path.name.endswith(".gz") else raw as file:
        pieces = [file.read(_BLOCK_BYTES).removeprefix(_BOM)]
        while block := file.read(_BLOCK_BYTES):
            head, newline, tail = block.rpartition(b"\n")
            if newline:
                yield b"".join([*pieces, head]).split(b"\n")
                pieces = []
            pieces.append(tail)
        yield b"".join(pieces).split(b"\n")
