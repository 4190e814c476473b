"""How traces are found, checked and read (schema versions 1 and 2, see `trace_schema`).

A trace is a folder: `run.json` with the head of the run, and a folder of Parquet parts for each
table. Everything that can be told from the folder itself and the parts' footers is checked here,
before Spark starts: what Spark would say about it comes late and takes pages.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.trace_schema import (
    NULLABLE,
    REQUIRED_TABLES,
    RUN_FILE,
    SCHEMA_VERSIONS,
    TABLES,
)

T = TypeVar("T")

_GLOB_CHARACTERS = re.compile(r"([\\*?\[\]{}])")
_PARTS = "part-*.parquet"


@dataclass(frozen=True)
class Fault:
    """Something that was made to go wrong in a run; the fields may be None where they don't apply.

    Units are milliseconds since the start of the run; without `duration_ms`, it lasted to the end.
    """

    kind: str
    at_ms: int
    duration_ms: int | None
    broker: int | None


@dataclass(frozen=True)
class Trace:
    """One run's trace as found on disk.

    `rows` and `parts` have the tables' names as keys. `complete` is false for a run that was
    interrupted: its operations still open then are in no table, and `duration_ms` is 0 if the run
    had no time to write it.
    """

    folder: Path
    run_id: str
    scenario: str
    seed: int
    complete: bool
    duration_ms: int
    rows: Mapping[str, int]
    parts: Mapping[str, Sequence[Path]]
    faults: Sequence[Fault] = ()
    producers: Sequence[Mapping[str, Any]] | None = None
    """The settings of the producer groups, as `run.json` has them; None: it does not say."""
    consumers: Sequence[Mapping[str, Any]] | None = None
    """The settings of the consumer groups; None: it does not say."""


def find_traces(roots: Sequence[Path]) -> list[Trace]:
    """All traces in some folders, in the order of their run ids.

    A folder that is reached twice counts once. Reads each part's footer: O(parts).

    Args:
        roots: folders that are a trace each, or contain traces at any depth.

    Raises:
        TraceError: a folder without traces, a trace that is broken or of another schema version,
            or two traces with one run id.
    """
    folders: dict[Path, None] = {}
    for root in roots:
        folders.update(dict.fromkeys(folder.resolve() for folder in _trace_folders(root)))
    by_run_id: dict[str, Trace] = {}
    for folder in folders:
        trace = read_trace(folder)
        other = by_run_id.setdefault(trace.run_id, trace)
        if other is not trace:
            raise TraceError(
                f"{other.folder} and {trace.folder} both have the run id {trace.run_id!r}: "
                "analyze them apart, or leave out one if it is a copy"
            )
    return [by_run_id[run_id] for run_id in sorted(by_run_id)]


def read_trace(folder: Path) -> Trace:
    """The trace in a folder, checked.

    Raises:
        TraceError: it is broken or of another schema version.
    """
    head = _read_head(folder / RUN_FILE)
    parts = {table: _find_parts(folder, table) for table in TABLES}
    rows = {
        table: sum(_count_rows(part, columns, NULLABLE[table]) for part in parts[table])
        for table, columns in TABLES.items()
    }
    trace = Trace(
        folder=folder,
        run_id=_field(head, "run_id", str, folder),
        scenario=_field(head, "scenario", str, folder),
        seed=_field(head, "seed", int, folder),
        complete=_field(head, "complete", bool, folder),
        duration_ms=_field(head, "duration_ms", int, folder),
        rows=rows,
        parts=parts,
        faults=_faults(head, folder),
        producers=_settings(head, "producers", folder),
        consumers=_settings(head, "consumers", folder),
    )
    if trace.complete:
        _check_counts(trace, _field(head, "tables", dict, folder))
    return trace


def read_table(session: SparkSession, traces: Sequence[Trace], table: str) -> DataFrame:
    """One table of all traces. Lazy: Spark reads the parts when a result is asked for."""
    columns = TABLES[table]
    schema = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    paths = [spark_path(part) for trace in traces for part in trace.parts[table]]
    if not paths:
        return session.createDataFrame([], schema)
    return session.read.schema(schema).parquet(*paths)


def _trace_folders(root: Path) -> Iterator[Path]:
    if not root.exists():
        raise TraceError(f"{root}: there is no such folder; give the folder of a trace")
    if not root.is_dir():
        raise TraceError(f"{root}: is a file; give the folder of a trace")
    found = False
    for folder, subfolders, files in os.walk(root):
        if RUN_FILE in files:
            found = True
            subfolders.clear()
            yield Path(folder)
        subfolders.sort()
    if not found:
        raise TraceError(
            f"{root}: contains no trace (a folder with {RUN_FILE}); write one with "
            "purgatory simulate --trace DIR"
        )


def _read_head(path: Path) -> dict[str, Any]:
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: can't be read as JSON: {error}") from error
    if not isinstance(head, dict):
        raise TraceError(f"{path}: must be an object, and is a {type(head).__name__}")
    version = head.get("schema_version")
    if version not in SCHEMA_VERSIONS or isinstance(version, bool):
        raise TraceError(
            f"{path}: schema_version is {version!r}, and this version of purgatory reads "
            f"{' and '.join(map(str, SCHEMA_VERSIONS))}"
        )
    return head


def _field(head: Mapping[str, Any], name: str, kind: type[T], folder: Path) -> T:
    value = head.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TraceError(
            f"{folder / RUN_FILE}: {name} must be of type {kind.__name__}, and is {value!r}"
        )
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise TraceError(f"{folder / RUN_FILE}: {name} must fit 64 bits, and is {value}")
    return value


def _faults(head: Mapping[str, Any], folder: Path) -> list[Fault]:
    """The faults that `run.json` names; a trace need not say any."""
    if "faults" not in head:
        return []
    faults = []
    for fault in _field(head, "faults", list, folder):
        if not isinstance(fault, dict):
            raise TraceError(f"{folder / RUN_FILE}: a fault must be an object, and is {fault!r}")
        optional = {
            name: None if fault.get(name) is None else _field(fault, name, int, folder)
            for name in ("duration_ms", "broker")
        }
        kind, at_ms = _field(fault, "kind", str, folder), _field(fault, "at_ms", int, folder)
        faults.append(Fault(kind=kind, at_ms=at_ms, **optional))
    return faults


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


def _settings(
    head: Mapping[str, Any], kind: str, folder: Path
) -> Sequence[Mapping[str, Any]] | None:
    """How the groups of clients are configured; a trace need not say, and a group need not all."""
    if head.get(kind) is None:
        return None
    groups = _field(head, kind, list, folder)
    for group in groups:
        if not isinstance(group, dict):
            raise TraceError(f"{folder / RUN_FILE}: {kind} must be objects, and one is {group!r}")
        _field(group, "group", str, folder)
        for name in group.keys() & _SETTINGS.keys():
            if group[name] is not None:
                _field(group, name, _SETTINGS[name], folder)
    return groups


def _find_parts(folder: Path, table: str) -> list[Path]:
    if not (folder / table).is_dir():
        if table not in REQUIRED_TABLES:
            return []
        raise TraceError(
            f"{folder}: the table {table!r} is missing; a trace has the folders "
            f"{', '.join(REQUIRED_TABLES)}"
        )
    return sorted((folder / table).glob(_PARTS))


def _count_rows(part: Path, columns: Mapping[str, str], nullable: frozenset[str]) -> int:
    """The rows of a part by its footer, after a look at its columns."""
    try:
        with pq.ParquetFile(part) as file:
            schema: pa.Schema = file.schema_arrow
            rows: int = file.metadata.num_rows
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise TraceError(f"{part}: can't be read as Parquet: {reason}") from error
    found = {field.name: _spark_kind(field.type) for field in schema}
    for name, kind in columns.items():
        if name not in found and name in nullable:
            continue
        if name not in found:
            raise TraceError(f"{part}: the column {name!r} ({kind}) is missing")
        if found[name] != kind:
            raise TraceError(f"{part}: the column {name!r} must be {kind}, and is {found[name]}")
    return rows


def _spark_kind(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return _spark_kind(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{_spark_kind(kind.value_type)}>"
    names = {"int32": "int", "int64": "bigint", "large_string": "string", "bool": "boolean"}
    return names.get(str(kind), str(kind))


def _check_counts(trace: Trace, tables: Mapping[str, Any]) -> None:
    """Compare what `run.json` says of a complete trace with what is there."""
    for table in TABLES:
        if table not in REQUIRED_TABLES and not trace.parts[table]:
            continue
        said = tables.get(table)
        if not isinstance(said, dict):
            raise TraceError(f"{trace.folder / RUN_FILE}: tables says nothing of {table!r}")
        for what, found in (("parts", len(trace.parts[table])), ("rows", trace.rows[table])):
            if said.get(what) != found:
                raise TraceError(
                    f"{trace.folder / table}: has {found} {what}, and {RUN_FILE} says "
                    f"{said.get(what)!r}: the trace was changed after it was written"
                )


def spark_path(path: Path) -> str:
    """A path as Spark takes it: with the scheme of local files, no character read as a pattern."""
    return "file:" + _GLOB_CHARACTERS.sub(r"\\\1", str(path))
