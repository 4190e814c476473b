"""The trace: parts, completeness, and folders that it never overwrites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from purgatory.kafka import TopicPartition
from purgatory.simulation import TraceError
from purgatory.trace.table_rows import ROWS, CommitRow, OperationRow, ReadRow, TransactionRow
from purgatory.trace.trace_schema import REQUIRED_TABLES, SCHEMA_VERSION, TABLES
from purgatory.trace.trace_writer import ROWS_PER_PART, TableWriter, TraceWriter, arrow_schema


def read_row(offset: int) -> ReadRow:
    return ReadRow("readers", 0, 1, "events", 2, offset, 77, 1_000, True)


def writer(folder: Path, **more: Any) -> TraceWriter:
    return TraceWriter(folder, run_id="test-1", scenario="test", seed=1, **more)


def run_file(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return document


def test_rows_come_back_in_parts_and_in_order(tmp_path: Path) -> None:
    table = TableWriter(tmp_path / "reads", "reads", "test-1")
    count = ROWS_PER_PART + 10
    for offset in range(count):
        table.add(read_row(offset))
    table.close()
    parts = sorted(path.name for path in (tmp_path / "reads").iterdir())
    assert parts == ["part-00000.parquet", "part-00001.parquet"]
    assert (table.rows, table.parts) == (count, 2)
    back = pq.read_table(tmp_path / "reads")
    assert back.schema == arrow_schema("reads")
    assert back.column("offset").to_pylist() == list(range(count))
    assert back.column("run_id").unique().to_pylist() == ["test-1"]


def test_a_trace_is_incomplete_until_it_is_finished(tmp_path: Path) -> None:
    trace = writer(tmp_path / "trace")
    assert run_file(tmp_path / "trace")["complete"] is False
    trace.read(read_row(0))
    trace.finish(1_234, {"answer": 42})
    document = run_file(tmp_path / "trace")
    assert document["complete"] is True
    assert document["schema_version"] == SCHEMA_VERSION
    assert (document["run_id"], document["seed"], document["duration_ms"]) == ("test-1", 1, 1_234)
    assert document["tables"]["reads"] == {"parts": 1, "rows": 1}
    assert document["summary"] == {"answer": 42}
    # A table without rows has its schema all the same.
    assert sorted(document["tables"]) == sorted(REQUIRED_TABLES)
    for table in REQUIRED_TABLES:
        assert pq.read_table(tmp_path / "trace" / table).schema == arrow_schema(table)
    assert not list(tmp_path.rglob("*.part"))


def test_optional_table_exists_once_it_has_a_row(tmp_path: Path) -> None:
    trace = writer(tmp_path / "trace")
    trace.commit(CommitRow("readers", "events", 2, 11, 900, transaction=7, held=True))
    trace.transaction(TransactionRow(7, "copier", 3, "committed", "producer", 5, 10, 20, 30))
    trace.finish(1, {})
    document = run_file(tmp_path / "trace")
    assert sorted(document["tables"]) == sorted(ROWS)
    for table in ("commits", "transactions"):
        assert document["tables"][table] == {"parts": 1, "rows": 1}
        back = pq.read_table(tmp_path / "trace" / table)
        assert back.schema == arrow_schema(table)
        assert back["transaction"].to_pylist() == [7]
    writer(tmp_path / "trace", overwrite=True).finish(1, {})
    assert not (tmp_path / "trace" / "transactions").exists()


def test_an_abandoned_trace_keeps_its_rows_and_stays_incomplete(tmp_path: Path) -> None:
    trace = writer(tmp_path / "trace")
    trace.read(read_row(0))
    trace.abandon(500, "interrupted")
    document = run_file(tmp_path / "trace")
    assert (document["complete"], document["reason"]) == (False, "interrupted")
    assert document["tables"]["reads"]["rows"] == 1
    assert pq.read_table(tmp_path / "trace" / "reads").num_rows == 1


def test_a_trace_is_overwritten_only_when_allowed(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    writer(folder).finish(1, {})
    with pytest.raises(TraceError, match="is not empty; name another folder, or --overwrite it"):
        writer(folder)
    trace = writer(folder, overwrite=True)
    trace.finish(2, {})
    assert run_file(folder)["duration_ms"] == 2


def test_folder_without_a_trace_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(TraceError, match=r"is no trace \(thesis.txt\)"):
        writer(tmp_path, overwrite=True)
    with pytest.raises(TraceError, match="is a file"):
        writer(tmp_path / "thesis.txt")
    assert (tmp_path / "thesis.txt").read_text(encoding="utf-8") == "years of work"


def test_trace_is_written_into_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    writer(tmp_path / "trace").finish(1, {})
    assert run_file(tmp_path / "trace")["complete"] is True


def test_keys_are_written_as_names_in_order(tmp_path: Path) -> None:
    table = TableWriter(tmp_path / "operations", "operations", "test-1")
    first, second = TopicPartition("events", 0), TopicPartition("events", 11)
    given = [(first,), (second, first), (), (first, second), (first,)]
    for number, keys in enumerate(given):
        row = OperationRow(0, "Fetch", number, len(keys), 5, 1, 2, 1, "completed", "consumer", keys)
        table.add(row)
    table.close()
    back = pq.read_table(tmp_path / "operations")
    assert back.schema == arrow_schema("operations")
    assert back["watch_keys"].to_pylist() == [
        ["events-0"],
        ["events-11", "events-0"],
        [],
        ["events-0", "events-11"],
        ["events-0"],
    ]


def test_typed_rows_have_the_columns_of_the_schema() -> None:
    for table, row in ROWS.items():
        assert ("run_id", *row._fields) == tuple(TABLES[table])
