"""How Spark carries out an audit: split as stated, and without what does not scale."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.jobs.audit import Audit, audit
from tests.pipeline.audit_injections import injected
from tests.pipeline.audit_rows import tables

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

_WINDOW = re.compile(r"windowspecdefinition\((.*?)(?:, specifiedwindowframe|\))")


@pytest.fixture(scope="module")
def result(spark: SparkSession) -> Iterator[Audit]:
    """An audit of all tables, not computed, in a session with several tasks to a shuffle."""
    traces = (injected("result_without_offset in one transaction", 1, seed)[0] for seed in range(9))
    trace = next(one for one in traces if any(send.transaction for send in one.sends))
    made = tables(spark, {"run": trace})
    before = spark.conf.get("spark.sql.shuffle.partitions") or "200"
    spark.conf.set("spark.sql.shuffle.partitions", "4")
    try:
        with audit(**made, configuration={"run": trace.configuration}) as result:
            yield result
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)


@pytest.fixture(scope="module")
def plan(result: Audit) -> str:
    """The physical plans of both result tables, those of what is kept included."""
    return "\n".join(
        table._jdf.queryExecution().executedPlan().toString()
        for table in (result.audit, result.witnesses)
    )


def test_there_is_no_cartesian_product_and_no_nested_loop(plan: str) -> None:
    assert "SortMergeJoin" in plan or "HashJoin" in plan
    assert "CartesianProduct" not in plan
    assert "NestedLoopJoin" not in plan


def test_no_window_and_no_shuffle_has_a_single_partition(plan: str) -> None:
    assert "Window [" in plan
    assert "SinglePartition" not in plan


def test_windows_see_ranges_and_not_hot_partitions_producers_readers_or_keys(plan: str) -> None:
    windows = set(_WINDOW.findall(plan))
    assert len(windows) >= 9
    columns = {re.sub(r"#\d+L?", "", window) for window in windows}
    whole = {window for window in columns if "range" not in window}
    # Without a range: writers of a partition, spans of a producer's ranges, epochs of a
    # transactional id, the cases of an anomaly (limited before), the events of a witness.
    assert {re.split(" ASC| DESC", window)[0] for window in whole} == {
        "run_id, topic, partition, start_us",
        "run_id, producer",
        "run_id, transactional_id, epoch",
        "run_id, anomaly, severity",
        "run_id, anomaly, rank, _w0",
    }


def test_witnesses_are_limited_before_they_are_put_together(plan: str) -> None:
    assert "WindowGroupLimit" in plan
    assert re.search(r"WindowGroupLimit \[run_id#\d+, anomaly#\d+\].* 10, Partial", plan)
