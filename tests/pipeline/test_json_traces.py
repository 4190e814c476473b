"""Whole analyses of what other programs wrote: lines of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.analyze import write_results
from purgatory.pipeline.auditing.results import trace_audit
from purgatory.pipeline.traces.survey import find_traces, survey

pytestmark = pytest.mark.spark

SEND = {
    "group": "orders",
    "producer": 0,
    "attempt": 1,
    "key": 1,
    "acks": -1,
    "outcome": "ok",
    "topic": "events",
    "partition": 0,
    "size_bytes": 10,
}
READ = {"group": "billing", "consumer": 0, "topic": "events", "partition": 0, "applied": True}


def _write(folder: Path, table: str, rows: list[dict[str, Any]], more: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows) + more
    (folder / f"{table}.jsonl").write_text(text, encoding="utf-8")


def _sends(number: int) -> list[dict[str, Any]]:
    return [
        {**SEND, "sequence": n, "value_id": n, "send_us": n, "answer_us": n + 5, "offset": n}
        for n in range(number)
    ]


def _reads(number: int) -> list[dict[str, Any]]:
    return [
        {**READ, "poll": n + 1, "offset": n, "value_id": n, "time_us": n + 9} for n in range(number)
    ]


def test_an_analysis_counts_good_lines_and_holds_a_damaged_run_for_incomplete(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    _write(folder, "sends", _sends(4))
    _write(folder, "reads", _reads(4)[:3], more='{"group": "billing", "cons')
    found = survey([folder])
    out = tmp_path / "out"
    out.mkdir()
    analysis = write_results(spark, found.traces, out, refused=found.refused)
    (run,) = analysis.runs
    assert (run["run_id"], run["seed"]) == ("mine", None)
    assert [run[table] for table in ("operations", "sends", "reads")] == [0, 4, 3]
    assert [(row["table"], row["reason"]) for row in analysis.quarantine] == [
        ("reads", "torn line")
    ]
    # The lost line may be the read of the last value: nothing is a violation for certain.
    assert not [row for row in analysis.audit if row["count"] and row["verdict"] == "violation"]


def test_an_audit_reads_effects_in_lines_of_json(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    _write(folder, "sends", _sends(2))
    _write(folder, "reads", _reads(2))
    effect = {**READ, "offset": 0, "key": 1, "version": 1, "time_us": 20}
    effects = [effect, {**effect, "version": 2, "time_us": 21}, {**effect, "offset": 1, "key": 2}]
    _write(folder, "effects", effects)
    with trace_audit(spark, find_traces([folder])) as audited:
        counts = {row.anomaly: row["count"] for row in audited.audit.where("count > 0").collect()}
    assert counts["effect_duplicate"] == 1
