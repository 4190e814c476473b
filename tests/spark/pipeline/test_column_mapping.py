"""Mappings: their meaning, and the errors of invalid ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.ingest.column_mapping import Source, read_mapping
from tests.spark.pipeline.reading_engines import ReadingEngine

WriteTrace = Callable[..., Path]

MAPPING = """
[reads]
group = { value = "billing's" }
partition = "Shard `1`"
time_us = { from = "at_us" }
offset = "place"
applied = { value = true }
"""
LINE = {"consumer": 0, "poll": 1, "topic": "t", "Shard `1`": 3, "value_id": 7}


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mapping.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_mapping_file_is_parsed(tmp_path: Path) -> None:
    reads = read_mapping(_file(tmp_path, MAPPING))["reads"]
    assert reads["partition"] == Source("Shard `1`")
    assert reads["time_us"] == Source("at_us")
    assert reads["applied"] == Source(None, value=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[reads\n", r"mapping\.toml: is not TOML: .* \(at line 1, column 7\)"),
        ("reads = 1", r"mapping\.toml: reads must be a section \[reads\]"),
        ("[read]", r"\[read\]: there is no such table; did you mean \"reads\"\?"),
        ("[rows]", r"\[rows\]: there is no such table; there are operations, sends, reads"),
        ("[reads]\ntime = 'x'", r"time: there is no such column; did you mean \"time_us\"\?"),
        ("[reads]\nxyz = 'x'", r"reads\.xyz: there is no such column; there are run_id, group"),
        ("[reads]\ntime_us = 5", r"reads\.time_us must be a name or \{ from"),
        ("[reads]\ntime_us = {form = 'x'}", r"reads\.time_us\.form: is not known"),
        ("[reads]\ntime_us = {values = {a = 1}}", "must have either from or value, and has values"),
        ("[reads]\ntime_us = {from = 'x', value = 2}", "and has from and value"),
        ("[reads]\ntime_us = {from = ''}", r"time_us\.from must be the name of a column"),
        ("[reads]\ntime_us = {from = 'x', times = 2}", r"reads\.time_us\.times: is not known"),
        ("[reads]\noffset = {value = true}", r"offset\.value must be of type bigint"),
        ("[reads]\npartition = {value = 2147483648}", "must fit 32 bits"),
        ("[operations]\nwatch_keys = {value = 'x'}", "can't be a constant"),
        ("[reads]\ntopic = {value = 'x', values = {a = 'b'}}", r"topic\.values: goes with from"),
        ("[reads]\ntopic = {from = 'x', values = 'y'}", r"values must be \{ \"file value\""),
        ("[reads]\ntopic = {from = 'x', values = {a = 1}}", r"values\.a must be of type string"),
        ("[operations]\nwatch_keys = {from = 'x', values = {a = 'b'}}", "can't be a constant"),
        ("[reads]\npoll = 'TOPIC'", "'TOPIC' and 'topic' differ in upper and lower case only"),
    ],
)
def test_invalid_mapping_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        read_mapping(_file(tmp_path, text))


def test_missing_mapping_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.toml: can't be read: No such file"):
        read_mapping(tmp_path / "none.toml")


def test_lines_are_read_by_mapped_names(reader: ReadingEngine, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {**LINE, "at_us": 1_000, "place": 3},
        {**LINE, "at_us": 250, "place": 0},
        {**LINE, "at_us": -1_000, "place": 1},
        {**LINE, "at_us": "soon", "place": 1},
        {**LINE, "at_us": 0.25, "place": 1},
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


def test_parquet_is_read_by_mapped_names_and_types(
    reader: ReadingEngine, write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path
) -> None:
    trace = write_trace(tmp_path / "trace", hand_operations)
    part = trace / "operations" / "part-00000.parquet"
    table = pq.read_table(part)
    starts = table["start_us"].cast(pa.uint32())
    table = table.drop_columns(["start_us", "kind"]).append_column("Start", starts)
    at = table.column_names.index("broker")
    pq.write_table(table.set_column(at, "broker", table["broker"].cast(pa.int64())), part)
    said = {
        "operations": {
            "start_us": {"from": "Start"},
            "kind": {"value": "producer"},
        }
    }
    rows = reader.read(trace, said, strict=True).rows("operations")
    assert sorted((row["start_us"], row["end_us"]) for row in rows) == sorted(
        (operation.start_us, operation.end_us) for operation in hand_operations
    )
    assert {row["kind"] for row in rows} == {"producer"}


_SEND = {
    "group": "g",
    "producer": 0,
    "sequence": 0,
    "attempt": 1,
    "key": 0,
    "value_id": 7,
    "send_us": 0,
    "topic": "t",
    "partition": 0,
    "size_bytes": 1,
}
_TRANSLATED = """
[sends]
outcome = { from = "type", values = { info = "unknown", "2" = "fail" } }
acks = { from = "level", values = { all = -1 } }
"""


@pytest.mark.parametrize("parquet", [False, True])
def test_values_are_read_by_mapped_words(
    reader: ReadingEngine, tmp_path: Path, parquet: bool
) -> None:
    words = [
        *(("info", "all"), ("ok", "1"), ("2", "0"), ("INFO", "all"), ("", "all"), ("ok", "01")),
        *(("ok", "3"), ("ok", "all "), (None, "all")),
    ]
    rows = [
        {**_SEND, "run_id": "run", "type": outcome, "level": acks, "sequence": place}
        for place, (outcome, acks) in enumerate(words)
    ]
    folder = tmp_path / "run"
    (folder / "sends").mkdir(parents=True)
    if parquet:
        for table in ("operations", "reads"):
            (folder / table).mkdir()
        head = {"schema_version": 3, "run_id": "run", "scenario": "s", "seed": 1}
        head |= {"complete": False, "duration_ms": 0, "tables": {}}
        (folder / "run.json").write_text(json.dumps(head))
        pq.write_table(pa.Table.from_pylist(rows), folder / "sends" / "part-00000.parquet")
    else:
        (folder / "sends.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = reader.read(folder, _file(tmp_path, _TRANSLATED))
    good = sorted(found.rows("sends"), key=lambda row: row["sequence"])
    assert [(row["outcome"], row["acks"]) for row in good] == [
        ("unknown", -1),
        ("ok", 1),
        ("fail", 0),
    ]
    bad = [row for row in found.quarantine if row["table"] == "sends"]
    right = ", and must be ok, fail or unknown: values in a mapping translate others"
    whole = "and must be a whole number of 32 bits, or one of the mapping: all"
    assert [(row["line"], row["reason"], row["detail"]) for row in bad] == [
        (4, "unknown value", f"outcome is INFO{right}"),
        (5, "unknown value", f"outcome is {right}"),
        (6, "wrong type", f'acks is "01", {whole}'),
        (
            7,
            "unknown value",
            "acks is 3, and must be 0, 1 or -1: values in a mapping translate others",
        ),
        (8, "wrong type", f'acks is "all ", {whole}'),
        (9, "missing column", "outcome is not there"),
    ]


def test_codes_of_any_type_and_text_constants_are_mapped(
    reader: ReadingEngine, tmp_path: Path
) -> None:
    codes = [0, 1, "1", 2, True]
    rows = [
        {**_SEND, "acks": 1, "code": code, "sequence": place} for place, code in enumerate(codes)
    ]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "sends.jsonl").write_text("\n".join(map(json.dumps, rows)))
    mapping = {
        "sends": {
            "outcome": {"from": "code", "values": {"0": "ok", "1": "fail", "true": "unknown"}},
            "producer": {"value": "the only one"},
        }
    }
    found = reader.read(tmp_path / "run", mapping)
    good = sorted(found.rows("sends"), key=lambda row: row["sequence"])
    assert [row["outcome"] for row in good] == ["ok", "fail", "fail", "unknown"]
    assert len({row["producer"] for row in good}) == 1
    assert [(row["line"], row["reason"]) for row in found.quarantine] == [(4, "unknown value")]
