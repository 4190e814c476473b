"""What the plans of the waits and of the occupancy must not have, whatever the amount of data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

from purgatory.pipeline import (
    hot_keys,
    littles_law,
    occupancy,
    occupancy_of_keys,
    peaks,
    slowest,
    waits,
)

pytestmark = pytest.mark.spark

Job = Callable[[DataFrame, DataFrame], DataFrame]
OPERATIONS = (
    "run_id string, broker int, purgatory string, operation bigint, timeout_ms bigint, "
    "start_us bigint, end_us bigint, wait_us bigint, outcome string, kind string, "
    "watch_keys array<string>"
)
JOBS: dict[str, Job] = {
    "waits": lambda operations, _: waits(operations),
    "waits by topic": lambda operations, _: waits(
        operations, by_topic=True, window_us=1000, percentiles="approximate"
    ),
    "slowest": lambda operations, _: slowest(operations),
    "occupancy": occupancy,
    "hot keys": hot_keys,
    "occupancy of keys": lambda operations, spans: occupancy_of_keys(
        operations, spans, hot_keys(operations, spans)
    ),
    "littles law": lambda operations, spans: littles_law(
        operations, occupancy(operations, spans), spans
    ),
    "peaks": lambda operations, spans: peaks(operations, occupancy(operations, spans), spans),
}


@pytest.fixture(scope="module")
def inputs(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[DataFrame]]:
    """Tables in files, and more than one task: what is planned for one hides what is asked here."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "4")
    folder = tmp_path_factory.mktemp("plans")
    frames = []
    for name, schema in (
        ("operations", OPERATIONS),
        ("spans", "run_id string, end_us bigint, width_us bigint"),
    ):
        (folder / name).mkdir()
        frames.append(spark.read.schema(schema).parquet(str(folder / name)))
    yield frames
    spark.conf.set("spark.sql.shuffle.partitions", str(before))


def _plan(frame: DataFrame) -> str:
    plan: str = frame._jdf.queryExecution().executedPlan().toString()
    return plan


@pytest.mark.parametrize("job", JOBS)
def test_no_plan_multiplies_rows_or_puts_all_into_one_task(
    job: str, inputs: list[DataFrame]
) -> None:
    plan = _plan(JOBS[job](*inputs))
    assert "CartesianProduct" not in plan
    assert "BroadcastNestedLoopJoin" not in plan
    assert "SinglePartition" not in plan
    assert "PythonUDF" not in plan and "MapInArrow" not in plan, "workers need no Python"
    for specification in re.findall(r"windowspecdefinition\(([^)]*)", plan):
        assert re.match(r"(run_id|_w\d|window_start_us)", specification), specification


def test_the_slowest_are_picked_in_each_task_before_any_exchange(inputs: list[DataFrame]) -> None:
    plan = _plan(slowest(inputs[0], 7))
    assert re.search(r"WindowGroupLimit .* 7, Partial", plan)


def test_waits_are_counted_in_each_task_before_any_exchange(inputs: list[DataFrame]) -> None:
    plan = _plan(waits(inputs[0]))
    above_scan = plan[: plan.index("FileScan")].splitlines()
    exchange = max(n for n, line in enumerate(above_scan) if "Exchange" in line)
    partial = max(n for n, line in enumerate(above_scan) if "partial_count" in line)
    assert exchange < partial, "nearer to the scan is further down"
    assert "ObjectHashAggregate" not in plan, "no group's waits are kept in memory"


def test_the_occupancy_is_walked_through_bucket_by_bucket(inputs: list[DataFrame]) -> None:
    plan = _plan(occupancy(*inputs))
    sweeps = [line for line in plan.splitlines() if " Window [" in line and "at_us" in line]
    assert sweeps, "the starts and ends are walked through in order"
    for specification in re.findall(r"windowspecdefinition\(([^)]*at_us[^)]*)", plan):
        assert "bucket" in specification, "no task walks through more than a bucket"
