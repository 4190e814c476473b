"""Large traces with exactly k of each anomaly: both engines find these, in the same words."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.engines.run import run_job
from purgatory.pipeline.jobs.audit.anomalies import VIOLATION
from purgatory.pipeline.result_rows import Row
from tests.benchmarks.large_traces import expected_counts, write_large_trace
from tests.benchmarks.planted_blocks import Shape
from tests.spark.pipeline.one_session import run_all

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

FEWER, MORE = 10, 25
"""The number of witnesses shown, and that of the cases to choose them from."""


def _results(out: Path) -> dict[str, list[Row]]:
    return {name: pq.read_table(out / name).to_pylist() for name in ("audit", "witnesses")}


def _with_duckdb(traces: Path, out: Path) -> dict[str, list[Row]]:
    audited = run_job("audit", [traces], out, engine="duckdb", witnesses=FEWER)
    assert audited.bad_rows == {}
    return _results(out)


def _with_spark(session: SparkSession, traces: Path, out: Path) -> dict[str, list[Row]]:
    command = ["audit", str(traces), "--engine", "spark", "--witnesses", str(FEWER)]
    assert run_all(session, "local[2]", [[*command, "--out", str(out)]]) == [1]
    return _results(out)


def _assert_exact(rows: list[Row], shape: Shape) -> None:
    found: dict[str, Counter[str]] = {row["run_id"]: Counter() for row in rows}
    for row in rows:
        found[row["run_id"]][row["anomaly"]] += row["count"]
    for run_id, counts in found.items():
        assert counts == expected_counts(shape), run_id


def test_duckdb_counts_exactly_in_any_order_of_rows(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    shape = Shape(100_000, planted=MORE)
    for seed in (1, 2):
        by_time = replace(shape, seed=seed)
        write_large_trace(one / f"run-{seed}", by_time)
        write_large_trace(other / f"run-{seed}", replace(by_time, shuffled=True, part_blocks=900))
    result = _with_duckdb(one, tmp_path / "result")
    _assert_exact(result["audit"], shape)
    assert any(row["verdict"] == VIOLATION for row in result["witnesses"])
    assert _with_duckdb(other, tmp_path / "of-other") == result


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_both_engines_count_exactly_in_two_million_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    shape = Shape(2_000_000)
    write_large_trace(tmp_path / "trace", shape)
    result = _with_duckdb(tmp_path / "trace", tmp_path / "result")
    _assert_exact(result["audit"], shape)
    assert _with_spark(spark, tmp_path / "trace", tmp_path / "of-spark") == result


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.skipif("PURGATORY_LARGE" not in os.environ, reason="needs 12 GB; PURGATORY_LARGE=1")
def test_duckdb_counts_exactly_in_twenty_million_rows(tmp_path: Path) -> None:
    shape = Shape(20_000_000)
    write_large_trace(tmp_path / "trace", shape)
    _assert_exact(_with_duckdb(tmp_path / "trace", tmp_path / "result")["audit"], shape)
