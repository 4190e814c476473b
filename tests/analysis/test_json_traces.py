"""Whole analyses of what other programs wrote: lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from purgatory.analysis.analysis_results import Analysis
from purgatory.analysis.analyze import analyze
from purgatory.analysis.result_rows import Row
from purgatory.analysis.traces.survey import survey
from purgatory.analysis.write_analysis import write_results
from tests.analysis.audit_rows import Engine

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

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


@pytest.fixture(scope="module")
def analysis(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """One analysis of a run whose last read was torn, and of one with effects."""
    folder = tmp_path_factory.mktemp("lines")
    torn, applied, out = folder / "torn", folder / "applied", folder / "out"
    _write(torn, "sends", _sends(4))
    _write(torn, "reads", _reads(4)[:3], more='{"group": "billing", "cons')
    _write(applied, "sends", _sends(2))
    _write(applied, "reads", _reads(2))
    effect = {**READ, "offset": 0, "key": 1, "version": 1, "time_us": 20}
    effects = [effect, {**effect, "version": 2, "time_us": 21}, {**effect, "offset": 1, "key": 2}]
    _write(applied, "effects", effects)
    if not isinstance(engine, SparkSession):
        return analyze([torn, applied], out, engine="duckdb")
    found = survey([torn, applied])
    out.mkdir()
    return write_results(engine, found.traces, out, refused=found.refused)


def _of(run_id: str, rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["run_id"] == run_id]


def test_an_analysis_counts_good_lines_and_holds_a_damaged_run_for_incomplete(
    analysis: Analysis,
) -> None:
    (run,) = _of("torn", analysis.runs)
    assert run["seed"] is None
    assert [run[table] for table in ("operations", "sends", "reads")] == [0, 4, 3]
    assert [(row["table"], row["reason"]) for row in analysis.quarantine] == [
        ("reads", "torn line")
    ]
    audit = _of("torn", analysis.audit)
    # The lost line may be the read of the last value: nothing is a violation for certain.
    assert audit
    assert not [row for row in audit if row["count"] and row["verdict"] == "violation"]


def test_an_audit_reads_effects_in_lines_of_json(analysis: Analysis) -> None:
    counts = {row["anomaly"]: row["count"] for row in _of("applied", analysis.audit)}
    assert counts["effect_duplicate"] == 1
