"""The rows of traces' tables in Spark: the good ones, and the quarantine of the bad ones.

Spark processes all rows, lazily. Files that have the same columns of the same types are read
together, so that a plan grows with the kinds of files and not with their number. The run of a file
is looked up by its path, in a table that is sent to all tasks.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import count
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from pyspark.sql import DataFrame, SparkSession

from purgatory.pipeline.engines.spark.connect import is_connect, local_table
from purgatory.pipeline.engines.spark.job_threads import job_threads
from purgatory.pipeline.engines.spark.session import is_on_loopback
from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.ingest.column_casts import (
    JSON_OPTIONS,
    NANOS_AS_LONG,
    SPARK,
    TIMESTAMP_NANOS,
    Cell,
    backquoted,
    has_texts,
    id_text_pairs,
    json_cell,
    line_cell,
    parquet_cell,
    same_number,
)
from purgatory.pipeline.ingest.column_mapping import (
    GivenMapping,
    Source,
    mapping_of,
    sources_of,
)
from purgatory.pipeline.ingest.hadoop_files import HadoopFiles
from purgatory.pipeline.ingest.plain_data import CSV_ENDINGS
from purgatory.pipeline.ingest.quarantine_rules import (
    MOST_CONTENT,
    derived_columns,
    detail_sql,
    first_wrong_sql,
    reason_sql,
)
from purgatory.pipeline.ingest.spark_copies import has_csv, with_copies
from purgatory.pipeline.ingest.stores import TracePath, parse_location, resolve_locations
from purgatory.pipeline.ingest.trace_set import (
    FIRST_BAD_ROWS,
    QUARANTINE,
    RowCheck,
    Trace,
    TraceSet,
    examples_of,
    first_error,
    quarantine_row,
    read_trace_set,
    spark_path,
)
from purgatory.trace.trace_schema import IDS, TABLES

ROW_COUNTS = (
    "run_id string, table string, reason string, rows bigint, end_us bigint, has_texts boolean"
)
"""The columns of the numbers of good and bad rows."""

ID_TEXTS = "number bigint, text string"
"""Ids as they are in the tables, and as they were in the files."""

_TEXTS: Mapping[str, Callable[[Mapping[str, Cell]], str]] = {
    "_has_texts": has_texts,
    "_texts": lambda cells: (
        "array("
        + ", ".join(
            f"named_struct('number', {number}, 'text', {text})"
            for number, text in id_text_pairs(cells)
        )
        + ")"
    ),
}
"""The columns of a row beside those of its table."""

_NANOS = "timestamp_micros(({0} - pmod({0}, 1000)) DIV 1000)"
"""SQL: a time from its nanoseconds since 1970."""

_numbers = count(1)
"""The numbers of the temporary views of files, which make their names unique."""

_FILES = "_uri string, _file string, _run string"
_Kinds = tuple[tuple[str, str], ...] | None


@dataclass(frozen=True)
class _Files:
    """Files that are read together: their columns' kinds (None for lines of JSON) and sources.

    `run_of` has the run of each, `copied` of each copy of CSV the file itself; other files are read
    in their places.
    """

    kinds: _Kinds
    sources: Mapping[str, Source]
    run_of: dict[TracePath, str] = field(default_factory=dict)
    copied: dict[TracePath, TracePath] = field(default_factory=dict)

    @property
    def has_lines(self) -> bool:
        """Whether they are lines of JSON, which Spark parses."""
        return self.kinds is None and not self.copied

    @property
    def only_run(self) -> str | None:
        """The run of all of them; None if there are several."""
        runs = set(self.run_of.values())
        return runs.pop() if len(runs) == 1 else None


class TableRows:
    """One table of some traces.

    Args:
        session: reads.
        traces: of one `read_trace_set`.
        table: its name.
    """

    def __init__(self, session: SparkSession, traces: Sequence[Trace], table: str) -> None:
        self._session = session
        self._table = table
        self._files: list[_Files] = []
        self._bad_rows: DataFrame | None = None
        for trace in traces:
            sources = sources_of(table, trace.mapping)
            for part in trace.files[table]:
                if part.path.name.endswith(CSV_ENDINGS) and part.copy is None:
                    raise TraceError(
                        f"{part.path}: CSV is read by a Spark of this machine alone: write it as "
                        "Parquet or lines of JSON, or take --master local[*] or --engine duckdb"
                    )
                if part.twin is not None:
                    _check_case(session, part.path, part.twin)
                if any(kind == TIMESTAMP_NANOS for _, kind in part.kinds or ()):
                    _check_nanos(session, part.path)
                path = part.path if part.copy is None else part.copy
                files = self._files_of(part.kinds, sources, is_copied=part.copy is not None)
                files.run_of[path] = trace.run_id
                if part.copy is not None:
                    files.copied[path] = part.path

    def _files_of(self, kinds: _Kinds, sources: Mapping[str, Source], *, is_copied: bool) -> _Files:
        """The files of these columns. O(kinds of files)."""
        for files in self._files:
            if (files.kinds, files.sources, bool(files.copied)) == (kinds, sources, is_copied):
                return files
        self._files.append(_Files(kinds, sources))
        return self._files[-1]

    @property
    def has_json(self) -> bool:
        """Whether some files are lines of JSON, which are parsed each time that they are read."""
        return any(files.has_lines for files in self._files)

    def good(self, *, is_clean: bool = False) -> DataFrame:
        """The good rows, with the columns of the schema.

        Args:
            is_clean: a check has found that all rows are good: no rule is checked again, and no
                column is read without need.
        """
        columns = ", ".join(map(backquoted, TABLES[self._table]))
        where = "" if is_clean else " WHERE _reason IS NULL"
        frames = [
            self._sql(f"SELECT {columns} FROM ({self._rows(files)}){where}")
            for files in self._files
        ]
        return _union(frames, self._session, spark_columns(TABLES[self._table]))

    def bad(self) -> DataFrame:
        """The bad rows, with the columns of `QUARANTINE`; planned once."""
        if self._bad_rows is None:
            columns = spark_columns(QUARANTINE)
            self._bad_rows = _union(list(self._bad()), self._session, columns)
        return self._bad_rows

    def row_counts(self) -> DataFrame:
        """The numbers of rows by run and reason, with the columns of `ROW_COUNTS`.

        The reason of a good row is null. Much faster than `bad`, which needs the location and
        content of each row.
        """
        end = "max(end_us)" if "end_us" in TABLES[self._table] else "CAST(NULL AS bigint)"
        frames = [
            self._sql(
                f"SELECT _run AS run_id, '{self._table}' AS table, _reason AS reason, "
                f"count(*) AS rows, {end} AS end_us, bool_or(_has_texts) AS has_texts "
                f"FROM ({self._rows(files, extra=['_has_texts'])}) GROUP BY _run, _reason"
            )
            for files in self._files
        ]
        return _union(frames, self._session, ROW_COUNTS)

    def id_texts(self) -> DataFrame:
        """The negative ids with their texts; not distinct."""
        if IDS.isdisjoint(TABLES[self._table]):
            return local_table(self._session, [], ID_TEXTS)
        frames = [
            self._sql(
                "SELECT number, text FROM (SELECT inline(_texts) AS (number, text) "
                f"FROM ({self._rows(files, extra=['_texts'])})) WHERE number < 0"
            )
            for files in self._files
        ]
        return _union(frames, self._session, ID_TEXTS)

    def _sql(self, text: str) -> DataFrame:
        return self._session.sql(text)

    def _bad(self) -> Iterator[DataFrame]:
        for files in self._files:
            rows = self._sql(f"SELECT * FROM ({self._rows(files, True)}) WHERE _reason IS NOT NULL")
            if files.has_lines:
                rows = _with_line_numbers(rows, self._raw(files, True))
            yield rows.selectExpr(
                "_run AS run_id",
                f"'{self._table}' AS table",
                "coalesce(_file, _uri) AS file",
                "_line AS line",
                "1L AS rows",
                "_reason AS reason",
                f"{detail_sql(self._table)} AS detail",
                f"substring(_content, 1, {MOST_CONTENT}) AS content",
            )

    def _raw(self, files: _Files, with_location: bool) -> DataFrame:
        """The rows as they are in the files; if `with_location`, with file, line and content."""
        paths = [spark_path(path) for path in files.run_of]
        if files.has_lines:
            raw = self._session.read.option("lineSep", "\n").text(paths)
            return raw.selectExpr(
                "value AS _text",
                "_metadata.file_path AS _uri",
                "_metadata.file_block_start AS _block",
                "monotonically_increasing_id() AS _id",
            )
        if files.kinds is None:
            return self._session.read.parquet(*paths).selectExpr("*", "_metadata.file_path AS _uri")
        columns = [
            f"{_NANOS.format(backquoted(name))} AS {backquoted(name)}"
            if kind == TIMESTAMP_NANOS
            else backquoted(name)
            for name, kind in files.kinds
        ]
        in_files = {
            name: "bigint" if kind == TIMESTAMP_NANOS else kind for name, kind in files.kinds
        }
        kinds = spark_columns(in_files)
        # A file without any column of its own has rows nevertheless.
        raw = self._session.read.schema(kinds or "_none int").parquet(*paths)
        location = []
        if with_location or files.only_run is None:
            location.append("_metadata.file_path AS _uri")
        if with_location:
            content = f"to_json(struct({', '.join(columns)}))" if columns else "'{}'"
            location += [f"{content} AS _content", "_metadata.row_index + 1 AS _line"]
        has_nanos = TIMESTAMP_NANOS in dict(files.kinds).values()
        return raw.selectExpr(*columns, *location) if location or has_nanos else raw

    def _rows(self, files: _Files, with_location: bool = False, extra: Sequence[str] = ()) -> str:
        """The SQL of all rows with the columns of the schema, `_reason`, `_run` and their place.

        The files are a temporary view. One text costs one call into Java, where a data frame costs
        one for each column of each step.

        Args:
            files: the rows' files.
            with_location: with `_file`, `_uri`, `_line` (for lines of JSON, `_block` and `_id`),
                and `_content`.
            extra: columns of `_TEXTS`.
        """
        view = f"purgatory_files_{next(_numbers)}"
        self._raw(files, with_location).createOrReplaceTempView(view)
        torn, origin, place = "false", view, ["_content", "_line"]
        if files.has_lines:
            place = ["_content", "_block", "_id"]
            origin, cells = self._parsed(view, files.sources)
            torn = "_row IS NULL"
        elif files.kinds is None:
            torn = f"{view}._torn"
            cells = {
                name: line_cell(name, kind, files.sources[name])
                for name, kind in TABLES[self._table].items()
            }
        else:
            file_kinds = dict(files.kinds)
            cells = {
                name: parquet_cell(source, kind, file_kinds.get(source.name or ""))
                for name, kind in TABLES[self._table].items()
                for source in [files.sources[name]]
            }
        columns = {
            "_torn": torn,
            "_wrong": first_wrong_sql(cells),
            **{name: _TEXTS[name](cells) for name in extra},
            **{name: cell.value for name, cell in cells.items()},
        }
        names = list(map(backquoted, columns))
        if files.has_lines:
            # One expression for all columns: from each of several, Spark derives conditions, twice
            # as many with each one that `_wrong` looks at; for lines of JSON that takes minutes.
            values = ", ".join(columns.values())
            chosen = f"inline(array(struct({values}))) AS ({', '.join(names)})"
        else:
            chosen = ", ".join(
                f"{value} AS {name}" for name, value in zip(names, columns.values(), strict=True)
            )
        kept = place if with_location else []
        has_uri = with_location or files.only_run is None
        typed = ", ".join([*(["_uri"] if has_uri else []), *kept, chosen])
        rows, run = f"(SELECT {typed} FROM {origin})", "_run"
        if has_uri:
            runs = f"purgatory_runs_{next(_numbers)}"
            uris = [
                (uri, str(files.copied.get(path, path)), run)
                for path, run in files.run_of.items()
                for uri in _uris(path)
            ]
            local_table(self._session, uris, _FILES).createOrReplaceTempView(runs)
            rows = f"(SELECT /*+ broadcast(r) */ * FROM {rows} LEFT JOIN {runs} r USING (_uri))"
            kept = ["_uri", "_file", *kept] if with_location else []
        else:
            run = f"{SPARK.literal(files.only_run or '')} AS _run"
        rows = f"(SELECT *, {run} FROM {rows})" if not has_uri else rows
        derived = derived_columns(self._table)
        filled = ", ".join(
            f"{derived.get(name, backquoted(name))} AS {backquoted(name)}"
            for name in TABLES[self._table]
        )
        others = ", ".join(["_torn", "_wrong", "_run", *kept, *extra])
        return (
            f"SELECT *, {reason_sql(self._table)} AS _reason "
            f"FROM (SELECT {filled}, {others} FROM {rows})"
        )

    def _parsed(self, view: str, sources: Mapping[str, Source]) -> tuple[str, Mapping[str, Cell]]:
        """Lines with the object `_row` of their fields as text, and the SQL of each column from it.

        The line is parsed as the one element of a list in an object: otherwise Spark would take the
        first of two objects in a line, and ignore the second.
        """
        names = dict.fromkeys(source.name for source in sources.values() if source.name)
        fields = ", ".join(f"{backquoted(name)}: string" for name in names)
        schema = SPARK.literal(f"rows array<struct<{fields}>>, broken string")
        # Without this column, a text with a broken escape would be null in an unchanged row.
        options = {**JSON_OPTIONS, "columnNameOfCorruptRecord": "broken"}
        pairs = ", ".join(f"'{name}', '{value}'" for name, value in options.items())
        line = "concat('{\"rows\":[', _text, ']}')"
        parsed = f"from_json({line}, {schema}, map({pairs}))"
        is_row = "size(_parsed.rows) = 1 AND _parsed.broken IS NULL AND is_valid_utf8(_text)"
        rows = (
            f"(SELECT *, CASE WHEN {is_row} THEN _parsed.rows[0] END AS _row "
            f"FROM (SELECT *, {parsed} AS _parsed, make_valid_utf8(_text) AS _content FROM {view} "
            r"WHERE trim(BOTH ' \t\r' FROM _text) <> ''))"
        )
        return rows, {
            name: json_cell(sources[name], kind, "_row", "_text")
            for name, kind in TABLES[self._table].items()
        }


def has_local_files(session: SparkSession) -> bool:
    """Whether the driver and all executors have the files of this machine."""
    return not is_connect(session) and is_on_loopback(str(session.sparkContext.master))


def read_table(session: SparkSession, traces: Sequence[Trace], table: str) -> DataFrame:
    """The good rows of one table of traces. Lazy.

    `read_traces` reads all tables, and the bad rows too.
    """
    return TableRows(session, traces, table).good()


def id_texts(tables: Iterable[TableRows]) -> DataFrame:
    """The ids of some tables that are negative as numbers, with their texts; not distinct. Lazy."""
    return reduce(DataFrame.unionAll, [rows.id_texts() for rows in tables])


_SAME_NUMBERS = """
    SELECT min(text), max(text) FROM {texts} GROUP BY number HAVING min(text) <> max(text)
"""


def require_distinct_ids(texts: DataFrame) -> None:
    """Check that no two texts have the same number; one job over all of them.

    Args:
        texts: `id_texts` of all tables.

    Raises:
        TraceError: two have.
    """
    same = texts.sparkSession.sql(_SAME_NUMBERS, texts=texts).take(1)
    if same:
        raise TraceError(same_number(*same[0]))


def _check_case(session: SparkSession, path: TracePath, twin: str) -> None:
    """Refuse a session that ignores case and so confuses two columns; those started here don't."""
    if session.conf.get("spark.sql.caseSensitive") != "true":
        raise TraceError(
            f"{path}: the column {twin!r} has the name of another but for upper and lower case, "
            "which this session does not look at: set spark.sql.caseSensitive to true"
        )


def _check_nanos(session: SparkSession, path: TracePath) -> None:
    """Refuse a session that reads no times in nanoseconds; those started here do."""
    if session.conf.get(NANOS_AS_LONG) != "true":
        raise TraceError(
            f"{path}: has times in nanoseconds, which this session does not read: set "
            f"{NANOS_AS_LONG} to true"
        )


def spark_columns(kinds: Mapping[str, str]) -> str:
    """The columns of a table with their types, as Spark takes them."""
    return ", ".join(f"{backquoted(name)} {kind}" for name, kind in kinds.items())


_LINE_NUMBERS = """
    SELECT /*+ BROADCAST(blocks) */ bad.*, _before + _id - _first + 1 AS _line
    FROM {bad} bad JOIN (
        SELECT _uri, _block, min(_id) AS _first, coalesce(sum(count(*)) OVER (
                PARTITION BY _uri ORDER BY _block
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ), 0) AS _before
        FROM {lines} GROUP BY _uri, _block
    ) blocks USING (_uri, _block)
"""


def _with_line_numbers(bad: DataFrame, lines: DataFrame) -> DataFrame:
    """Bad lines with `_line`, their number in the file, from 1.

    Spark reads a file in blocks, and numbers the lines of each block one after the other, from an
    unknown number on. The lines of each block are therefore counted: O(blocks) rows, joined by
    broadcast.
    """
    return bad.sparkSession.sql(_LINE_NUMBERS, bad=bad, lines=lines)


def _uris(path: TracePath) -> list[str]:
    """The names that Spark may have for a file."""
    if isinstance(path, Path):
        return [scheme + _as_java_quotes(str(path)) for scheme in ("file:", "file://")]
    store, slash, inner = str(path).partition("://")[2].partition("/")
    return [f"{str(path).partition('://')[0]}://{store}{_as_java_quotes(slash + inner)}"]


def _as_java_quotes(path: str) -> str:
    """A path as Java writes it into a URI: characters beyond ASCII stay, unless they are spaces."""
    return "".join(
        letter
        if ord(letter) >= 128 and letter.isprintable() and not letter.isspace()
        else quote(letter, safe="/:@&=+$,;-_.!~*'()")
        for letter in path
    )


def _union(frames: Sequence[DataFrame], session: SparkSession, schema: str) -> DataFrame:
    if not frames:
        return local_table(session, [], schema)
    return reduce(DataFrame.unionAll, frames)


# Traces as data frames: the good rows of each table, the bad ones, and the runs.
#
# traces = read_traces(session, ["build/demo/trace"])
# traces.operations.groupBy("outcome").count().show()
# traces.quarantine.show()


RUNS = (
    "run_id string, scenario string, seed bigint, complete boolean, duration_ms bigint, "
    "producers array<struct<group: string, acks: bigint, idempotence: boolean, "
    "max_in_flight: bigint, retries: bigint, single_writer: boolean>>, "
    "consumers array<struct<group: string, assignment: string, isolation: string>>, folder string"
)
"""The columns of the table of runs; `producers` and `consumers` are null where nothing is known."""

_PRODUCER = ("group", "acks", "idempotence", "max_in_flight", "retries", "single_writer")
_CONSUMER = ("group", "assignment", "isolation")

Path_ = str | PathLike[str]


@dataclass(frozen=True)
class TraceTables:
    """The tables of some traces. All are lazy but `runs`, which is small.

    The tables of a trace have the columns that `docs/traces.md` describes, and good rows only;
    `quarantine` has the bad ones: rows in = rows out + quarantined.
    """

    traces: Sequence[Trace]
    operations: DataFrame
    sends: DataFrame
    reads: DataFrame
    effects: DataFrame
    commits: DataFrame
    transactions: DataFrame
    quarantine: DataFrame
    runs: DataFrame

    def require_clean(self) -> None:
        """Check that the quarantine is empty; reads everything once.

        Raises:
            TraceError: the first bad row or file, by file and line.
        """
        require_none(self.quarantine)


def require_none(quarantine: DataFrame) -> None:
    """Check that a quarantine is empty; reads it once.

    Raises:
        TraceError: the first bad row or file, by file and line.
    """
    first = quarantine.orderBy("file", "line").first()  # a null comes first
    if first is not None:
        raise first_error(first["file"], first["line"], first["reason"], first["detail"])


def read_traces(
    session: SparkSession,
    paths: Path_ | Sequence[Path_],
    mapping: GivenMapping = None,
    *,
    strict: bool = False,
) -> TraceTables:
    """The tables of all traces in some folders.

    The folders and the parts' footers are read at once: O(parts). Rows are read when a result is
    computed. CSV is read at once, into a temporary folder that goes with the session.

    Args:
        session: the caller's session.
        paths: a folder or several, each a trace or with traces in it at any depth; also URIs that
            the session reads, such as `s3a://bucket/runs`.
        mapping: of columns with other names: a TOML file's path, or its content as data.
        strict: raise an error for the first bad row or file; reads everything once.

    Raises:
        PipelineError: the session can't reach a URI.
        TraceError: no traces are there, or the mapping is invalid; strict, a row or a file is bad,
            or two ids that are texts became the same number.
    """
    roots = [paths] if isinstance(paths, str | PathLike) else paths
    locations = resolve_locations(
        lambda: HadoopFiles(session), [parse_location(os.fspath(root)) for root in roots]
    )
    trace_set = read_trace_set(locations, mapping_of(mapping), strict=strict)
    if has_csv(trace_set) and has_local_files(session):
        folder = TemporaryDirectory(prefix="purgatory-csv-", ignore_cleanup_errors=True)
        weakref.finalize(session, folder.cleanup)
        trace_set = with_copies(trace_set, Path(folder.name))
    rows = {table: TableRows(session, trace_set.traces, table) for table in TABLES}
    tables = trace_tables(session, trace_set, rows)
    if strict:
        tables.require_clean()
        require_distinct_ids(id_texts(rows.values()))
    return tables


def trace_tables(
    session: SparkSession, trace_set: TraceSet, table_rows: Mapping[str, TableRows]
) -> TraceTables:
    """The tables of the traces; lazy."""
    return TraceTables(
        trace_set.traces,
        **{table: rows.good() for table, rows in table_rows.items()},
        quarantine=quarantine_table(session, trace_set, table_rows),
        runs=session.createDataFrame([_run(trace) for trace in trace_set.traces], RUNS),
    )


def check_rows(
    session: SparkSession, trace_set: TraceSet, table_rows: Mapping[str, TableRows]
) -> RowCheck:
    """Check all rows of some tables in one pass; in two where ids are texts, or rows are bad.

    Raises:
        TraceError: two texts became the same number.
    """
    tables = table_rows.keys()
    with job_threads(session) as submit:
        counting = [submit(_row_counts, rows) for rows in table_rows.values()]
        counts = [row for ended in counting for row in ended.result()]
    good: dict[str, dict[str, int]] = {table: {} for table in tables}
    bad: Counter[tuple[str, str, str]] = Counter()
    last_ends_us: dict[str, int] = {}
    has_texts = False
    for row in counts:
        run_id, table = row["run_id"], row["table"]
        has_texts |= row["has_texts"]
        # Files of other columns are counted apart.
        if row["reason"] is not None:
            bad[run_id, table, row["reason"]] += row["rows"]
            continue
        good[table][run_id] = good[table].get(run_id, 0) + row["rows"]
        if row["end_us"] is not None:
            last_ends_us[run_id] = max(row["end_us"], last_ends_us.get(run_id, row["end_us"]))
    quarantined = [file for file in trace_set.quarantined if file.table in (None, *tables)]
    if has_texts:
        require_distinct_ids(id_texts(table_rows.values()))
    examples = {}
    if bad:
        rows = reduce(DataFrame.unionAll, [rows.bad() for rows in table_rows.values()])
        examples = examples_of(session.sql(FIRST_BAD_ROWS, quarantine=rows).toArrow().to_pylist())
    return RowCheck(good, bad, quarantined, last_ends_us, has_texts, examples)


def _row_counts(rows: TableRows) -> list[dict[str, Any]]:
    counts: list[dict[str, Any]] = rows.row_counts().toArrow().to_pylist()
    return counts


def quarantine_table(
    session: SparkSession, trace_set: TraceSet, table_rows: Mapping[str, TableRows]
) -> DataFrame:
    """The bad rows and files of some tables, and the bad heads; lazy."""
    bad = [rows.bad() for rows in table_rows.values()]
    quarantined = [
        quarantine_row(is_row)
        for is_row in trace_set.quarantined
        if is_row.table in (None, *table_rows)
    ]
    if quarantined:
        bad.append(local_table(session, quarantined, spark_columns(QUARANTINE)))
    return reduce(DataFrame.unionAll, bad)


def _run(trace: Trace) -> tuple[Any, ...]:
    return (
        trace.run_id,
        trace.scenario,
        trace.seed,
        trace.complete,
        trace.duration_ms,
        _settings(trace.producers, _PRODUCER),
        _settings(trace.consumers, _CONSUMER),
        str(trace.folder),
    )


def _settings(
    groups: Sequence[Mapping[str, object]] | None, names: Sequence[str]
) -> list[tuple[object, ...]] | None:
    return None if groups is None else [tuple(group.get(n) for n in names) for group in groups]
