"""Mappings: what they say, and in which words one is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purgatory.analysis.errors import TraceError
from purgatory.analysis.traces.column_mapping import Source, read_mapping
from tests.analysis.reading_engines import ReadingEngine

WriteTrace = Callable[..., Path]

MAPPING = """
[reads]
group = { value = "billing's" }
partition = "Shard `1`"
time_us = { from = "at_ms", times = 1000, plus = -5_000_000 }
offset = { from = "place", times = 0.001 }
applied = { value = true }
"""
LINE = {"consumer": 0, "poll": 1, "topic": "t", "Shard `1`": 3, "value_id": 7}


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mapping.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_a_mapping_says(tmp_path: Path) -> None:
    reads = read_mapping(_file(tmp_path, MAPPING))["reads"]
    assert reads["partition"] == Source("Shard `1`")
    assert reads["time_us"] == Source("at_ms", Decimal(1000), Decimal(-5_000_000))
    assert reads["applied"] == Source(None, value=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[reads\n", r"mapping\.toml: is not TOML: .* \(at line 1, column 7\)"),
        ("reads = 1", r"mapping\.toml: reads must be a section \[reads\]"),
        ("[read]", r"\[read\]: there is no such table; there are operations, sends, reads"),
        ("[reads]\ntime = 'x'", r"reads\.time: there is no such column; there are run_id, group"),
        ("[reads]\ntime_us = 5", r"reads\.time_us must be a name or \{ from"),
        ("[reads]\ntime_us = {form = 'x'}", r"reads\.time_us\.form: is not known"),
        ("[reads]\ntime_us = {times = 2}", "must have either from or value, and has times"),
        ("[reads]\ntime_us = {from = 'x', value = 2}", "and has from and value"),
        ("[reads]\ntime_us = {from = ''}", r"time_us\.from must be the name of a column"),
        ("[reads]\ntime_us = {from = 'x', times = 'y'}", "times must be a number up to"),
        ("[reads]\ntime_us = {from = 'x', times = nan}", "times must be a number up to"),
        ("[reads]\ntime_us = {from = 'x', plus = 1e-10}", "at most 9 digits after the point"),
        ("[reads]\ntopic = {from = 'x', times = 2}", r"topic\.times: goes with from, in columns"),
        ("[reads]\noffset = {value = true}", r"offset\.value must be of type bigint"),
        ("[reads]\npartition = {value = 2147483648}", "must fit 32 bits"),
        ("[operations]\nwatch_keys = {value = 'x'}", "can't be a constant"),
        ("[reads]\npoll = 'TOPIC'", "'TOPIC' and 'topic' differ in upper and lower case only"),
    ],
)
def test_what_a_mapping_can_not_say(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        read_mapping(_file(tmp_path, text))


def test_a_mapping_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.toml: can't be read: No such file"):
        read_mapping(tmp_path / "none.toml")


def test_lines_of_other_names_and_units(reader: ReadingEngine, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {**LINE, "at_ms": 5_001, "place": 2_600},
        {**LINE, "at_ms": 5_000.25, "place": 0},
        {**LINE, "at_ms": 4_999, "place": 1},
        {**LINE, "at_ms": "soon", "place": 1},
        {**LINE, "at_ms": 1e300, "place": 1},
    ]
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "reads.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = reader.read(folder, _file(tmp_path, MAPPING))
    good = sorted(found.rows("reads"), key=lambda row: row["time_us"])
    assert [(row["time_us"], row["offset"]) for row in good] == [(250, 0), (1_000, 3)]
    assert [good[0][name] for name in ("group", "partition", "applied")] == ["billing's", 3, True]
    assert [(row["line"], row["reason"]) for row in found.quarantine] == [
        (3, "impossible time"),
        (4, "wrong type"),
        (5, "wrong type"),
    ]


def test_parquet_of_other_names_and_units(
    reader: ReadingEngine, write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path
) -> None:
    trace = write_trace(tmp_path / "trace", hand_operations)
    part = trace / "operations" / "part-00000.parquet"
    table = pq.read_table(part)
    seconds = pa.array([start / 1e6 for start in table["start_us"].to_pylist()])
    table = table.drop_columns(["start_us", "kind"]).append_column("Start s", seconds)
    at = table.column_names.index("broker")
    pq.write_table(table.set_column(at, "broker", table["broker"].cast(pa.int64())), part)
    said = {
        "operations": {
            "start_us": {"from": "Start s", "times": 1_000_000},
            "kind": {"value": "producer"},
        }
    }
    rows = reader.read(trace, said, strict=True).rows("operations")
    assert sorted((row["start_us"], row["end_us"]) for row in rows) == sorted(
        (operation.start_us, operation.end_us) for operation in hand_operations
    )
    assert {row["kind"] for row in rows} == {"producer"}
