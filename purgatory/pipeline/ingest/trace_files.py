"""The files of a trace: its head, `run.json`, and the parts of its tables; each checked."""

from __future__ import annotations

import csv
import gzip
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from fnmatch import filter as matching
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.ingest.column_casts import DECIMAL, TIMESTAMP, TIMESTAMP_NANOS
from purgatory.pipeline.ingest.column_mapping import Source
from purgatory.pipeline.ingest.plain_data import CSV_ENDINGS, json_columns, peek_csv
from purgatory.pipeline.ingest.stores import TracePath
from purgatory.trace.trace_schema import DERIVED, NULLABLE, RUN_FILE, TABLES, version_error

T = TypeVar("T")

_SETTINGS: Mapping[str, type] = {
    "group": str,
    "acks": int,
    "idempotence": bool,
    "max_in_flight": int,
    "retries": int,
    "single_writer": bool,
    "assignment": str,
    "isolation": str,
}


@dataclass(frozen=True)
class Fault:
    """An injected fault of a run; fields are None where they don't apply.

    Times are milliseconds since the start of the run; without `duration_ms`, the fault lasted to
    the end.
    """

    kind: str
    at_ms: int
    duration_ms: int | None
    broker: int | None


@dataclass(frozen=True)
class TraceHead:
    """The head of a trace, from `run.json`; without the file, its defaults.

    `tables` has the numbers of parts and rows, or is None where the head has none. `producers`
    and `consumers` are the settings of the groups, or None where they are not known. `seed` is None
    where another program wrote the trace. `observed`: brokers or a proxy wrote it.
    """

    run_id: str
    scenario: str
    seed: int | None
    complete: bool
    duration_ms: int
    faults: Sequence[Fault]
    producers: Sequence[Mapping[str, Any]] | None
    consumers: Sequence[Mapping[str, Any]] | None
    observed: bool
    tables: Mapping[str, Any] | None


class FutureVersionError(TraceError):
    """The head is of a schema version that is not supported."""


def read_head(folder: TracePath, run_id: str, *, written_elsewhere: bool) -> TraceHead:
    """The head of the trace in a folder.

    Args:
        folder: the trace's folder.
        run_id: that of a trace without a head.
        written_elsewhere: another program wrote it, in JSON lines: there may be no head, and a
            head need not have a scenario, a seed, a length or numbers of rows.

    Raises:
        TraceError: the head can't be read, or a field is of a wrong type.
        FutureVersionError: its schema version is unknown.
    """
    path = folder / RUN_FILE
    if written_elsewhere and not path.exists():
        return parse_head({}, run_id, path, written_elsewhere=True)
    return parse_head(_load(path), folder.name, path, written_elsewhere=written_elsewhere)


def parse_head(
    head: Mapping[str, Any], name: str, path: TracePath, *, written_elsewhere: bool
) -> TraceHead:
    """A head from its fields.

    Args:
        head: the fields.
        name: the run's id where they have none.
        path: where they are from.
        written_elsewhere: as `read_head` has it.

    Raises:
        TraceError: a field is of a wrong type.
    """
    if written_elsewhere:
        run_id = head.get("run_id", name)
        head = {"scenario": run_id, "seed": None, "complete": True, "duration_ms": 0, **head}
        head["run_id"] = run_id
    complete = field(head, "complete", bool, path)
    says_tables = "tables" in head or (complete and not written_elsewhere)
    return TraceHead(
        run_id=field(head, "run_id", str, path),
        scenario=field(head, "scenario", str, path),
        seed=None if written_elsewhere and head["seed"] is None else field(head, "seed", int, path),
        complete=complete,
        duration_ms=field(head, "duration_ms", int, path),
        faults=_faults(head, path),
        producers=_settings(head, "producers", path),
        consumers=_settings(head, "consumers", path),
        observed=head.get("observed") is True,
        tables=field(head, "tables", dict, path) if says_tables else None,
    )


def _load(path: TracePath) -> dict[str, Any]:
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(f"{path}: can't be read as JSON: {error}") from error
    if not isinstance(head, dict):
        raise TraceError(f"{path}: must be an object, and is a {type(head).__name__}")
    if (wrong := version_error(head.get("schema_version"))) is not None:
        raise FutureVersionError(f"{path}: {wrong}")
    return head


def field(head: Mapping[str, Any], name: str, kind: type[T], path: TracePath) -> T:
    """A field of an object in `run.json`, which must be of a type; whole numbers fit 64 bits.

    Raises:
        TraceError: the field is missing, of a wrong type, or a text with half a character.
    """
    value = head.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TraceError(f"{path}: {name} must be of type {kind.__name__}, and is {value!r}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise TraceError(f"{path}: {name} must fit 64 bits, and is {value}")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise TraceError(
                f"{path}: {name} must be whole characters, and is {value!r} (with a surrogate)"
            ) from None
    return value


def _faults(head: Mapping[str, Any], path: TracePath) -> list[Fault]:
    """The faults that `run.json` names; a trace may have none."""
    if "faults" not in head:
        return []
    faults = []
    for fault in field(head, "faults", list, path):
        if not isinstance(fault, dict):
            raise TraceError(f"{path}: a fault must be an object, and is {fault!r}")
        optional = {
            name: None if fault.get(name) is None else field(fault, name, int, path)
            for name in ("duration_ms", "broker")
        }
        kind, at_ms = field(fault, "kind", str, path), field(fault, "at_ms", int, path)
        faults.append(Fault(kind=kind, at_ms=at_ms, **optional))
    return faults


def _settings(
    head: Mapping[str, Any], kind: str, path: TracePath
) -> Sequence[Mapping[str, Any]] | None:
    """The configuration of the groups of clients, as far as the trace has it."""
    if head.get(kind) is None:
        return None
    groups = field(head, kind, list, path)
    for group in groups:
        if not isinstance(group, dict):
            raise TraceError(f"{path}: {kind} must be objects, and one is {group!r}")
        field(group, "group", str, path)
        for name in group.keys() & _SETTINGS.keys():
            if group[name] is not None:
                field(group, name, _SETTINGS[name], path)
    return groups


# The files of a trace's tables, and the contents of their footers.
#
# The footer of Parquet has the rows and the columns' types. Lines of JSON have none; compressed
# ones are read through once, so that a torn file is found before Spark starts.


JSON_ENDINGS = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".json", ".json.gz")
PLAIN_ENDINGS = (
    ".parquet",
    *(f".{codec}.parquet" for codec in ("snappy", "gz", "zstd", "lz4", "brotli")),
    *CSV_ENDINGS,
)
UNFINISHED = ".parquet.part"
_UNREADABLE = (
    *(".arrow", ".avro", ".db", ".feather", ".orc", ".pkl", ".tsv", ".xls", ".xlsx"),
    *(".bz2", ".lz4", ".xz", ".zip", ".zst"),
)
_PARTS = "part-*.parquet"
_CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 1 << 16

_FLOATS = ("float", "double")  # as pandas has numbers beside missing ones
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

    `rows` is None if the file must be read to count them. `kinds` are the columns that are read and
    their types in Spark's words, in order; None for lines of JSON. `twin` is a column that has the
    name of one that is read but for upper and lower case. `copy` is a copy of a store's file here.
    """

    path: TracePath
    rows: int | None
    kinds: tuple[tuple[str, str], ...] | None
    twin: str | None = None
    copy: Path | None = None

    @property
    def here(self) -> Path:
        """The path on this machine."""
        return Path(str(self.path)) if self.copy is None else self.copy

    @property
    def is_empty(self) -> bool:
        """Whether it is known to have no rows; O(1)."""
        if self.rows is not None or not isinstance(self.path, Path):
            return self.rows == 0
        with suppress(OSError), self.path.open("rb") as file:
            lines = file.read(_HEAD_BYTES).strip().splitlines()
            return len(lines) <= self.path.name.endswith(".csv")  # its first line has names
        return False


class PartError(TraceError):
    """A file that is left out as a whole: the reason, and the number of its rows, if known."""

    def __init__(self, message: str, reason: str, rows: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.rows = rows


def json_files(folder: TracePath, table: str) -> list[TracePath]:
    """The lines of JSON of one table: a file of its name, and files in a folder of its name.

    Raises:
        OSError: a folder can't be read; the next two functions raise it as well.
    """
    files = [folder / (table + ending) for ending in JSON_ENDINGS]
    parts = _parts_of(folder / table, JSON_ENDINGS)
    return _in_order(path for path in [*files, *parts] if path.is_file())


def parquet_files(folder: TracePath, table: str) -> list[TracePath]:
    """The finished parts of one table."""
    return _in_order(_listed(folder / table, _PARTS))


def plain_files(folder: TracePath, table: str) -> list[TracePath]:
    """The Parquet and CSV of one table of plain data: a file of its name, or all in its folder."""
    files = [folder / (table + ending) for ending in PLAIN_ENDINGS]
    parts = _parts_of(folder / table, PLAIN_ENDINGS)
    return _in_order(path for path in [*files, *parts] if path.is_file())


def unreadable_files(folder: TracePath, table: str) -> list[TracePath]:
    """The files of one table of plain data in a format that is not read, such as `sends.xlsx`."""
    files = [*_listed(folder, f"{table}.*"), *_listed(folder / table, "*")]
    return _in_order(path for path in files if path.name.endswith(_UNREADABLE) and path.is_file())


def nested_files(folder: TracePath, table: str) -> list[TracePath]:
    """The files of one table of plain data in folders within its folder, as Hive's partitions."""
    top = folder / table
    if not isinstance(top, Path):
        return []
    ends = (*PLAIN_ENDINGS, *JSON_ENDINGS)
    return _in_order(
        Path(inner) / name
        for inner, _, names in os.walk(top)
        if Path(inner) != top
        for name in names
        if name.endswith(ends)
    )


def _parts_of(folder: TracePath, endings: tuple[str, ...]) -> list[TracePath]:
    return [path for path in _listed(folder, "*") if path.name.endswith(endings)]


def unfinished_files(folder: TracePath, table: str) -> list[TracePath]:
    """The unfinished parts of one table, without a footer, that an interrupted writer left."""
    return _in_order(_listed(folder / table, "*" + UNFINISHED))


def _listed(folder: TracePath, pattern: str) -> Iterable[TracePath]:
    """The files in a folder, if it exists; `Path.glob` also finds none where it may not look."""
    if not isinstance(folder, Path):
        return folder.glob(pattern)
    try:
        return [folder / name for name in matching(os.listdir(folder), pattern)]
    except (FileNotFoundError, NotADirectoryError):
        return ()


def _in_order(paths: Iterable[TracePath]) -> list[TracePath]:
    return sorted(paths, key=str)


def read_part(path: TracePath, table: str, sources: Mapping[str, Source]) -> Part:
    """The columns and the number of rows of a file, before its rows are read. O(1) for Parquet.

    Raises:
        PartError: the file can't be read.
    """
    if path.name.endswith((*JSON_ENDINGS, *CSV_ENDINGS)):
        _check_compression(path)
        if path.name.endswith(CSV_ENDINGS):
            _check_names(path)
        if path.name.endswith((".json", ".json.gz")) and _is_list(path):
            raise PartError(
                f"{path}: is one list; write its objects in a line each, as to_json(path, "
                'orient="records", lines=True) of pandas does',
                "torn file",
            )
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
    columns = {column.name: _spark_kind(column.type) for column in schema}
    return make_part(path, table, sources, columns, rows)


def peek(path: TracePath, column: str | None) -> tuple[list[str], object]:
    """The columns of a file of plain data, in their order, and the first value of one of them.

    Returns:
        No columns if the file can't be read; None if it lacks the column, has no value near its
        start, or is of lines of JSON.
    """
    try:
        if path.name.endswith(JSON_ENDINGS):
            return json_columns(path), None
        if path.name.endswith(CSV_ENDINGS):
            return peek_csv(path, column)
        with path.open("rb") as content, pq.ParquetFile(content) as file:
            columns = list(file.schema_arrow.names)
            first = pa.array([])
            if column in columns:
                (first, *_) = next(file.iter_batches(1, columns=[column]), [first])
            return columns, first[0].as_py() if len(first) else None
    except (OSError, EOFError, zlib.error, csv.Error, pa.ArrowException):
        return [], None


def make_part(
    path: TracePath,
    table: str,
    sources: Mapping[str, Source],
    columns: Mapping[str, str],
    rows: int | None,
) -> Part:
    """A file with the columns found in it, and their types.

    Raises:
        PartError: a column is missing, or of another type.
    """
    kinds: dict[str, str] = {}
    missing = []
    for column, kind in TABLES[table].items():
        source = sources[column]
        if source.name is None:
            continue
        if source.name in columns:
            _check_kind(path, source, kind, columns[source.name], rows)
            kinds[source.name] = columns[source.name]
        elif not (column in NULLABLE[table] or column in DERIVED.get(table, {})):
            missing.append(f"{source.name!r} ({kind})")
    if missing:
        names = f"the column {missing[0]} is" if len(missing) == 1 else ", ".join(missing) + " are"
        raise PartError(f"{path}: {names} missing", "missing column", rows)
    folded = {name.lower() for name in kinds}
    twin = next((name for name in columns if name not in kinds and name.lower() in folded), None)
    return Part(path, rows, tuple(kinds.items()), twin)


def _check_kind(path: TracePath, source: Source, kind: str, found: str, rows: int | None) -> None:
    is_right = found == kind or (source.takes_texts and found == "string")
    if source.values is not None:
        is_right = is_right or found in (*_WHOLE, "boolean")
    elif kind in _WHOLE:
        is_time = found in (TIMESTAMP, TIMESTAMP_NANOS) and source.is_time
        is_right = is_right or found in (*_WHOLE, *_FLOATS) or is_time or found.startswith(DECIMAL)
    if not is_right:
        other = " or a timestamp" if source.is_time else " or string" if source.takes_texts else ""
        raise PartError(
            f"{path}: the column {source.name!r} must be {kind}{other}, and is {found}",
            "wrong type",
            rows,
        )


def _spark_kind(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return _spark_kind(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{_spark_kind(kind.value_type)}>"
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return TIMESTAMP_NANOS if kind.unit == "ns" else TIMESTAMP
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


def _check_names(path: TracePath) -> None:
    try:
        peek_csv(path, None)
    except (OSError, csv.Error) as error:
        raise PartError(f"{path}: can't be read: {error}", "torn file") from error


def _is_list(path: TracePath) -> bool:
    """Whether a file whose compression was checked is one list, and no lines."""
    with path.open("rb") as raw, gzip.open(raw) if path.name.endswith(".gz") else raw as file:
        return bytes(file.read(1)) == b"["
