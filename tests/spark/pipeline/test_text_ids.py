"""Ids that are texts: the same rows from each engine, and the texts in output for people."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import purgatory
from purgatory.pipeline.engines.engine import Engine
from purgatory.pipeline.engines.run import run_job
from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.ingest import column_casts
from tests.spark.pipeline.reading_engines import ReadingEngine

_ALIKE = ["a", "A", "", " ", "7", "07", "+7", "7 ", "7\n", "7.0", "-0", "1e3", "0x7", "true", "[a"]
_ALIKE += ["\u00fc", "u\u0308", "\uff41", "9223372036854775807", "9223372036854775808", "3f2e-1"]
"""Texts of which no two are the same, whatever a database makes of them elsewhere."""


def _send(value: Any, place: int, **more: Any) -> dict[str, Any]:
    return {
        "run_id": "run",
        "group": "g",
        "producer": "w-1",
        "sequence": place,
        "attempt": 1,
        "key": "k",
        "value_id": value,
        "acks": -1,
        "outcome": "ok",
        "send_us": place,
        "topic": "t",
        "partition": 0,
        "offset": place,
        "size_bytes": 1,
        **more,
    }


def _read(value: Any, offset: int, **more: Any) -> dict[str, Any]:
    return {
        "run_id": "run",
        "group": "r",
        "consumer": "c-1",
        "poll": offset + 1,
        "topic": "t",
        "partition": 0,
        "offset": offset,
        "value_id": value,
        "time_us": 50 + offset,
        "applied": True,
        **more,
    }


def _written(folder: Path, *, parquet: bool = False, **tables: Sequence[Mapping[str, Any]]) -> Path:
    """A trace of one run, in either form."""
    folder.mkdir(parents=True)
    if parquet:
        head = {"schema_version": 3, "run_id": "run", "scenario": "s", "seed": 1}
        head |= {"complete": False, "duration_ms": 0, "tables": {}}
        (folder / "run.json").write_text(json.dumps(head))
        for name in ("operations", "sends", "reads"):
            (folder / name).mkdir()
    for name, rows in tables.items():
        if parquet:
            table = pa.Table.from_pylist(list(rows))
            pq.write_table(table, folder / name / "part-00000.parquet")
        else:
            (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.mark.parametrize("parquet", [False, True])
def test_different_texts_are_different_ids(
    reader: ReadingEngine, tmp_path: Path, parquet: bool
) -> None:
    sends = [_send(text, place) for place, text in enumerate(_ALIKE)]
    found = reader.read(_written(tmp_path / "run", parquet=parquet, sends=sends))
    assert found.quarantine == []
    number_of = {row["sequence"]: row["value_id"] for row in found.rows("sends")}
    assert number_of == {place: _number(text) for place, text in enumerate(_ALIKE)}
    assert len(set(number_of.values())) == len(_ALIKE)


def _number(text: str) -> int:
    if text in ("7", "9223372036854775807"):
        return int(text)
    return -1 - int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:15], 16)


def test_quoted_number_is_the_same_id(reader: ReadingEngine, tmp_path: Path) -> None:
    values: list[Any] = [7, "7", -7, "-7", 1.5, True, ["a"], {"a": 1}, 2**63, None]
    sends = [_send(value, place) for place, value in enumerate(values)]
    found = reader.read(_written(tmp_path / "run", sends=sends))
    good = sorted(found.rows("sends"), key=lambda row: row["sequence"])
    assert [row["value_id"] for row in good] == [7, 7, -7, -7]
    assert [(row["line"], row["reason"]) for row in found.quarantine] == [
        *((line, "wrong type") for line in range(5, 10)),
        (10, "missing column"),
    ]


def test_texts_with_colliding_ids_are_refused_by_name(
    reader: ReadingEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_casts, "_DIGITS", 1)
    sends = [_send(f"v-{place}", place) for place in range(40)]
    trace = _written(tmp_path / "run", sends=sends)
    with pytest.raises(TraceError, match=r"the ids '[kvw]-?\d*' and '[vw]-\d+' become the same"):
        reader.read(trace)


@pytest.mark.parametrize(
    "engine",
    ["duckdb", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.exhaustive])],
)
def test_audit_shows_the_texts(
    engine: Engine, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "spark":
        shared = nullcontext(request.getfixturevalue("spark"))
        monkeypatch.setattr(
            "purgatory.pipeline.engines.spark.traces.spark_session", lambda *_, **__: shared
        )
    sends = [_send("order-0", 0), _send("order-1", 1), _send("7", 2)]
    # In the other form, and one of the three is lost.
    reads = [_read("order-0", 0), _read(7, 2)]
    trace = _written(tmp_path / "run", sends=sends, reads=reads)
    audited = run_job("audit", [trace], tmp_path / "out", engine=engine, page=True)
    found = {row["anomaly"]: row["count"] for row in audited.rows["audit"]}
    assert (found["lost_write"], found["aborted_read"], found["unseen"]) == (1, 0, 0)
    (lost,) = [row for row in audited.rows["witnesses"] if row["anomaly"] == "lost_write"]
    assert (lost["value_id"], lost["producer"]) == ("order-1", "w-1")
    assert {event["key"] for event in lost["events"]} == {"k"}
    written = pq.read_table(tmp_path / "out" / "witnesses").to_pylist()
    numbers = {
        row["text"]: row["number"] for row in pq.read_table(tmp_path / "out" / "ids").to_pylist()
    }
    (row,) = [row for row in written if row["anomaly"] == "lost_write"]
    assert row["value_id"] == numbers["order-1"] == _number("order-1")
    assert row["producer"] == numbers["w-1"]
    assert "7" not in numbers


def test_findings_show_the_texts(tmp_path: Path) -> None:
    sends = [_send("order-0", 0), _send("order-1", 1), _send("order-2", 2)]
    reads = [_read("order-0", 0), _read("order-2", 2)]
    findings = purgatory.audit(_written(tmp_path / "run", sends=sends, reads=reads))
    assert "value_id=order-1" in str(findings)
    assert "producer=w-1" in str(findings)
