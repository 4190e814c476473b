"""Whole analyses: what is written, what is told of broken traces, what the simulator says too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.analyze import Analysis, write_results
from purgatory.pipeline.errors import PipelineError, TraceError
from purgatory.pipeline.session import spark_errors
from purgatory.pipeline.traces.survey import find_traces

pytestmark = pytest.mark.spark

WriteTrace = Callable[..., Path]
Row = dict[str, Any]


def _analyze(spark: SparkSession, root: Path, out: Path) -> Analysis:
    out.mkdir()
    return write_results(spark, find_traces([root]), out)


def _read(folder: Path) -> list[Row]:
    rows: list[Row] = pq.read_table(folder).to_pylist()
    return rows


def test_results_of_a_whole_an_interrupted_and_an_empty_run(
    spark: SparkSession, write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path
) -> None:
    traces = tmp_path / "traces"
    write_trace(traces / "1", hand_operations, run_id="whole", duration_ms=2)
    write_trace(traces / "2", hand_operations, run_id="cut", complete=False, duration_ms=0)
    write_trace(traces / "3", [], run_id="empty", duration_ms=5)
    analysis = _analyze(spark, traces, tmp_path / "out")
    runs = {row["run_id"]: row for row in _read(tmp_path / "out" / "runs")}
    assert list(runs) == ["cut", "empty", "whole"]
    assert [row["run_id"] for row in analysis.runs] == list(runs)
    assert runs["whole"] == {
        "run_id": "whole",
        "scenario": "by-hand",
        "seed": 1,
        "complete": True,
        "duration_us": 2000,
        "bucket_width_us": 5,
        "operations": 8,
        "sends": 0,
        "reads": 0,
        "faults": [],
        "folder": str(traces / "1"),
    }
    # The head of an interrupted run may not know how long it was: the last operation's end tells.
    assert (runs["cut"]["complete"], runs["cut"]["duration_us"]) == (False, 1000)
    assert (runs["empty"]["operations"], runs["empty"]["duration_us"]) == (0, 5000)
    waits = _read(tmp_path / "out" / "waits")
    assert waits == list(analysis.waits)
    assert {row["run_id"] for row in waits} == {"whole", "cut"}
    occupancy = _read(tmp_path / "out" / "occupancy")
    assert len([row for row in occupancy if row["run_id"] == "whole"]) == 400 * (2 + 1 + 1 + 1)
    keys = [
        (
            row["run_id"],
            row["purgatory"],
            -1 if row["broker"] is None else row["broker"],
            row["bucket_start_us"],
        )
        for row in occupancy
    ]
    assert keys == sorted(keys)
    page = analysis.report.read_text(encoding="utf-8")
    assert "These runs were interrupted: cut." in page
    assert "This run has no operations." in page


def test_what_is_bad_goes_into_the_quarantine_and_is_counted(
    spark: SparkSession, write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path
) -> None:
    backwards = hand_operations[1]._replace(start_us=900, end_us=899)
    trace = write_trace(tmp_path / "trace", [*hand_operations, backwards], parts=2)
    part = trace / "operations" / "part-00001.parquet"
    table = pq.read_table(part)
    strange = pa.array(["stranger"] + ["by-hand-1"] * (len(table) - 1))
    pq.write_table(table.set_column(0, "run_id", strange), part)
    out = tmp_path / "out"
    analysis = _analyze(spark, trace, out)
    assert [
        (row["table"], row["reason"], row["rows"], row["files"]) for row in analysis.quarantine
    ] == [
        ("operations", "impossible time", 1, 0),
        ("operations", "row of another run", 1, 0),
    ]
    (run,) = analysis.runs
    assert run["operations"] == 9 - 2
    total = [row for row in analysis.waits if row["outcome"] == row["kind"] == "all"]
    assert sum(row["operations"] for row in total) == 7
    places = sorted((row["file"], row["line"], row["reason"]) for row in _read(out / "quarantine"))
    assert places == [
        (str(part.with_name("part-00000.parquet")), 5, "impossible time"),
        (str(part), 1, "row of another run"),
    ]


def test_strict_stops_at_a_bad_row(
    spark: SparkSession, write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path
) -> None:
    backwards = hand_operations[1]._replace(start_us=900, end_us=899)
    trace = write_trace(tmp_path / "trace", [*hand_operations, backwards])
    with pytest.raises(
        TraceError,
        match=r"part-00000\.parquet:9: impossible time: end_us 899 is before start_us 900",
    ):
        write_results(spark, find_traces([trace]), tmp_path, strict=True)


def test_a_part_whose_data_is_broken(
    spark: SparkSession, write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path
) -> None:
    trace = write_trace(tmp_path / "trace", hand_operations)
    part = trace / "operations" / "part-00000.parquet"
    with part.open("r+b") as file:
        file.seek(4)
        file.write(b"\xff" * 64)
    with (
        pytest.raises(PipelineError, match=r"Spark failed: .*part-00000\.parquet") as caught,
        spark_errors(tmp_path / "spark.log"),
    ):
        _analyze(spark, trace, tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_the_simulator_s_own_table_of_the_same_run(
    spark: SparkSession, slow_follower_trace: Path, tmp_path: Path
) -> None:
    from purgatory.simulation.waits import MAX_RELATIVE_ERROR

    trace = slow_follower_trace
    summary = json.loads((trace / "run.json").read_text(encoding="utf-8"))["summary"]
    analysis = _analyze(spark, trace, tmp_path / "out")
    (run,) = analysis.runs
    assert run["faults"] == [
        {"kind": "follower-stall", "at_ms": 4000, "duration_ms": 4000, "broker": 2}
    ]
    found = {(row["purgatory"], row["kind"], row["outcome"]): row for row in analysis.waits}
    compared = 0
    for row in summary["purgatories"]:
        if not row["operations"]:
            assert not any(key[0] == row["purgatory"] for key in found)
            continue
        tables = {"all": row["wait_us"], **row["wait_us_by_outcome"]}
        for outcome, expected in tables.items():
            ours = found.pop((row["purgatory"], row["kind"], outcome))
            count = row["operations"] if outcome == "all" else row[outcome]
            assert ours["operations"] == count
            assert ours["share"] == count / row["operations"]
            assert ours["wait_max_us"] == expected["max"]
            for name in ("p50", "p95", "p99"):
                exact = ours[f"wait_{name}_us"]
                assert exact * (1 - MAX_RELATIVE_ERROR) - 1e-6 <= expected[name] <= exact + 1e-6
                compared += 1
    assert compared >= 30
    # What is left is the rows over all kinds, which the simulator's table does not have.
    assert {kind for _, kind, _ in found} == {"all"}
    _check_occupancy(trace, tmp_path / "out" / "occupancy")


def _check_occupancy(trace: Path, occupancy: Path) -> None:
    """Little's law, exactly: the size summed over time is the waits summed over operations."""
    operations = pq.read_table(trace / "operations")
    sizes = pq.read_table(occupancy)
    for purgatory in ("Produce", "Fetch"):
        waited = operations.filter(
            (pc.field("purgatory") == purgatory) & (pc.field("outcome") != "immediate")
        )
        total = sizes.filter((pc.field("purgatory") == purgatory) & pc.field("broker").is_null())
        width = pc.subtract(total["bucket_end_us"], total["bucket_start_us"])
        area = pc.sum(pc.multiply(total["size_mean"], width)).as_py()
        assert area == pytest.approx(pc.sum(waited["wait_us"]).as_py(), rel=1e-9)
        assert area > 0
