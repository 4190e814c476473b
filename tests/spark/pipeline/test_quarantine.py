"""Bad rows: reported by reason and place, and never lost."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.ingest.quarantine_rules import MOST_CONTENT
from purgatory.pipeline.ingest.spark_reader import read_traces
from tests.spark.pipeline.reading_engines import FoundRows, ReadingEngine

WriteTrace = Callable[..., Path]

OPERATION = {
    "broker": 1,
    "purgatory": "Produce",
    "operation": 1,
    "keys": 1,
    "timeout_ms": 1_500,
    "start_us": 10,
    "end_us": 50,
    "wait_us": 40,
    "outcome": "completed",
    "kind": "producer",
}
READ = {
    "group": "billing",
    "consumer": 0,
    "poll": 1,
    "topic": "orders",
    "partition": 0,
    "offset": 0,
    "value_id": 7,
    "time_us": 5,
    "applied": True,
}

CHANGES: list[tuple[dict[str, Any], str | None]] = [
    ({}, None),
    ({"start_us": "10"}, None),  # a number in quotes, as some tools write large ones
    ({"wait_us": None}, None),  # follows from the two others
    ({"more": {"deep": [1, "}"]}}, None),
    ({"kind": "7"}, None),
    ({"watch_keys": ["orders-0", "orders-1"]}, None),
    ({"run_id": "run"}, None),
    ({"start_us": "soon"}, "wrong type"),
    ({"start_us": 1.5}, "wrong type"),
    ({"start_us": True}, "wrong type"),
    ({"broker": 2**31}, "wrong type"),
    ({"end_us": 2**63}, "wrong type"),
    ({"kind": 7}, "wrong type"),
    ({"kind": {"a": 1}}, "wrong type"),
    ({"outcome": ["completed"]}, "wrong type"),
    ({"watch_keys": "orders-0"}, "wrong type"),
    ({"watch_keys": []}, None),
    ({"watch_keys": ["orders-0", None]}, "missing column"),
    ({"kind": None}, "missing column"),
    ({"keys": None}, "missing column"),
    ({"start_us": -1, "wait_us": 51}, "impossible time"),
    ({"end_us": 9, "wait_us": -1}, "impossible time"),
    ({"wait_us": 41}, "impossible time"),
    ({"start_us": -(2**63), "end_us": 2**63 - 1}, "impossible time"),
    ({"end_us": 2**53, "wait_us": None}, None),
    ({"end_us": 2**53 + 1, "wait_us": None}, "impossible time"),
    ({"timeout_ms": -1}, "negative number"),
    ({"keys": -1}, "negative number"),
    ({"run_id": "other"}, "row of another run"),
]
SEND = {
    "group": "shop",
    "producer": 0,
    "sequence": 0,
    "attempt": 1,
    "key": 7,
    "value_id": 7,
    "acks": -1,
    "outcome": "ok",
    "send_us": 5,
    "answer_us": 9,
    "topic": "orders",
    "partition": 0,
    "offset": 0,
    "size_bytes": 10,
}
TRANSACTION = {
    "transaction": 1,
    "transactional_id": "t",
    "epoch": 0,
    "outcome": "committed",
    "begun_us": 5,
}
ROWS: list[tuple[str, dict[str, Any], str | None]] = [
    ("sends", {**SEND, "created_us": 0, "arrived_us": 6, "served_us": 6, "settled_us": 6}, None),
    ("sends", {**SEND, "served_us": 9}, None),
    ("sends", {**SEND, "offset": 2**53, "answer_us": 2**53}, None),
    ("sends", {**SEND, "offset": 2**53 + 1}, "number too large"),
    ("sends", {**SEND, "answer_us": 2**63 - 1}, "impossible time"),
    ("sends", {**SEND, "created_us": -(2**63)}, "impossible time"),
    ("sends", {**SEND, "arrived_us": -1}, "impossible time"),
    ("sends", {**SEND, "arrived_us": 8, "served_us": 7}, "impossible time"),
    ("sends", {**SEND, "served_us": 8, "settled_us": 7}, "impossible time"),
    ("sends", {**SEND, "arrived_us": 8, "settled_us": 7}, "impossible time"),
    ("reads", {**READ, "time_us": 2**63 - 1}, "impossible time"),
    ("reads", {**READ, "fetch_offset": 2**63 - 1}, "number too large"),
    ("transactions", {**TRANSACTION, "epoch_us": 5, "ended_us": 5}, None),
    ("transactions", {**TRANSACTION, "epoch_us": -1}, "impossible time"),
    ("transactions", {**TRANSACTION, "decided_us": 4}, "impossible time"),
    ("transactions", {**TRANSACTION, "ended_us": 2**63 - 1}, "impossible time"),
]

LINES: list[tuple[bytes, str | None]] = [
    *((json.dumps({**OPERATION, **change}).encode(), reason) for change, reason in CHANGES),
    (json.dumps({**OPERATION, "kind": "ü"}, ensure_ascii=False).encode(), None),
    (json.dumps(OPERATION).encode() + b" \r", None),
    (json.dumps(OPERATION).encode()[:-1], "torn line"),
    (json.dumps(OPERATION).encode() * 2, "torn line"),
    (json.dumps(OPERATION).encode() + b"," + json.dumps(OPERATION).encode(), "torn line"),
    (json.dumps([OPERATION]).encode(), "torn line"),
    (json.dumps({**OPERATION, "kind": "#"}).encode().replace(b"#", b"\xff"), "torn line"),
    (json.dumps(OPERATION).replace('"', "'").encode(), "torn line"),
    (json.dumps({**OPERATION, "kind": "#"}).encode().replace(b"#", rb"\u00f"), "torn line"),
    (json.dumps({**OPERATION, "watch_keys": "#"}).encode().replace(b"#", rb"\x"), "torn line"),
    (b"null", "torn line"),
    (b"7", "torn line"),
    (b"\x00", "torn line"),
]


def _places(found: FoundRows) -> list[tuple[int | None, str]]:
    return [(row["line"], row["reason"]) for row in found.quarantine]


def _json_trace(folder: Path, lines: list[bytes], *, name: str = "operations.jsonl") -> Path:
    folder.mkdir(parents=True)
    (folder / name).write_bytes(b"\n".join(lines))
    return folder


def test_each_bad_line_has_its_reason_and_its_number(reader: ReadingEngine, tmp_path: Path) -> None:
    lines = [line for line, _ in LINES]
    lines.insert(3, b"")  # an empty line is no row, and counts in the numbers
    found = reader.read(_json_trace(tmp_path / "run", lines))
    wanted = [reason for _, reason in LINES]
    wanted.insert(3, None)
    assert _places(found) == [
        (number, reason) for number, reason in enumerate(wanted, 1) if reason is not None
    ]
    assert len(found.rows("operations")) == wanted.count(None) - 1
    row = next(row for row in found.quarantine if row["reason"] == "impossible time")
    assert json.loads(row.pop("content")) == {**OPERATION, "start_us": -1, "wait_us": 51}
    assert row == {
        "run_id": "run",
        "table": "operations",
        "file": str(tmp_path / "run" / "operations.jsonl"),
        "line": LINES.index(next(one for one in LINES if one[1] == "impossible time")) + 2,
        "rows": 1,
        "reason": "impossible time",
        "detail": "start_us is -1",
    }


def test_impossible_numbers_are_quarantined(reader: ReadingEngine, tmp_path: Path) -> None:
    for table in ("sends", "reads", "transactions"):
        rows = [json.dumps(row) for name, row, _ in ROWS if name == table]
        (tmp_path / f"{table}.jsonl").write_text("\n".join(rows))
    found = reader.read(tmp_path)
    quarantined = {(row["table"], row["content"]): row["reason"] for row in found.quarantine}
    assert [quarantined.get((table, json.dumps(row))) for table, row, _ in ROWS] == [
        reason for _, _, reason in ROWS
    ]


mangled = st.one_of(
    st.sampled_from([line for line, _ in LINES]),
    st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")),
    st.tuples(
        st.sampled_from([line for line, _ in LINES]), st.integers(0, 200), st.binary(max_size=3)
    ).map(lambda cut: (cut[0][: cut[1]] + cut[2] + cut[0][cut[1] + 1 :]).replace(b"\n", b"")),
)


@settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(mangled, min_size=150, max_size=250))
def test_input_rows_are_read_or_quarantined(
    reader: ReadingEngine, tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    found = reader.read(_json_trace(tmp_path_factory.mktemp("mangled") / "run", lines))
    rows = [number for number, line in enumerate(lines, 1) if line.strip(b" \t\r")]
    bad = [line for line, _ in _places(found)]
    assert len(found.rows("operations")) + len(bad) == len(rows)
    assert len(set(bad)) == len(bad)
    assert set(bad) <= set(rows)


@pytest.mark.spark
def test_line_numbers_continue_over_the_blocks_of_a_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    good, torn = json.dumps(OPERATION).encode(), b'{"broker":'
    bad = {1, 2, 700, 1_999, 2_000}
    lines = [torn if number in bad else good for number in range(1, 2_001)]
    size = sum(map(len, lines))
    trace = _json_trace(tmp_path / "run", lines)
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(size // 7))
    try:
        tables = read_traces(spark, trace)
        assert tables.operations.rdd.getNumPartitions() >= 7
        assert {row.line for row in tables.quarantine.collect()} == bad
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", str(before))


def test_files_of_several_runs_are_distinguished(reader: ReadingEngine, tmp_path: Path) -> None:
    strange = "a b%20+#ü?[x]{y}*&=;@\u00a0'"
    for name in (strange, "plain"):
        lines = [json.dumps({**READ, "offset": offset}).encode() for offset in (3, -1)]
        _json_trace(tmp_path / name, lines, name="reads.jsonl")
    (tmp_path / "plain" / "reads.jsonl").write_bytes(
        json.dumps({**READ, "run_id": strange}).encode()
    )
    found = reader.read(tmp_path)
    assert [(row["run_id"], row["offset"]) for row in found.rows("reads")] == [(strange, 3)]
    names = ("run_id", "file", "line", "reason")
    assert [tuple(row[name] for name in names) for row in found.quarantine] == [
        (strange, str(tmp_path / strange / "reads.jsonl"), 2, "negative number"),
        ("plain", str(tmp_path / "plain" / "reads.jsonl"), 1, "row of another run"),
    ]


def test_long_bad_row_is_kept_up_to_its_limit(reader: ReadingEngine, tmp_path: Path) -> None:
    _json_trace(tmp_path / "run", [json.dumps({**OPERATION, "run_id": "x" * 100_000}).encode()])
    (bad,) = reader.read(tmp_path).quarantine
    assert bad["detail"] == "run_id is " + "x" * (MOST_CONTENT - len("run_id is "))
    assert len(bad["content"]) == MOST_CONTENT


def test_bad_rows_of_parquet_are_quarantined(
    reader: ReadingEngine, write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path
) -> None:
    changes: dict[int, tuple[dict[str, Any], str]] = {
        1: ({"start_us": -5}, "impossible time"),
        3: ({"wait_us": 7}, "impossible time"),
        4: ({"kind": None}, "missing column"),
        5: ({"run_id": "elsewhere"}, "row of another run"),
        8: ({"keys": -1}, "negative number"),
    }
    trace = write_trace(tmp_path / "trace", hand_operations)
    part = trace / "operations" / "part-00000.parquet"
    table = pq.read_table(part)
    rows = table.to_pylist()
    for number, (change, _) in changes.items():
        rows[number - 1].update(change)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), part)
    found = reader.read(trace)
    assert _places(found) == [(number, reason) for number, (_, reason) in changes.items()]
    assert {(row["file"], row["rows"]) for row in found.quarantine} == {(str(part), 1)}
    assert json.loads(found.quarantine[3]["content"])["run_id"] == "elsewhere"
    assert len(found.rows("operations")) == 3
    with pytest.raises(TraceError, match=r"part-00000\.parquet:1: impossible time: start_us is -5"):
        reader.read(trace, strict=True)


def test_unreadable_files_are_quarantined_as_a_whole(
    reader: ReadingEngine, write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path
) -> None:
    trace = write_trace(tmp_path / "traces" / "1", hand_operations, parts=4)
    parts = [trace / "operations" / f"part-0000{number}.parquet" for number in range(4)]
    table = pq.read_table(parts[0])
    at = table.column_names.index("end_us")
    pq.write_table(table.set_column(at, "end_us", pc.cast(table["end_us"], pa.string())), parts[0])
    pq.write_table(pq.read_table(parts[1]).drop_columns(["outcome"]), parts[1])
    parts[2].write_bytes(parts[2].read_bytes()[:-10])
    future = write_trace(tmp_path / "traces" / "2", [], run_id="future", schema_version=4)
    packed = _json_trace(tmp_path / "traces" / "3", [])
    whole = gzip.compress(json.dumps(READ).encode())
    (packed / "reads.jsonl.gz").write_bytes(whole[:-5])
    found = reader.read(tmp_path / "traces")
    assert {
        (row["file"], row["reason"]): row["rows"] for row in found.quarantine if row["line"] is None
    } == {
        (str(parts[0]), "wrong type"): 2,
        (str(parts[1]), "missing column"): 2,
        (str(parts[2]), "torn file"): None,
        (str(future / "run.json"), "schema version"): None,
        (str(packed / "reads.jsonl.gz"), "torn file"): None,
    }
    assert len(found.rows("operations")) == 2
    assert found.complete == {"by-hand-1": False, "3": False}
    counts = {(row["table"], row["reason"]): (row["rows"], row["files"]) for row in found.counts}
    assert list(counts) == sorted(counts, key=lambda key: (key[0] or "", key[1]))
    assert counts[("operations", "wrong type")] == (2, 1)
    assert counts[("reads", "torn file")] == (0, 1)
    with pytest.raises(
        TraceError, match="the column 'end_us' must be bigint or a timestamp, and is string"
    ):
        reader.read(tmp_path / "traces", strict=True)


def test_an_interrupted_run_is_read_as_far_as_it_got(
    reader: ReadingEngine, write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path
) -> None:
    trace = write_trace(tmp_path, hand_operations, parts=2, complete=False, tables={})
    last = trace / "operations" / "part-00001.parquet"
    left = last.rename(last.with_name("part-00001.parquet.part"))
    left.write_bytes(left.read_bytes()[:50])
    found = reader.read(trace)
    assert len(found.rows("operations")) == 4
    assert list(found.complete.values()) == [False]
    (row,) = found.quarantine
    names = ("file", "line", "rows", "reason")
    assert [row[name] for name in names] == [str(left), None, None, "unfinished file"]


def test_trace_of_version_1_has_nulls_for_new_columns(
    reader: ReadingEngine, write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path
) -> None:
    found = reader.read(write_trace(tmp_path, hand_operations), strict=True)
    rows = found.rows("operations")
    assert [row["watch_keys"] for row in rows] == [None] * len(hand_operations) == [None] * 8
    assert {table: found.rows(table) for table in ("effects", "commits")} == {
        "effects": [],
        "commits": [],
    }


@pytest.mark.spark
def test_run_of_version_1_has_no_client_settings(
    spark: SparkSession, write_trace: WriteTrace, tmp_path: Path
) -> None:
    tables = read_traces(spark, str(write_trace(tmp_path, [])), strict=True)
    assert "version" in tables.effects.columns
    (run,) = tables.runs.collect()
    assert (run.producers, run.consumers) == (None, None)
