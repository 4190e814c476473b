"""Traces on DuckDB: the parts of its reading that Spark does not share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.ingest.column_mapping import parse_mapping
from purgatory.pipeline.ingest.duckdb_reader import read_tables, require_none
from purgatory.pipeline.ingest.trace_set import QUARANTINE, read_trace_set
from purgatory.trace.trace_schema import TABLES
from tests.spark.pipeline.conftest import OPERATIONS
from tests.spark.pipeline.dirty_traces import DirtyTraces

WriteTrace = Callable[..., Path]


def _kinds(connection: duckdb.DuckDBPyConnection, table: str) -> dict[str, str]:
    relation = connection.table(table)
    return dict(zip(relation.columns, map(str, relation.types), strict=True))


_KINDS = {
    "string": "VARCHAR",
    "bigint": "BIGINT",
    "int": "INTEGER",
    "boolean": "BOOLEAN",
    "array<string>": "VARCHAR[]",
}


def _as_duckdb(kinds: Mapping[str, str]) -> dict[str, str]:
    return {name: _KINDS[kind] for name, kind in kinds.items()}


def test_tables_have_all_columns_and_replace_earlier_ones(
    write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path
) -> None:
    connection = duckdb.connect()
    connection.execute("CREATE TEMP TABLE effects AS SELECT 1 AS other")
    found = read_trace_set([write_trace(tmp_path, hand_operations)])
    for _ in range(2):
        tables = read_tables(connection, found)
        assert {table: _kinds(connection, table) for table in TABLES} == {
            table: _as_duckdb(kinds) for table, kinds in TABLES.items()
        }
        assert _kinds(connection, "quarantine") == _as_duckdb(QUARANTINE)
        assert tables.counts() == []
        require_none(connection)
        assert len(connection.table("operations")) == len(hand_operations)


def test_only_requested_tables_are_read(tmp_path: Path) -> None:
    DirtyTraces(1).write_json(tmp_path / "run", 20)
    connection = duckdb.connect()
    tables = read_tables(connection, read_trace_set([tmp_path]), ["reads"])
    assert {row["table"] for row in tables.counts()} == {"reads"}
    with pytest.raises(duckdb.CatalogException):
        connection.table("sends")


def test_file_with_a_whole_footer_and_broken_data_is_an_error(
    write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path
) -> None:
    trace = write_trace(tmp_path, hand_operations * 1_000, parts=2)
    part = trace / "operations" / "part-00001.parquet"
    data = part.read_bytes()
    part.write_bytes(data[:100] + bytes(len(data) // 2) + data[100 + len(data) // 2 :])
    with pytest.raises(TraceError, match=r"part-00001\.parquet: can't be read as Parquet: "):
        read_tables(duckdb.connect(), read_trace_set([trace]))


def test_parts_may_differ_in_signedness_and_further_columns(
    write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path
) -> None:
    trace = write_trace(tmp_path, hand_operations, parts=2)
    for number, (kind, name) in enumerate([(pa.uint16(), "file_row_number"), (pa.int32(), "é")]):
        part = trace / "operations" / f"part-0000{number}.parquet"
        table = pq.read_table(part)
        at = table.column_names.index("broker")
        values = pa.array([60_000 + number * 100_000] * len(table), kind)
        table = table.set_column(at, "broker", values)
        pq.write_table(table.append_column(name, pa.array([1] * len(table))), part)
    connection = duckdb.connect()
    assert read_tables(connection, read_trace_set([trace])).counts() == []
    brokers = connection.execute("SELECT DISTINCT broker FROM operations ORDER BY ALL").fetchall()
    assert brokers == [(60_000,), (160_000,)]


@pytest.mark.parametrize("folder", ["a=1", "[x]{y}*?\\", "it's $run ü%20"])
def test_folder_names_may_have_any_letters(
    write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path, folder: str
) -> None:
    bad = hand_operations[0]._replace(start_us=-1)
    trace = write_trace(tmp_path / folder, [*hand_operations, bad], parts=2, run_id=folder + "\0")
    connection = duckdb.connect()
    read_tables(connection, read_trace_set([trace]))
    assert connection.execute(
        "SELECT run_id, count(*) FROM operations GROUP BY ALL"
    ).fetchall() == [(folder + "\0", len(hand_operations))]
    assert connection.execute("SELECT file, line FROM quarantine").fetchall() == [
        (str(trace / "operations" / "part-00000.parquet"), 5)
    ]


def test_column_named_as_the_row_number_is_read(
    write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path
) -> None:
    trace = write_trace(tmp_path, hand_operations)
    part = trace / "operations" / "part-00000.parquet"
    table = pq.read_table(part)
    table = table.rename_columns({"start_us": "_line", "keys": "_torn", "broker": "_wrong"})
    pq.write_table(table, part)
    names = {"start_us": "_line", "keys": "_torn", "broker": "_wrong"}
    connection = duckdb.connect()
    found = read_trace_set([trace], parse_mapping({"operations": names}))
    assert read_tables(connection, found).counts() == []
    assert len(connection.table("operations")) == len(hand_operations)


def test_text_outside_utf8_is_an_error(
    write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path
) -> None:
    trace = write_trace(tmp_path, hand_operations)
    part = trace / "operations" / "part-00000.parquet"
    table = pq.read_table(part, schema=OPERATIONS)
    at = table.column_names.index("kind")
    kinds = pa.array([b"\xff"] * len(table), pa.binary()).view(pa.string())
    pq.write_table(table.set_column(at, "kind", kinds), part)
    with pytest.raises(TraceError, match=r"part-00000\.parquet: can't be read as Parquet: "):
        read_tables(duckdb.connect(), read_trace_set([trace]))


def test_import_of_the_pipeline_imports_no_spark() -> None:
    program = (
        "import sys; from purgatory.pipeline.ingest.duckdb_reader import read_tables; "
        "assert 'duckdb' in sys.modules; sys.exit('pyspark' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
