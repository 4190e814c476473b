"""Traces: finding and checking them (of the schema versions of `trace_schema`).

A trace is a folder: `run.json` with the head of the run, and Parquet parts or lines of JSON for
each table. The folder itself, the head and the parts' footers are checked here as far as possible,
before Spark starts: Spark's own errors come late and take pages.

Ground rules: `read_trace_set` quarantines unreadable files, with the reason and the path, and
continues with the rest; `find_traces` and `read_trace` raise the first one's error.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.ingest.column_mapping import ColumnMapping, sources_of
from purgatory.pipeline.ingest.plain_data import PLAIN_TABLES, PlainTable, plain_table
from purgatory.pipeline.ingest.stores import TracePath
from purgatory.pipeline.ingest.trace_files import (
    JSON_ENDINGS,
    PLAIN_ENDINGS,
    Fault,
    FutureVersionError,
    Part,
    PartError,
    TraceHead,
    json_files,
    nested_files,
    parquet_files,
    peek,
    plain_files,
    read_head,
    read_part,
    unfinished_files,
    unreadable_files,
)
from purgatory.pipeline.result_rows import Order, Row
from purgatory.pipeline.signals import defer_signals
from purgatory.trace.trace_schema import REQUIRED_TABLES, RUN_FILE, TABLES

__all__ = [
    "Fault",
    "QuarantinedFile",
    "Trace",
    "TraceSet",
    "find_traces",
    "read_trace",
    "read_trace_set",
    "spark_path",
]

_AT_A_TIME = 16
"""The number of traces of a store that are read at a time."""

_A_TRACE = (
    f"a folder with {RUN_FILE}, or with plain data: sends and reads as .parquet, .csv, .json or "
    ".jsonl, each a file of that name or in a folder of it"
)
_FLATTEN = (
    "write one file, with the columns that the folders name, such as by DuckDB's "
    "COPY (FROM read_parquet('sends/**/*.parquet')) TO 'sends.parquet'"
)
UNFINISHED_FILE = "unfinished file"
"""The reason of a part that an interrupted writer left."""

_MOST_NAMES = 10
_GLOB_CHARACTERS = re.compile(r"([\\*?\[\]{}])")
_JSON_TABLES = frozenset(table + ending for table in TABLES for ending in JSON_ENDINGS)
_PLAIN_TABLES = frozenset(table + ending for table in TABLES for ending in PLAIN_ENDINGS)


@dataclass(frozen=True)
class QuarantinedFile:
    """A file or folder without readable rows; `rows` is their number, if known."""

    run_id: str
    table: str | None
    path: TracePath
    reason: str
    detail: str
    rows: int | None


@dataclass(frozen=True)
class Trace(TraceHead):
    """The trace of one run: its head, and the files of each table.

    `complete` is false for a run that was interrupted: its operations still open then are in no
    table, and `duration_ms` is 0 if the run had no time to write it. `complete` is false, too,
    where parts or rows are missing that `run.json` names. `mapping` has the names of columns in
    these files, where they differ. `lacking` has the columns that plain data lacks, with the
    anomalies that each would show.
    """

    folder: TracePath
    files: Mapping[str, Sequence[Part]]
    mapping: ColumnMapping
    lacking: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)

    @property
    def parts(self) -> Mapping[str, Sequence[TracePath]]:
        """The paths of the files of each table."""
        return {table: [part.path for part in parts] for table, parts in self.files.items()}

    @property
    def tables_with_rows(self) -> list[str]:
        """The tables that have a file with rows, as far as the first lines tell; O(parts)."""
        return [name for name in TABLES if not all(part.is_empty for part in self.files[name])]

    @property
    def rows(self) -> Mapping[str, int]:
        """The rows in the Parquet parts of each table; lines of JSON count when they are read."""
        return {table: sum(part.rows or 0 for part in parts) for table, parts in self.files.items()}


@dataclass(frozen=True)
class TraceSet:
    """The traces of some folders, ordered by run id, and the quarantined files."""

    traces: Sequence[Trace]
    quarantined: Sequence[QuarantinedFile]


class _Quarantine:
    """Collects the files that can't be read; strict, it raises the first.

    Once `stopped` is set, as by Ctrl-C, reading may end anywhere.
    """

    def __init__(self, strict: bool, stopped: Event | None = None) -> None:
        self.strict = strict
        self.stopped = stopped or Event()
        self.quarantined: list[QuarantinedFile] = []

    def add(self, file: QuarantinedFile, cause: Exception | None = None) -> None:
        if self.strict:
            raise TraceError(file.detail) from cause
        self.quarantined.append(file)


def read_trace_set(
    roots: Sequence[TracePath],
    mapping: ColumnMapping | None = None,
    *,
    strict: bool = False,
    tables: Collection[str] = tuple(TABLES),
) -> TraceSet:
    """Find all traces in some folders, and read their heads.

    A folder that is found twice counts once. Reads each part's footer: O(parts); compressed lines
    of JSON are read through: O(bytes).

    Args:
        roots: folders that are a trace each, or contain traces at any depth.
        mapping: of columns of other names.
        strict: raise instead of quarantining.
        tables: those that are read: what is wrong with others leaves a trace complete.

    Raises:
        TraceError: a folder has no trace, no trace can be read, or two have one run id.
    """
    folders: dict[TracePath, None] = {}
    for root in roots:
        folders.update(dict.fromkeys(folder.resolve() for folder in _trace_folders(root)))
    quarantined: list[QuarantinedFile] = []
    by_run_id: dict[str, Trace] = {}
    for trace, quarantine in _read_all(list(folders), mapping, strict, tables):
        quarantined += quarantine.quarantined
        if trace is None:
            continue
        other = by_run_id.setdefault(trace.run_id, trace)
        if other is not trace:
            raise TraceError(
                f"{other.folder} and {trace.folder} both have the run id {trace.run_id!r}: "
                "analyze them apart, or leave out one if it is a copy"
            )
    if not by_run_id:
        raise TraceError(quarantined[0].detail)
    traces = [by_run_id[run_id] for run_id in sorted(by_run_id)]
    return TraceSet(traces, quarantined)


def find_traces(roots: Sequence[Path], mapping: ColumnMapping | None = None) -> list[Trace]:
    """The traces in some folders, ordered by run id.

    Raises:
        TraceError: as `read_trace_set`, and if anything in them can't be read.
    """
    return list(read_trace_set(roots, mapping, strict=True).traces)


def read_trace(folder: TracePath, mapping: ColumnMapping | None = None) -> Trace:
    """The trace in a folder, checked.

    Raises:
        TraceError: a file of the trace can't be read, or is of another schema version.
    """
    trace = _read(folder, mapping, _Quarantine(strict=True))
    assert trace is not None, "strict reading raises each error"
    return trace


def _read_all(
    folders: Sequence[TracePath],
    mapping: ColumnMapping | None,
    strict: bool,
    tables: Collection[str],
) -> Iterator[tuple[Trace | None, _Quarantine]]:
    """Read traces in turn; those of a store several at a time, since each response takes long.

    Strict, the first refusal in the order of the folders is raised.
    """

    stopped = Event()

    def read(folder: TracePath) -> tuple[Trace | None, _Quarantine]:
        quarantine = _Quarantine(strict, stopped)
        return _read(folder, mapping, quarantine, tables), quarantine

    if all(isinstance(folder, Path) for folder in folders):
        yield from map(read, folders)
    else:
        with ThreadPoolExecutor(_AT_A_TIME, "trace") as pool:
            try:
                with defer_signals():  # an unrecorded thread would not be joined
                    traces = pool.map(read, folders)
                yield from traces
            finally:
                stopped.set()  # before the pool waits for its threads


def _trace_folders(root: TracePath) -> Iterator[TracePath]:
    try:
        for folder in _find_folders(root):
            _check_name(folder)
            yield folder
    except OSError as error:
        reason = error.strerror or error
        raise TraceError(f"{error.filename or root}: can't be read: {reason}") from error


def _check_name(folder: TracePath) -> None:
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise TraceError(
            f"{os.fsencode(str(folder))!r}: the name of a trace's folder must be UTF-8; rename it"
        ) from None


def _find_folders(root: TracePath) -> Iterator[TracePath]:
    if not root.exists():
        raise TraceError(f"{root}: there is no such folder; give the folder of a trace")
    if not root.is_dir():
        raise TraceError(f"{root}: is a file; give its folder: a trace is {_A_TRACE}")
    found = False
    names: list[str] = []
    nested: list[str] = []
    for name, subfolders, files in (
        os.walk(root, onerror=_raise) if isinstance(root, Path) else root.walk()
    ):
        folder = Path(name) if isinstance(name, str) else name
        if (
            RUN_FILE in files
            or not _JSON_TABLES.isdisjoint(files)
            or not _PLAIN_TABLES.isdisjoint(files)
            or any(
                json_files(folder, table) or plain_files(folder, table)
                for table in TABLES.keys() & set(subfolders)
            )
        ):
            found = True
            subfolders.clear()
            yield folder
        nested += [name for name in sorted(TABLES.keys() & set(subfolders)) if not nested]
        subfolders.sort()
        names += sorted(files)[: _MOST_NAMES - len(names)]
    if not found:
        has = f"; it has {', '.join(dict.fromkeys(names))}" if names else ""
        if names and nested:
            within = "its files are in folders within, which are not read"
            has += f" in {nested[0]}: {within}; {_FLATTEN}"
        raise TraceError(
            f"{root}: contains no trace ({_A_TRACE}){has}; "
            "write one with purgatory simulate --trace DIR"
        )


def _raise(error: OSError) -> None:
    raise error


def _read(
    folder: TracePath,
    mapping: ColumnMapping | None,
    quarantine: _Quarantine,
    tables: Collection[str] = tuple(TABLES),
) -> Trace | None:
    errors: dict[str, OSError] = {}

    def listed(
        files_of: Callable[[TracePath, str], list[TracePath]], table: str
    ) -> list[TracePath]:
        try:
            return files_of(folder, table)
        except OSError as error:
            errors[table] = error
            return []

    json_paths = {table: listed(json_files, table) for table in TABLES}
    parquet_paths = {table: listed(parquet_files, table) for table in TABLES}
    written_elsewhere = any(json_paths.values())
    plain: dict[str, PlainTable] = {}
    unreadable: dict[str, list[TracePath]] = {}
    nested: dict[str, list[TracePath]] = {}
    run_id = folder.name
    lost = False
    if not (folder / RUN_FILE).exists():
        written_elsewhere = True
        lost = bool(parquet_paths["operations"])
        parquet_paths = {table: listed(plain_files, table) for table in TABLES}
        unreadable = {table: listed(unreadable_files, table) for table in PLAIN_TABLES}
        nested = {table: nested_files(folder, table) for table in TABLES}
        run_id, plain = _read_plain(folder, parquet_paths, json_paths, mapping)
        mapping = {
            **(mapping or {}),
            **{
                table: {**(mapping or {}).get(table, {}), **one.sources}
                for table, one in plain.items()
            },
        }
    try:
        head = read_head(folder, run_id, written_elsewhere=written_elsewhere)
    except TraceError as error:
        reason = "schema version" if isinstance(error, FutureVersionError) else "bad run.json"
        path = folder / RUN_FILE
        quarantine.add(QuarantinedFile(folder.name, None, path, reason, str(error), None), error)
        return None
    before = len(quarantine.quarantined)
    if lost:
        path = folder / RUN_FILE
        detail = (
            f"{path}: is missing: whether the trace is whole, the settings of its clients and its "
            "faults are unknown; copy it back beside the tables"
        )
        quarantine.add(QuarantinedFile(head.run_id, None, path, "missing run.json", detail, None))
    files: dict[str, list[Part]] = {}
    for table in TABLES:
        paths = parquet_paths[table] + json_paths[table]
        if table in plain and plain[table].problem:
            path, detail = folder / table, f"{folder}: {plain[table].problem}"
            quarantine.add(
                QuarantinedFile(head.run_id, table, path, "missing column", detail, None),
            )
            paths = []
        files[table] = _read_parts(head, table, paths, mapping, quarantine)
        for path in unreadable.get(table, ()):
            detail = f"{path}: is not read; write {table} as .parquet, .csv, .csv.gz or .jsonl"
            quarantine.add(QuarantinedFile(head.run_id, table, path, "torn file", detail, None))
        for path in nested.get(table, ()):
            detail = f"{path}: is in a folder within that of {table}, which is not read; {_FLATTEN}"
            quarantine.add(QuarantinedFile(head.run_id, table, path, "nested file", detail, None))
    lacking = {table: one.lacking for table, one in plain.items() if one.lacking}
    trace = Trace(**vars(head), folder=folder, files=files, mapping=mapping or {}, lacking=lacking)
    for table in TABLES:
        if table in errors:
            path, detail = folder / table, f"can't be read: {errors[table].strerror}"
            quarantine.add(
                QuarantinedFile(head.run_id, table, path, "torn file", f"{path}: {detail}", None),
                errors[table],
            )
        else:
            _check_whole(trace, table, written_elsewhere, quarantine)
    is_whole = not any(file.table in (None, *tables) for file in quarantine.quarantined[before:])
    return trace if is_whole else replace(trace, complete=False)


def _read_plain(
    folder: TracePath,
    parquet_paths: Mapping[str, Sequence[TracePath]],
    json_paths: Mapping[str, Sequence[TracePath]],
    mapping: ColumnMapping | None,
) -> tuple[str, dict[str, PlainTable]]:
    """The run that the first row of Parquet or CSV names, or the folder; the tables' columns."""
    run_ids: list[str] = []
    columns: dict[str, list[str]] = {}
    for table in TABLES:
        source = sources_of(table, mapping)["run_id"]
        peeked = [peek(path, source.name) for path in [*parquet_paths[table], *json_paths[table]]]
        columns[table] = list(dict.fromkeys(name for names, _ in peeked for name in names))
        if peeked:
            values = [source.value, *(value for _, value in peeked)]
            run_ids += [value for value in values if isinstance(value, str)]
    run_id = next(iter(run_ids), folder.name)
    return run_id, {
        table: plain_table(table, names, mapping, in_lines=not parquet_paths[table])
        for table, names in columns.items()
        if names and (table in PLAIN_TABLES or parquet_paths[table])
    }


def _read_parts(
    head: TraceHead,
    table: str,
    paths: Sequence[TracePath],
    mapping: ColumnMapping | None,
    quarantine: _Quarantine,
) -> list[Part]:
    sources = sources_of(table, mapping)
    parts = []
    for path in paths:
        if quarantine.stopped.is_set():
            break
        try:
            parts.append(read_part(path, table, sources))
        except PartError as error:
            quarantined = QuarantinedFile(
                head.run_id, table, path, error.reason, str(error), error.rows
            )
            quarantine.add(quarantined, error)
    return parts


def _check_whole(
    trace: Trace, table: str, written_elsewhere: bool, quarantine: _Quarantine
) -> None:
    """Compare a table with `run.json`; quarantine the files that an interrupted writer left."""
    quarantined = [
        file
        for file in quarantine.quarantined
        if (file.run_id, file.table) == (trace.run_id, table)
    ]
    for path in unfinished_files(trace.folder, table):
        detail = f"{path}: is not finished: its writer was interrupted"
        quarantine.add(QuarantinedFile(trace.run_id, table, path, UNFINISHED_FILE, detail, None))
    problem = _missing_part(trace, table, written_elsewhere, quarantined)
    if problem is not None:
        path, reason, detail = problem
        quarantine.add(QuarantinedFile(trace.run_id, table, path, reason, detail, None))


def _missing_part(
    trace: Trace, table: str, written_elsewhere: bool, quarantined: Sequence[QuarantinedFile]
) -> tuple[TracePath, str, str] | None:
    parts, path = trace.files[table], trace.folder / table
    if not path.is_dir() and not written_elsewhere and table in REQUIRED_TABLES:
        detail = (
            f"{trace.folder}: the table {table!r} is missing; a trace has the folders "
            f"{', '.join(REQUIRED_TABLES)}"
        )
        return path, "missing table", detail
    counts = [*(part.rows for part in parts), *(file.rows for file in quarantined)]
    if not trace.complete or trace.tables is None or None in counts:
        return None
    expected = trace.tables.get(table)
    if expected is None and not parts and table not in REQUIRED_TABLES:
        return None
    run_file = trace.folder / RUN_FILE
    if not isinstance(expected, dict):
        return run_file, "bad run.json", f"{run_file}: tables lacks {table!r}"
    rows = trace.rows[table] + sum(file.rows or 0 for file in quarantined)
    for what, found in (("parts", len(parts) + len(quarantined)), ("rows", rows)):
        if expected.get(what) != found:
            detail = (
                f"{path}: has {found} {what}, and {RUN_FILE} says {expected.get(what)!r}: the "
                "trace was changed after it was written"
            )
            return path, "missing rows", detail
    return None


def spark_path(path: TracePath) -> str:
    """A path as Spark reads it: with the scheme of local files, no character read as a pattern."""
    scheme = "file:" if isinstance(path, Path) else ""
    return scheme + _GLOB_CHARACTERS.sub(r"\\\1", str(path))


# The table of bad rows and files.


QUARANTINE: Mapping[str, str] = {
    "run_id": "string",
    "table": "string",
    "file": "string",
    "line": "bigint",
    "rows": "bigint",
    "reason": "string",
    "detail": "string",
    "content": "string",
}
"""The columns of the table `quarantine`, with Spark's types."""

QUARANTINE_ORDER: Order = (("file", None), ("line", None))


def quarantine_row(file: QuarantinedFile) -> tuple[str | int | None, ...]:
    """The row of a quarantined file: without a line, and without content."""
    where = str(file.path)
    detail = file.detail.removeprefix(f"{where}: ")
    return (file.run_id, file.table, where, None, file.rows, file.reason, detail, None)


FIRST_BAD_ROWS = """
    SELECT run_id, `table`, reason, min(struct(file, line, detail)) AS first
    FROM {quarantine} WHERE line IS NOT NULL GROUP BY run_id, `table`, reason
"""
"""The rows of `examples_of`, in Spark's SQL."""


def examples_of(rows: Sequence[Row]) -> dict[tuple[str, str, str], str]:
    """The first bad rows in words, by run, table and reason."""
    return {
        (row["run_id"], row["table"], row["reason"]): "{file}:{line}: {detail}".format(
            **row["first"]
        )
        for row in rows
    }


def first_error(file: str, line: int | None, reason: str, detail: str) -> TraceError:
    """The error for the first bad row or file, where none is allowed."""
    location = file if line is None else f"{file}:{line}"
    return TraceError(f"{location}: {reason}: {detail}")


@dataclass(frozen=True)
class RowCheck:
    """The counts of good and bad rows.

    Attributes:
        good: the number of rows by table and run, where they were counted.
        bad: the number of rows by run, table and reason.
        quarantined: files that are left out as a whole.
        last_ends_us: when the last operation of each run ended.
        has_texts: whether ids are texts.
        examples: the first bad row of each run, table and reason: its place, and what is wrong.
    """

    good: Mapping[str, Mapping[str, int]]
    bad: Mapping[tuple[str, str, str], int]
    quarantined: Sequence[QuarantinedFile]
    last_ends_us: Mapping[str, int]
    has_texts: bool = False
    examples: Mapping[tuple[str, str, str], str] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Whether all files and rows are good."""
        return not self.bad and not self.quarantined

    def counts(self) -> list[Row]:
        """The number of bad `rows` and `files`, by `table` and `reason`; heads have no table."""
        rows: Counter[tuple[str | None, str]] = Counter()
        files: Counter[tuple[str | None, str]] = Counter()
        for (_, table, reason), number in self.bad.items():
            rows[table, reason] += number
        for file in self.quarantined:
            rows[file.table, file.reason] += file.rows or 0
            files[file.table, file.reason] += 1
        return [
            {"table": table, "reason": reason, "rows": number, "files": files[table, reason]}
            for (table, reason), number in sorted(
                rows.items(), key=lambda of: (of[0][0] or "", of[0][1])
            )
        ]

    def left_out(self) -> list[Row]:
        """The counts of each run, by `run_id`, `table` and `reason`.

        `details` has what is wrong with each file that is left out, or with the first bad row.
        """
        runs = {run_id for run_id, _, _ in self.bad} | {file.run_id for file in self.quarantined}
        counts = {run_id: self._of(run_id).counts() for run_id in sorted(runs)}
        details: dict[tuple[str, str | None, str], list[str]] = {
            key: [example] for key, example in self.examples.items()
        }
        for file in self.quarantined:
            details.setdefault((file.run_id, file.table, file.reason), []).append(file.detail)
        return [
            {
                "run_id": run_id,
                **row,
                "details": details.get((run_id, row["table"], row["reason"]), ()),
            }
            for run_id, rows in counts.items()
            for row in rows
        ]

    def _of(self, run_id: str) -> RowCheck:
        bad = {key: number for key, number in self.bad.items() if key[0] == run_id}
        files = [file for file in self.quarantined if file.run_id == run_id]
        return replace(self, bad=bad, quarantined=files)

    def by_run(self) -> dict[str, int]:
        """The number of omitted rows of each run; a file of unknown length counts as one."""
        runs: Counter[str] = Counter()
        for (run_id, _, _), number in self.bad.items():
            runs[run_id] += number
        for file in self.quarantined:
            runs[file.run_id] += 1 if file.rows is None else file.rows
        return dict(runs)


def is_interrupted(left_out: Sequence[Row]) -> bool:
    """Whether an incomplete run broke off, by its rows of `RowCheck.left_out`.

    Else files of it are missing, or left out.
    """
    reasons = {row["reason"] for row in left_out if row["files"]}
    return not reasons or UNFINISHED_FILE in reasons


def quarantine_lines(counts: Sequence[Row]) -> list[str]:
    """The counts in words, a line per table and reason."""
    lines = []
    for row in counts:
        parts = [f"{row['rows']:,} row{'s' * (row['rows'] != 1)}"] if row["rows"] else []
        if row["files"]:
            parts.append(f"{row['files']:,} file{'s' * (row['files'] != 1)} as a whole")
        lines.append(f"{row['table'] or 'run.json'}: {row['reason']}: {', '.join(parts)}")
    return lines
