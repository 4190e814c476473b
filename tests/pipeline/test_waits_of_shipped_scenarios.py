"""The simulator's own table and the pipeline's, of every scenario that ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.littles_law import littles_law
from purgatory.pipeline.occupancy import occupancy
from purgatory.pipeline.traces.survey import find_traces, read_table
from purgatory.pipeline.waiting_runs import run_spans
from purgatory.pipeline.waits import waits
from purgatory.simulation import Simulation, load_scenario, shipped_scenarios
from purgatory.simulation.waits import MAX_RELATIVE_ERROR

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Row = dict[str, Any]


def test_both_tables_agree_on_every_shipped_scenario(spark: SparkSession, tmp_path: Path) -> None:
    summaries = {
        name: Simulation(load_scenario(name), trace_folder=tmp_path / name).run()
        for name in shipped_scenarios()
    }
    assert len(summaries) >= 4
    traces = find_traces([tmp_path])
    operations = read_table(spark, traces, "operations").persist()
    found: dict[str, dict[tuple[str, str, str], Row]] = {name: {} for name in summaries}
    names = {trace.run_id: trace.scenario for trace in traces}
    for row in waits(operations).where("kind <> 'all'").toArrow().to_pylist():
        found[names[row["run_id"]]][row["purgatory"], row["kind"], row["outcome"]] = row
    for name, summary in summaries.items():
        _compare(found[name], summary["purgatories"])
    _check_the_law(spark, operations, traces)
    operations.unpersist()


def _compare(found: dict[tuple[str, str, str], Row], purgatories: list[Row]) -> None:
    compared = 0
    for expected in purgatories:
        if not expected["operations"]:
            continue
        tables = {"all": expected["wait_us"], **expected["wait_us_by_outcome"]}
        for outcome, waited in tables.items():
            ours = found.pop((expected["purgatory"], expected["kind"], outcome))
            count = expected["operations"] if outcome == "all" else expected[outcome]
            assert ours["operations"] == count
            assert ours["share"] == count / expected["operations"]
            assert ours["wait_max_us"] == waited["max"]
            for name in ("p50", "p95", "p99", "p999"):
                exact = ours[f"wait_{name}_us"]
                assert exact * (1 - MAX_RELATIVE_ERROR) - 1e-6 <= waited[name] <= exact + 1e-6
                compared += 1
    assert compared >= 12
    assert not found, "the pipeline has nothing that the simulator does not have"


def _check_the_law(spark: SparkSession, operations: Any, traces: Any) -> None:
    spans = run_spans(spark, traces, operations)
    rows = littles_law(operations, occupancy(operations, spans), spans).toArrow().to_pylist()
    assert {row["run_id"] for row in rows} == {trace.run_id for trace in traces}
    for row in rows:
        assert row["mean_parked"] > 0
        assert row["unexplained"] == pytest.approx(0, abs=1e-9 * row["mean_parked"])
        if not row["pending"]:
            assert row["arrivals_times_wait"] == pytest.approx(row["mean_parked"], rel=1e-9)
