"""Sweeps on a real session: the scenarios that run, the results that are kept, and failures."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from purgatory.pipeline.engines.progress import EngineProgress
from purgatory.pipeline.errors import OutputError, PipelineError
from purgatory.simulation import LoadedScenario, Scenario, Simulation
from purgatory.sweeps.measures import MEASURES, RESULTS
from purgatory.sweeps.plan import Plan, load_plan
from purgatory.sweeps.run import (
    PARTS,
    POINTS,
    merge_parts,
    missing,
    prepare_folder,
    results,
    sweep,
)
from purgatory.sweeps.sweep_file import SweepError
from purgatory.sweeps.tasks import Task, part_files, run_scenario, write_part
from tests.spark.pipeline.sweeps.small_sweeps import grid_plan, write_sweep

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def done(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A sweep of 8 scenarios that was run once, and must not be changed by a test."""
    folder = tmp_path_factory.mktemp("sweep")
    plan = grid_plan(folder)
    return Done(plan, folder / "out", sweep(spark, plan, folder / "out"))


class Done:
    """A sweep that was run."""

    def __init__(self, plan: Plan, out: Path, points: DataFrame) -> None:
        self.plan, self.out, self.points = plan, out, points
        self.rows: list[Row] = points.collect()


def parts_of(out: Path) -> dict[str, int]:
    """The parts by name, and how many rows each has."""
    return {path.name: pq.read_metadata(path).num_rows for path in part_files(out / PARTS)}


def kept(rows: list[Row]) -> list[dict[str, Any]]:
    """Rows without the columns that depend on the machine's speed."""
    return [
        {name: value for name, value in row.asDict().items() if not name.endswith("_s")}
        for row in rows
    ]


def test_each_scenario_of_the_plan_has_a_row_in_order(done: Done) -> None:
    seen = [(row["point"], row["seed"]) for row in done.rows]
    assert seen == [(point, seed) for point in range(4) for seed in (1, 2)]
    assert [row["key"] for row in done.rows] == list(done.plan.keys())
    assert {row["error"] for row in done.rows} == {None}
    assert all(row["computed_s"] > 0 and row["elapsed_s"] > 0 for row in done.rows)


def test_row_of_a_point_equals_the_simulations_summary(done: Done) -> None:
    row = done.rows[5]  # timeout 400, lag 1, seed 2
    assert (row["producers_orders_timeout_ms"], row["followers_lag_ms"]) == (400, 1)
    document = done.plan.document(2) | {"seed": 2}
    loaded = LoadedScenario(Scenario.model_validate(document), Path(), "test")
    summary = Simulation(loaded).run()
    produce = summary["purgatories"][0]
    assert row["produce_operations"] == produce["operations"] > 0
    assert row["produce_expired"] == produce["expired"]
    assert row["produce_expiry_ratio"] == produce["expired"] / produce["operations"]
    for name in ("p50", "p95", "p99", "p999", "max"):
        assert row[f"produce_wait_{name}_ms"] == produce["wait_us"][name] / 1000
    consumers = summary["purgatories"][2]
    assert row["fetch_consumer_operations"] == consumers["operations"] > 0
    for name in ("records", "acknowledged", "duplicates", "reorderings", "lost", "failed"):
        assert row[name] == sum(group[name] for group in summary["producers"])
    assert row["records_read"] == summary["consumers"][0]["records"]


def test_table_has_the_documented_columns(done: Done) -> None:
    names = ["point", "producers_orders_timeout_ms", "followers_lag_ms", "seed", *RESULTS.names]
    assert done.points.columns == names
    kinds = dict(done.points.dtypes)
    assert kinds["followers_lag_ms"] == "bigint" and kinds["drained"] == "boolean"
    for name, kind in MEASURES.items():
        assert kinds[name] == {"int64": "bigint", "double": "double"}[str(kind)]


def test_resumed_sweep_runs_only_missing_scenarios(
    spark: SparkSession, done: Done, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = parts_of(done.out)
    monkeypatch.setattr("purgatory.sweeps.run._run", lambda *_: pytest.fail("a task ran"))
    again = sweep(spark, done.plan, done.out)
    assert kept(again.collect()) == kept(done.rows)
    assert parts_of(done.out) == before


def test_extended_sweep_runs_only_new_scenarios(spark: SparkSession, tmp_path: Path) -> None:
    first = sweep(spark, grid_plan(tmp_path, timeouts="10", lags="1"), tmp_path / "out")
    times = {row["key"]: row["computed_s"] for row in first.collect()}
    before = parts_of(tmp_path / "out")
    points = sweep(spark, grid_plan(tmp_path, timeouts="10, 20", lags="1"), tmp_path / "out")
    new = {name: rows for name, rows in parts_of(tmp_path / "out").items() if name not in before}
    assert sum(before.values()) == 2 and sum(new.values()) == 2
    rows = points.collect()
    assert len(rows) == 4
    assert {row["key"]: row["computed_s"] for row in rows if row["key"] in times} == times


FAILING = """
name = "failing"
scenario = "tiny.toml"
repetitions = 2
grid."cluster.brokers" = [2, 3]
"""


def test_failed_scenario_is_a_row_and_others_complete(spark: SparkSession, tmp_path: Path) -> None:
    rows = sweep(spark, write_sweep(tmp_path, FAILING), tmp_path / "out").collect()
    assert [(row["seed"], row["error"] is None) for row in rows] == [
        (1, False),
        (2, False),
        (1, True),
        (2, True),
    ]
    assert (
        "topic.replication_factor = 3: must be at most cluster.brokers, which is 2"
        in (rows[0]["error"])
    )
    assert rows[0]["produce_operations"] is None and rows[2]["produce_operations"] > 0


def test_failed_scenarios_are_run_again_only_when_asked_for(tmp_path: Path) -> None:
    plan, out = load_plan(write_sweep(tmp_path, FAILING)), tmp_path / "out"
    prepare_folder(out, plan)
    rows = [{"key": key, "error": "no luck"} for key in list(plan.keys())[:2]]
    write_part(out / PARTS, "abc", 0, 0, rows)
    assert list(missing(plan, out)) == [2, 3]
    assert list(missing(plan, out, retry_failed=True)) == [0, 1, 2, 3]


def test_row_without_error_counts_of_a_scenario_that_ran_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    plan, out = grid_plan(tmp_path, timeouts="10", lags="1"), tmp_path / "out"
    prepare_folder(out, plan)
    first, second = plan.keys()
    write_part(out / PARTS, "a", 0, 0, [{"key": first, "error": "no luck"}, {"key": second}])
    write_part(out / PARTS, "b", 0, 0, [{"key": first, "records": 7}, {"key": "of another plan"}])
    found = {
        row["key"]: (row["error"], row["records"]) for row in results(spark, plan, out).collect()
    }
    assert found == {first: (None, 7), second: (None, None)}


def test_scenario_beyond_its_time_limit_ends_with_an_error(tmp_path: Path) -> None:
    plan = grid_plan(tmp_path, further="most_seconds = 1e-9")
    row = run_scenario(plan, 0)
    assert row["error"].startswith("took longer than 1e-09 s (most_seconds in the sweep file)")


def test_a_defect_in_one_scenario_is_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("what nobody thought of")

    monkeypatch.setattr("purgatory.sweeps.tasks.measure_run", broken)
    assert run_scenario(grid_plan(tmp_path), 0)["error"] == "RuntimeError: what nobody thought of"


def test_repeated_task_runs_only_unwritten_scenarios(tmp_path: Path) -> None:
    plan, out = grid_plan(tmp_path), tmp_path / "out"
    prepare_folder(out, plan)
    keys = missing(plan, out)
    task = Task(plan, keys, [[0, 1], [2, 3, 4]], out / PARTS, "abcdef")
    write_part(out / PARTS, "abcdef", 1, 0, [{"key": keys[3]}])
    assert task.run_batch(1) == 2
    assert task.run_batch(1) == 0
    assert task.run_batch(0) == 2
    assert sum(parts_of(out).values()) == 5


def test_results_are_written_while_a_task_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = grid_plan(tmp_path), tmp_path / "out"
    prepare_folder(out, plan)
    monkeypatch.setattr("purgatory.sweeps.tasks._WRITE_EVERY_S", 0.0)
    assert Task(plan, missing(plan, out), [[0, 1, 2]], out / PARTS, "abcdef").run_batch(0) == 3
    assert list(parts_of(out).values()) == [1, 1, 1]


class _Interrupt:
    """Interrupts a sweep once some scenarios are done."""

    def __init__(self, after: int) -> None:
        self.after, self.seen = after, 0.0

    def __call__(self, now: EngineProgress) -> None:
        self.seen = now.done
        if now.done >= self.after:
            raise KeyboardInterrupt


def test_interrupted_sweep_resumes(spark: SparkSession, tmp_path: Path) -> None:
    timeouts = ", ".join(str(10 * number) for number in range(1, 21))
    plan, out = grid_plan(tmp_path, timeouts=timeouts), tmp_path / "out"
    interrupt = _Interrupt(after=1)
    with pytest.raises(KeyboardInterrupt):
        sweep(spark, plan, out, on_progress=interrupt)
    assert not any(thread.name == "sweep" for thread in threading.enumerate())
    left = len(missing(plan, out))
    assert 0 < left <= plan.scenarios - interrupt.seen
    seen: list[EngineProgress] = []
    points = sweep(spark, plan, out, on_progress=seen.append)
    # A worker that was at work when its task was cancelled may have written a last part since.
    assert interrupt.seen <= plan.scenarios - left <= plan.scenarios - seen[-1].total
    assert points.count() == plan.scenarios
    assert points.where("error is not null or computed_s is null").count() == 0
    assert missing(plan, out) == {}


def test_failure_on_a_worker_is_reported(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = grid_plan(tmp_path), tmp_path / "out"
    monkeypatch.setattr("purgatory.sweeps.run.Task", _LackingTask)
    with pytest.raises(PipelineError, match="a worker has no Python package 'pydantic'"):
        sweep(spark, plan, out)
    assert len(missing(plan, out)) == plan.scenarios


class _LackingTask(Task):
    """A task on a worker that lacks a package."""

    def __call__(self, arrived: Iterator[Any]) -> Iterator[Any]:
        raise ModuleNotFoundError("No module named 'pydantic'")


def test_compacting_of_parts_loses_no_row(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = grid_plan(tmp_path), tmp_path / "out"
    prepare_folder(out, plan)
    for number, key in enumerate(plan.keys()):
        write_part(out / PARTS, "abc", 0, number, [{"key": key, "records": number}])
    monkeypatch.setattr("purgatory.sweeps.run._MOST_PARTS", 7)
    merge_parts(spark, out)
    assert list(parts_of(out).values()) == [8]
    assert missing(plan, out) == {}
    assert [
        row["records"] for row in results(spark, plan, out).sort("point", "seed").collect()
    ] == (list(range(8)))


def test_the_tables_are_whole_or_as_they_were(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = grid_plan(tmp_path, timeouts="10", lags="1"), tmp_path / "out"
    sweep(spark, plan, out)
    before = sorted(path.name for path in (out / POINTS).iterdir())

    renamed = Path.rename

    def fails_once(path: Path, target: Path) -> Path:
        if target.name == POINTS and ".replaced" not in path.name:
            raise OSError(28, "No space left on device")
        return renamed(path, target)

    monkeypatch.setattr("purgatory.sweeps.run.Path.rename", fails_once)
    with pytest.raises(OSError, match="No space"):
        sweep(spark, plan, out)
    assert sorted(path.name for path in (out / POINTS).iterdir()) == before
    assert not list((out / PARTS).glob(".*"))


def test_foreign_folder_is_never_changed(tmp_path: Path) -> None:
    plan = grid_plan(tmp_path)
    with pytest.raises(OutputError, match=r"holds '(tiny|sweep)\.toml', which is no result"):
        prepare_folder(tmp_path, plan)
    with pytest.raises(OutputError, match="is a file"):
        prepare_folder(tmp_path / "tiny.toml", plan)
    (tmp_path / "other" / "points").mkdir(parents=True)
    with pytest.raises(OutputError, match=r"holds no sweep \(sweep\.json is missing\)"):
        prepare_folder(tmp_path / "other", plan)


def test_folder_names_its_sweep(done: Done) -> None:
    head = json.loads((done.out / "sweep.json").read_text())
    assert (head["sweep"], head["points"], head["scenarios"]) == ("by-hand", 4, 8)
    assert head["file"]["grid"]["followers.lag_ms"] == [1, 5]


def test_foreign_file_among_parts_is_named(tmp_path: Path) -> None:
    plan, out = grid_plan(tmp_path), tmp_path / "out"
    prepare_folder(out, plan)
    torn = out / PARTS / "part-abc-00000-00000-n1.parquet"
    torn.write_bytes(b"PAR1 and then the disk was full")
    with pytest.raises(SweepError, match=f"{torn.name}: is no part"):
        missing(plan, out)


def test_unfinished_parts_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    plan, out = grid_plan(tmp_path), tmp_path / "out"
    prepare_folder(out, plan)
    left = out / PARTS / ".part-abc-00000-00000-n1.parquet.123"
    left.write_bytes(b"PAR1")
    prepare_folder(out, plan)
    assert not left.exists()
