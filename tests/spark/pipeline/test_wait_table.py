"""The table of waits, against counts in plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.ingest.duckdb_reader import read_tables
from purgatory.pipeline.ingest.spark_reader import read_table
from purgatory.pipeline.ingest.trace_set import find_traces, read_trace_set
from purgatory.pipeline.jobs.result_orders import OUTCOMES
from tests.spark.pipeline.audit_rows import Engine
from tests.spark.pipeline.operation_rows import waits_of

Row = dict[str, Any]
Key = tuple[str, str, str, str]
"""Run, purgatory, kind and outcome."""


def _rows(engine: Engine, root: Path) -> list[Row]:
    if isinstance(engine, SparkSession):
        operations = read_table(engine, find_traces([root]), "operations").toArrow()
    else:
        read_tables(engine, read_trace_set([root]), ["operations"])
        operations = engine.execute("SELECT * FROM operations").to_arrow_table()
    rows: list[Row] = waits_of(engine, operations).to_pylist()
    return rows


def _expected(run_id: str, operations: Sequence[Any]) -> dict[Key, Row]:
    """The same table by the definitions: sorted waits, and numpy's percentiles."""
    groups: dict[Key, list[int]] = defaultdict(list)
    for operation in operations:
        for kind in (operation.kind, "all"):
            for outcome in (operation.outcome, "all"):
                wait_us = operation.end_us - operation.start_us
                groups[run_id, operation.purgatory, kind, outcome].append(wait_us)
    return {
        key: {
            "operations": len(found),
            "share": len(found) / len(groups[*key[:3], "all"]),
            "expiry_ratio": _expiry_ratio(groups, key),
            "wait_mean_us": sum(found) / len(found),
            "wait_p50_us": float(np.percentile(found, 50)),
            "wait_p95_us": float(np.percentile(found, 95)),
            "wait_p99_us": float(np.percentile(found, 99)),
            "wait_p999_us": float(np.percentile(found, 99.9)),
            "wait_max_us": max(found),
        }
        for key, found in groups.items()
    }


def _expiry_ratio(groups: dict[Key, list[int]], key: Key) -> float | None:
    if key[3] != "all":
        return None
    return len(groups.get((*key[:3], "expired"), [])) / len(groups[key])


def test_waits_of_a_handmade_trace_are_exact(
    engine: Engine,
    write_trace: Callable[..., Path],
    hand_operations: list[Any],
    tmp_path: Path,
) -> None:
    write_trace(tmp_path / "trace", hand_operations, parts=3)
    rows = _rows(engine, tmp_path)
    all_kinds = [row for row in rows if row["purgatory"] == "Produce" and row["kind"] == "all"]
    produce = {row["outcome"]: row for row in all_kinds}
    assert list(produce) == [
        "immediate",
        "completed",
        "expired",
        "pending",
        "all",
    ]
    assert produce["completed"] == {
        "run_id": "by-hand-1",
        "purgatory": "Produce",
        "kind": "all",
        "topic": "*",
        "outcome": "completed",
        "window_start_us": None,
        "window_end_us": None,
        "operations": 3,
        "share": 0.5,
        "expiry_ratio": None,
        "wait_mean_us": 200.0,
        "wait_p50_us": 150.0,
        "wait_p95_us": 375.0,
        "wait_p99_us": 395.0,
        "wait_p999_us": 399.5,
        "wait_max_us": 400,
    }
    assert produce["expired"]["wait_max_us"] == 500
    assert produce["pending"]["wait_max_us"] == 300
    # Six operations, of which five completed: 0, 50, 150, 400 and 500 us.
    assert produce["all"]["operations"] == 6
    assert produce["all"]["wait_mean_us"] == 220.0
    assert produce["all"]["expiry_ratio"] == 1 / 5
    assert produce["all"]["wait_p50_us"] == 150.0


def test_many_waits_of_two_runs_agree_with_their_definitions(
    engine: Engine, write_trace: Callable[..., Path], random_operations: Any, tmp_path: Path
) -> None:
    expected: dict[Key, Row] = {}
    for seed in (1, 2):
        operations = random_operations(seed, 3000)
        run_id = f"random-{seed}"
        write_trace(tmp_path / f"[{seed}] a folder*", operations, run_id=run_id, parts=2)
        expected |= _expected(run_id, operations)
    rows = _rows(engine, tmp_path)
    found = {
        (row.pop("run_id"), row.pop("purgatory"), row.pop("kind"), row.pop("outcome")): row
        for row in (dict(row) for row in rows)
    }
    assert found.keys() == expected.keys()
    for key, row in found.items():
        assert row.pop("topic") == "*"
        assert row.pop("window_start_us") is row.pop("window_end_us") is None
        assert row.pop("expiry_ratio") == expected[key].pop("expiry_ratio")
        assert row == pytest.approx(expected[key], rel=1e-12), key
    order = [
        (
            row["run_id"],
            row["purgatory"],
            row["kind"] == "all",
            row["kind"],
            OUTCOMES.index(row["outcome"]),
        )
        for row in rows
    ]
    assert order == sorted(order)


def test_no_operations_give_no_rows(
    engine: Engine, write_trace: Callable[..., Path], tmp_path: Path
) -> None:
    write_trace(tmp_path / "trace", [])
    assert _rows(engine, tmp_path) == []
    for part in (tmp_path / "trace" / "operations").iterdir():
        part.unlink()
    run_file = tmp_path / "trace" / "run.json"
    run_file.write_text(run_file.read_text(encoding="utf-8").replace("true", "false"))
    assert _rows(engine, tmp_path) == []
