"""The files of a trace's tables: which there are, and what their own heads tell.

Of Parquet, the footer tells the rows and the columns' types. Lines of JSON tell nothing before they
are read; compressed ones are read through once, so that a torn file is known before Spark meets it.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.analysis.errors import TraceError
from purgatory.analysis.traces.column_mapping import Source
from purgatory.analysis.uris.listed_path import TracePath
from purgatory.trace.trace_schema import DERIVED, NULLABLE, TABLES

JSON_ENDINGS = (".jsonl", ".jsonl.gz")
UNFINISHED = ".parquet.part"
_PARTS = "part-*.parquet"
_CHUNK_BYTES = 1 << 20

_WHOLE = ("tinyint", "smallint", "int", "bigint", "decimal(20,0)")
_SPARK_KINDS = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "uint8": "smallint",
    "uint16": "int",
    "uint32": "bigint",
    "uint64": "decimal(20,0)",
    "float": "float",
    "double": "double",
    "large_string": "string",
    "bool": "boolean",
}


@dataclass(frozen=True)
class Part:
    """A file of one table.

    `rows` is None where only reading tells. `kinds` are the columns that are read and their types
    in Spark's words, in order; None for lines of JSON. `twin` is a column that has the name of one
    that is read but for upper and lower case. `copy` is where it was copied to from a store.
    """

    path: TracePath
    rows: int | None
    kinds: tuple[tuple[str, str], ...] | None
    twin: str | None = None
    copy: Path | None = None

    @property
    def here(self) -> Path:
        """Where this machine has it."""
        return Path(str(self.path)) if self.copy is None else self.copy


class PartError(TraceError):
    """A file that is left out as a whole: the reason, and how many rows that concerns, if known."""

    def __init__(self, message: str, reason: str, rows: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.rows = rows


def json_files(folder: TracePath, table: str) -> list[TracePath]:
    """The lines of JSON of one table: a file of its name, and files in a folder of its name."""
    named = [folder / (table + ending) for ending in JSON_ENDINGS]
    parts = [path for ending in JSON_ENDINGS for path in (folder / table).glob("*" + ending)]
    return _in_order(path for path in [*named, *parts] if path.is_file())


def parquet_files(folder: TracePath, table: str) -> list[TracePath]:
    """The finished parts of one table."""
    return _in_order((folder / table).glob(_PARTS))


def unfinished_files(folder: TracePath, table: str) -> list[TracePath]:
    """What an interrupted writer left of one table: parts that have no footer yet."""
    return _in_order((folder / table).glob("*" + UNFINISHED))


def _in_order(paths: Iterable[TracePath]) -> list[TracePath]:
    return sorted(paths, key=str)


def read_part(path: TracePath, table: str, sources: Mapping[str, Source]) -> Part:
    """What can be told of a file before its rows are read. O(1) for Parquet.

    Raises:
        PartError: none of it can be read.
    """
    if path.name.endswith(JSON_ENDINGS):
        _check_compression(path)
        return Part(path, None, None)
    try:
        with (
            nullcontext(path) if isinstance(path, Path) else path.open("rb") as content,
            pq.ParquetFile(content) as file,
        ):
            schema: pa.Schema = file.schema_arrow
            rows: int = file.metadata.num_rows
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise PartError(f"{path}: can't be read as Parquet: {reason}", "torn file") from error
    found = {column.name: _spark_kind(column.type) for column in schema}
    return part_of(path, table, sources, found, rows)


def part_of(
    path: TracePath,
    table: str,
    sources: Mapping[str, Source],
    found: Mapping[str, str],
    rows: int | None,
) -> Part:
    """A file, or a table of a catalog, by the columns that were found and their types.

    Raises:
        PartError: a column is missing, or of another type.
    """
    kinds: dict[str, str] = {}
    for column, kind in TABLES[table].items():
        source = sources[column]
        if source.name is None:
            continue
        if source.name in found:
            _check_kind(path, source, kind, found[source.name], rows)
            kinds[source.name] = found[source.name]
        elif not (column in NULLABLE[table] or column in DERIVED.get(table, {})):
            raise PartError(
                f"{path}: the column {source.name!r} ({kind}) is missing", "missing column", rows
            )
    folded = {name.lower() for name in kinds}
    twin = next((name for name in found if name not in kinds and name.lower() in folded), None)
    return Part(path, rows, tuple(kinds.items()), twin)


def _check_kind(path: TracePath, source: Source, kind: str, found: str, rows: int | None) -> None:
    right = found == kind or (source.takes_texts and found == "string")
    if source.values is not None:
        right = right or found in (*_WHOLE, "boolean")
    elif kind in _WHOLE:
        number = found.startswith("decimal") or found in ("float", "double")
        right = right or found in _WHOLE or (source.scaled and number)
    if not right:
        raise PartError(
            f"{path}: the column {source.name!r} must be {kind}, and is {found}", "wrong type", rows
        )


def _spark_kind(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return _spark_kind(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{_spark_kind(kind.value_type)}>"
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _SPARK_KINDS.get(str(kind), str(kind))


def _check_compression(path: TracePath) -> None:
    try:
        if not path.name.endswith(".gz"):
            with path.open("rb"):
                return
        if not isinstance(path, Path):
            path.check_gzip()
            return
        with gzip.open(path) as file:
            while file.read(_CHUNK_BYTES):
                pass
    except (OSError, EOFError, zlib.error) as error:
        raise PartError(f"{path}: can't be read: {error}", "torn file") from error
