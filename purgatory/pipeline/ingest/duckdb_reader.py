"""Traces as DuckDB tables: the good rows of each table, and the bad ones with reason and location.

    connection = duckdb.connect()
    check = read_tables(connection, read_trace_set([Path("build/demo/trace")]))
    connection.sql("SELECT outcome, count(*) FROM operations GROUP BY outcome").show()
    check.counts()

The rules are the same as in `spark_reader`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import groupby

import duckdb
import pyarrow as pa

from purgatory.pipeline.engines.duckdb.sql_engine import make_table
from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.ingest.column_casts import line_cell, same_number
from purgatory.pipeline.ingest.column_mapping import sources_of
from purgatory.pipeline.ingest.json_lines import ARROW_KINDS, JsonLines
from purgatory.pipeline.ingest.parquet_rows import (
    ARROW,
    DUCKDB,
    MACROS,
    ParquetRows,
    Rows,
    count_good,
    insert_good,
    insert_texts,
    list_bad,
    select_good,
)
from purgatory.pipeline.ingest.quarantine_rules import MOST_CONTENT
from purgatory.pipeline.ingest.trace_files import Part
from purgatory.pipeline.ingest.trace_set import (
    QUARANTINE,
    RowCheck,
    Trace,
    TraceSet,
    examples_of,
    first_error,
    quarantine_row,
)
from purgatory.trace.trace_schema import TABLES

LEAST_IN_PLACE = 250_000
"""The least number of rows of a run's table that stay in their files, and are not copied."""

_QUARANTINE = pa.schema([(name, ARROW_KINDS[kind]) for name, kind in QUARANTINE.items()])


def read_tables(
    connection: duckdb.DuckDBPyConnection,
    trace_set: TraceSet,
    names: Collection[str] = tuple(TABLES),
    in_place: Collection[str] = (),
) -> RowCheck:
    """Make temporary tables of the traces, each with all columns, and `quarantine`.

    All files are read once, and those with bad rows a second time: O(rows). Lines of JSON that are
    not plain cost more than the others, and so do numbers that a mapping computes.

    The table `id_texts` has the `text` of each id that is negative as a number. The result has no
    numbers of good rows.

    Args:
        connection: gets the tables, in place of others of their names.
        trace_set: the traces.
        names: the tables to read; `quarantine` leaves out others, too.
        in_place: those that may be views of files without bad rows: a query of few columns reads no
            others, and no row is held in memory.

    Raises:
        TraceError: a file that could be opened can't be read to its end, or two ids that are texts
            became the same number.
    """
    for macro in MACROS:
        connection.execute(macro)
    make_table(connection, "quarantine", QUARANTINE)
    quarantined = [file for file in trace_set.quarantined if file.table in (None, *names)]
    _quarantine(connection, list(map(quarantine_row, quarantined)))
    make_table(connection, "id_texts", {"number": "bigint", "text": "string"})
    texts = any(
        part.kinds is None or any(name in ids and kind == "string" for name, kind in part.kinds)
        for trace in trace_set.traces
        for table in names
        for sources in [sources_of(table, trace.mapping)]
        for ids in [{source.name for source in sources.values() if source.is_id}]
        for part in trace.files[table]
    )
    for name in names:
        target = f"{name}_copied" if name in in_place else name
        make_table(connection, target, TABLES[name])
        views: list[str] = []
        for trace in trace_set.traces:
            _TraceTable(connection, trace, name, texts, target, views).read()
        if name in in_place:
            rows = " UNION ALL ".join([f"FROM {target}", *views])
            connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {rows}")
    _require_distinct_ids(connection)
    bad = (
        connection.execute(
            'SELECT run_id, "table", reason, count(*) AS number, '
            "min({'file': file, 'line': line, 'detail': detail}) AS first "
            "FROM quarantine WHERE line IS NOT NULL GROUP BY ALL"
        )
        .to_arrow_table()
        .to_pylist()
    )
    last_ends_us = {}
    if "operations" in names:
        ends = connection.execute("SELECT run_id, max(end_us) FROM operations GROUP BY run_id")
        last_ends_us = dict(ends.fetchall())
    counts = {(row["run_id"], row["table"], row["reason"]): row["number"] for row in bad}
    return RowCheck({}, counts, quarantined, last_ends_us, texts, examples_of(bad))


def require_none(connection: duckdb.DuckDBPyConnection) -> None:
    """Raise TraceError for the first row in the quarantine, by file and line."""
    first = connection.execute(
        "SELECT file, line, reason, detail FROM quarantine ORDER BY file, line NULLS FIRST LIMIT 1"
    ).fetchone()
    if first is not None:
        raise first_error(*first)


def _require_distinct_ids(connection: duckdb.DuckDBPyConnection) -> None:
    same = connection.execute(
        'SELECT min("text"), max("text") FROM id_texts GROUP BY number '
        'HAVING min("text") <> max("text") LIMIT 1'
    ).fetchone()
    if same is not None:
        raise same_number(*same)


@dataclass
class _TraceTable:
    """Reads one table of one trace: into a table, or large files into the list of views."""

    connection: duckdb.DuckDBPyConnection
    trace: Trace
    table: str
    texts: bool
    target: str
    views: list[str]

    def __post_init__(self) -> None:
        self.sources = sources_of(self.table, self.trace.mapping)

    def read(self) -> None:
        """Insert the good rows of all files, and quarantine the others."""
        parts = sorted(self.trace.files[self.table], key=lambda part: part.kinds or ())
        for kinds, parts_of_kind in groupby(parts, key=lambda part: part.kinds):
            if kinds is None:
                for part in parts_of_kind:
                    self._read_json(part)
            else:
                rows = ParquetRows(self.table, self.sources, dict(kinds), self.trace.run_id)
                self._read_parquet(rows, list(parts_of_kind))

    def _read_parquet(self, rows: ParquetRows, parts: Sequence[Part]) -> None:
        inserted = self._insert_whole_files(rows, parts)
        if inserted is not None and inserted == sum(part.rows or 0 for part in parts):
            return
        for part in parts:
            for piece in rows.pieces(part):
                piece_rows = rows.piece_rows()
                self._take(
                    part, piece_rows, piece.columns, piece.contents, has_good=inserted is not None
                )

    def _insert_whole_files(self, rows: ParquetRows, parts: Sequence[Part]) -> int | None:
        """Insert whole files; return the number of good rows, or None if DuckDB can't read them."""
        whole = rows.whole_files(parts)
        if whole is None:
            return None
        try:
            inserted = self._keep_in_files(whole, sum(part.rows or 0 for part in parts))
            inserted = inserted or insert_good(self.connection, self.table, whole, self.target)
            if self.texts:
                insert_texts(self.connection, whole)
            return inserted
        except (duckdb.InterruptException, duckdb.OutOfMemoryException):
            raise
        except duckdb.Error:
            return None  # such as an unsupported type of a column; nothing was inserted

    def _keep_in_files(self, rows: Rows, number: int) -> int:
        """Add a view of the files if all rows are good; return the number of rows in it."""
        if self.target == self.table or number < LEAST_IN_PLACE:
            return 0
        if count_good(self.connection, self.table, rows) < number:
            return 0
        self.views.append(select_good(self.table, rows))
        return number

    def _read_json(self, part: Part) -> None:
        cells = {
            name: line_cell(name, kind, self.sources[name], DUCKDB)
            for name, kind in TABLES[self.table].items()
        }
        rows = Rows(self.trace.run_id, ARROW, cells, torn="_torn")
        try:
            for block in JsonLines(TABLES[self.table], self.sources).blocks(part.here):
                self._take(part, rows, block.columns, block.contents)
        except (OSError, EOFError, csv.Error) as error:
            raise TraceError(f"{part.path}: can't be read: {error}") from error

    def _take(
        self,
        part: Part,
        rows: Rows,
        columns: pa.Table,
        contents: Callable[[Sequence[int]], Sequence[str]],
        *,
        has_good: bool = False,
    ) -> None:
        """Insert the good rows of a piece of a file unless `has_good`, and quarantine the others.

        A torn line counts as a row.
        """
        self.connection.register(ARROW, columns)
        try:
            if self.texts and not has_good:
                insert_texts(self.connection, rows)
            if not has_good:
                inserted = insert_good(self.connection, self.table, rows, self.target)
                if inserted == len(columns):
                    return
            bad = list_bad(self.connection, self.table, rows)
        finally:
            self.connection.unregister(ARROW)
        origin = (self.trace.run_id, self.table, str(part.path))
        texts = contents([line for line, _, _ in bad])
        bad_rows = zip(bad, texts, strict=True)
        _quarantine(
            self.connection,
            [(*origin, *row[:1], 1, *row[1:], text[:MOST_CONTENT]) for row, text in bad_rows],
        )


def _quarantine(connection: duckdb.DuckDBPyConnection, rows: Sequence[tuple[object, ...]]) -> None:
    if not rows:
        return
    columns = [
        pa.array(values, kind)
        for values, kind in zip(zip(*rows, strict=True), _QUARANTINE.types, strict=True)
    ]
    connection.register(ARROW, pa.Table.from_arrays(columns, schema=_QUARANTINE))
    try:
        connection.execute(f"INSERT INTO quarantine SELECT * FROM {ARROW}")
    finally:
        connection.unregister(ARROW)
