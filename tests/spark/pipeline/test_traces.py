"""The reading of traces, and the errors of invalid ones."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.ingest.spark_reader import read_traces
from purgatory.pipeline.ingest.trace_set import Fault, find_traces, read_trace, read_trace_set
from tests.spark.pipeline.reading_engines import ReadingEngine

WriteTrace = Callable[..., Path]


@pytest.fixture
def trace(write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path) -> Path:
    return write_trace(tmp_path / "root" / "trace", hand_operations, parts=2)


def _edit_head(trace: Path, **changes: Any) -> None:
    path = trace / "run.json"
    head = json.loads(path.read_text(encoding="utf-8"))
    head.update(changes)
    path.write_text(json.dumps(head), encoding="utf-8")


def test_trace_is_read_with_its_head_and_tables(trace: Path) -> None:
    found = read_trace(trace)
    assert (found.run_id, found.scenario, found.seed) == ("by-hand-1", "by-hand", 1)
    assert found.complete
    assert found.duration_ms == 1
    optional = {"effects": 0, "commits": 0, "transactions": 0}
    assert found.rows == {"operations": 8, "sends": 0, "reads": 0, **optional}
    assert [part.name for part in found.parts["operations"]] == [
        "part-00000.parquet",
        "part-00001.parquet",
    ]


def test_traces_are_found_at_any_depth_and_once(write_trace: WriteTrace, tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        write_trace(tmp_path / name / "deep" / "trace", [], run_id=f"run-{name}")
    roots = [tmp_path / "b", tmp_path, tmp_path / "b" / "deep" / "trace"]
    assert [trace.run_id for trace in find_traces(roots)] == ["run-a", "run-b", "run-c"]


def test_two_traces_with_one_run_id_are_both_named(trace: Path) -> None:
    copy = trace.parent / "copy"
    shutil.copytree(trace, copy)
    with pytest.raises(TraceError) as caught:
        find_traces([trace.parent])
    assert f"{copy} and {trace} both have the run id 'by-hand-1'" in str(caught.value)


def test_folder_without_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"contains no trace \(a folder with run\.json, or"):
        find_traces([tmp_path])


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere: there is no such folder"):
        find_traces([tmp_path / "nowhere"])


def test_folder_of_tables_is_a_trace(tmp_path: Path) -> None:
    for table in ("operations", "sends"):
        (tmp_path / "mine" / table).mkdir(parents=True)
        (tmp_path / "mine" / table / f"{table}.jsonl").touch()
    (found,) = find_traces([tmp_path])
    assert (found.run_id, list(map(len, found.files.values()))) == ("mine", [1, 1, 0, 0, 0, 0])


def test_unsearchable_folder_is_named(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, scandir = trace.parent / "hidden", os.scandir
    hidden.mkdir()

    def scan(folder: str) -> Any:
        if folder == str(hidden):
            raise PermissionError(errno.EACCES, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", scan)
    with pytest.raises(TraceError, match="hidden: can't be read: Permission denied"):
        read_trace_set([trace.parent])


def test_unreadable_folder_of_a_table_is_quarantined(trace: Path) -> None:
    shutil.rmtree(trace / "sends")
    (trace / "sends").symlink_to("sends")
    with pytest.raises(TraceError, match="sends: can't be read: Too many levels of symbolic"):
        read_trace(trace)
    found = read_trace_set([trace])
    assert not found.traces[0].complete
    assert [(file.table, file.reason) for file in found.quarantined] == [("sends", "torn file")]


def test_too_long_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="xxx: can't be read: File name too long"):
        find_traces([tmp_path / ("x" * 300)])


def test_folder_name_outside_utf_8_is_refused(trace: Path) -> None:
    os.rename(trace, os.fsencode(trace) + b"\xff")
    with pytest.raises(TraceError, match=r"trace\\xff': the name of .* must be UTF-8; rename it"):
        find_traces([trace.parent])


@pytest.mark.parametrize("name", ["run_id", "scenario"])
def test_text_with_half_a_character_is_refused(trace: Path, name: str) -> None:
    _edit_head(trace, **{name: "a\ud800b"})
    with pytest.raises(TraceError, match=rf"{name} must be whole characters, and is 'a\\ud800b'"):
        read_trace(trace)


def test_file_in_place_of_a_folder_is_refused(trace: Path) -> None:
    with pytest.raises(TraceError, match=r"run\.json: is a file"):
        find_traces([trace / "run.json"])


@pytest.mark.parametrize("version", [4, 0, "1", True, None])
def test_unknown_schema_version_is_refused(trace: Path, version: object) -> None:
    _edit_head(trace, schema_version=version)
    with pytest.raises(
        TraceError, match=rf"schema_version is {version!r}, and .* reads 1, 2 and 3"
    ):
        read_trace(trace)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_head_that_is_no_object_is_refused(trace: Path, text: str) -> None:
    (trace / "run.json").write_text(text, encoding="utf-8")
    with pytest.raises(TraceError, match=r"run\.json: (can't be read as JSON|must be an object)"):
        read_trace(trace)


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("run_id", 7, "str"),
        ("scenario", None, "str"),
        ("seed", "1", "int"),
        ("seed", True, "int"),
        ("duration_ms", 1.5, "int"),
        ("complete", "yes", "bool"),
        ("tables", [], "dict"),
    ],
)
def test_field_of_another_type_is_refused(trace: Path, name: str, value: object, kind: str) -> None:
    _edit_head(trace, **{name: value})
    with pytest.raises(TraceError, match=rf"{name} must be of type {kind}, and is"):
        read_trace(trace)


def test_faults_are_read_from_the_head(trace: Path) -> None:
    assert read_trace(trace).faults == []
    stall = {"kind": "stall_follower", "broker": 2, "at_ms": 4000, "duration_ms": 100}
    _edit_head(trace, faults=[stall, {"kind": "lose_responses", "at_ms": 7, "count": 1}])
    assert read_trace(trace).faults == [
        Fault(kind="stall_follower", at_ms=4000, duration_ms=100, broker=2),
        Fault(kind="lose_responses", at_ms=7, duration_ms=None, broker=None),
    ]


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ("none", "faults must be of type list"),
        ([7], "a fault must be an object, and is 7"),
        ([{"at_ms": 1}], "kind must be of type str, and is None"),
        ([{"kind": "stall", "at_ms": "1"}], "at_ms must be of type int"),
        ([{"kind": "stall", "at_ms": 1, "broker": 2.0}], "broker must be of type int"),
    ],
)
def test_impossible_faults_are_refused(trace: Path, faults: object, said: str) -> None:
    _edit_head(trace, faults=faults)
    with pytest.raises(TraceError, match=said):
        read_trace(trace)


def test_seed_beyond_64_bits_is_refused(trace: Path) -> None:
    _edit_head(trace, seed=2**63)
    with pytest.raises(TraceError, match="seed must fit 64 bits"):
        read_trace(trace)


@pytest.mark.parametrize("table", ["operations", "sends", "reads"])
def test_missing_table_is_refused(trace: Path, table: str) -> None:
    shutil.rmtree(trace / table)
    with pytest.raises(TraceError, match=f"the table '{table}' is missing"):
        read_trace(trace)


def test_removed_part_is_noticed(trace: Path) -> None:
    (trace / "operations" / "part-00001.parquet").unlink()
    with pytest.raises(TraceError, match=r"operations: has 1 parts, and run\.json says 2"):
        read_trace(trace)


def test_removed_rows_are_noticed(trace: Path) -> None:
    part = trace / "operations" / "part-00001.parquet"
    pq.write_table(pq.read_table(part).slice(1), part)
    with pytest.raises(TraceError, match=r"operations: has 7 rows, and run\.json says 8"):
        read_trace(trace)


def test_an_interrupted_trace_may_have_any_number_of_parts(trace: Path) -> None:
    _edit_head(trace, complete=False, duration_ms=0, tables={})
    (trace / "operations" / "part-00001.parquet").rename(
        trace / "operations" / "part-00001.parquet.part"
    )
    found = read_trace_set([trace])
    assert not found.traces[0].complete
    assert found.traces[0].rows["operations"] == 4
    (left,) = found.quarantined
    assert (left.run_id, left.table, left.reason) == ("by-hand-1", "operations", "unfinished file")
    assert left.path.name == "part-00001.parquet.part"
    with pytest.raises(TraceError, match="is not finished: its writer was interrupted"):
        read_trace(trace)


def test_part_that_is_no_parquet_is_refused(trace: Path) -> None:
    (trace / "sends" / "part-00000.parquet").write_bytes(b"PAR1, but no more")
    with pytest.raises(TraceError, match=r"part-00000\.parquet: can't be read as Parquet"):
        read_trace(trace)


def test_missing_column_is_named(trace: Path) -> None:
    part = trace / "operations" / "part-00000.parquet"
    pq.write_table(pq.read_table(part).drop_columns(["end_us"]), part)
    with pytest.raises(TraceError, match=r"the column 'end_us' \(bigint\) is missing"):
        read_trace(trace)


def test_column_of_another_type_is_refused(trace: Path) -> None:
    part = trace / "operations" / "part-00000.parquet"
    table = pq.read_table(part)
    at = table.column_names.index("wait_us")
    pq.write_table(table.set_column(at, "wait_us", table["wait_us"].cast(pa.string())), part)
    with pytest.raises(
        TraceError, match="the column 'wait_us' must be bigint or a timestamp, and is string"
    ):
        read_trace(trace)


def test_further_columns_and_other_ways_to_store_text_are_read(trace: Path) -> None:
    part = trace / "operations" / "part-00000.parquet"
    table = pq.read_table(part)
    at = table.column_names.index("outcome")
    table = table.set_column(at, "outcome", table["outcome"].dictionary_encode())
    table = table.append_column("note", pa.array([None] * len(table), pa.string()))
    pq.write_table(table, part)
    assert read_trace(trace).rows["operations"] == 8


def test_head_of_version_1_has_no_client_settings(trace: Path) -> None:
    found = read_trace(trace)
    assert (found.producers, found.consumers) == (None, None)


def test_client_settings_are_read_from_the_head(trace: Path) -> None:
    producers = [{"group": "orders", "acks": -1, "idempotence": True, "more": [1]}]
    consumers = [{"group": "billing", "assignment": "assign"}]
    _edit_head(trace, schema_version=2, producers=producers, consumers=consumers)
    found = read_trace(trace)
    assert (found.producers, found.consumers) == (producers, consumers)


@pytest.mark.parametrize(
    ("producers", "said"),
    [
        ({}, "producers must be of type list"),
        ([7], "producers must be objects, and one is 7"),
        ([{"acks": 1}], "group must be of type str, and is None"),
        ([{"group": "orders", "acks": "all"}], "acks must be of type int, and is 'all'"),
    ],
)
def test_impossible_client_settings_are_refused(trace: Path, producers: object, said: str) -> None:
    _edit_head(trace, schema_version=2, producers=producers)
    with pytest.raises(TraceError, match=said):
        read_trace(trace)


@pytest.mark.parametrize("as_json", [False, True])
def test_column_that_differs_only_by_case_is_ignored(
    reader: ReadingEngine, trace: Path, as_json: bool
) -> None:
    rows = [row | {"Broker": "another", "OUTCOME": 7} for row in _rows_of(trace)]
    shutil.rmtree(trace / "operations")
    if as_json:
        text = "\n".join(json.dumps(row) for row in rows)
        (trace / "operations.jsonl").write_text(text, encoding="utf-8")
        _edit_head(trace, tables={})
    else:
        (trace / "operations").mkdir()
        pq.write_table(pa.Table.from_pylist(rows), trace / "operations" / "part-00000.parquet")
        _edit_head(trace, tables={"operations": {"parts": 1, "rows": len(rows)}})
    found = reader.read(trace)
    names = ("broker", "outcome")
    assert sorted(tuple(row[name] for name in names) for row in found.rows("operations")) == sorted(
        tuple(row[name] for name in names) for row in rows
    )
    assert "operations" not in {row["table"] for row in found.quarantine}


@pytest.mark.spark
def test_case_insensitive_session_refuses_twin_columns(spark: SparkSession, trace: Path) -> None:
    part = trace / "operations" / "part-00000.parquet"
    table = pq.read_table(part)
    pq.write_table(table.append_column("Broker", table["broker"]), part)
    spark.conf.set("spark.sql.caseSensitive", "false")
    try:
        with pytest.raises(TraceError, match=r"the column 'Broker' .* set spark\.sql\.caseSens"):
            read_traces(spark, trace)
    finally:
        spark.conf.set("spark.sql.caseSensitive", "true")


def _rows_of(trace: Path) -> list[dict[str, Any]]:
    parts = sorted((trace / "operations").glob("*.parquet"))
    return [row for part in parts for row in pq.read_table(part).to_pylist()]
