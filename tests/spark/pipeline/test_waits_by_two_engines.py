"""Spark and DuckDB have the same waits and occupancy: each cell, its type, and the rows' order."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.pipeline.operation_rows import (
    END_US,
    assert_same,
    occupancy_of,
    random_operations,
    slowest_of,
    waits_of,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("number", "how"),
    [
        # All pairs of options.
        (0, {"by_topic": True}),
        (1_000, {}),
        (300, {"by_topic": True, "window_us": 300}),
        (1_000, {"by_topic": True, "percentiles": "approximate"}),
        (1_000, {"window_us": 300, "percentiles": "approximate"}),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (
                (3_000, {"by_topic": True}),
                (3_000, {"by_topic": True, "window_us": 500, "percentiles": "approximate"}),
                (300, {"percentiles": "approximate"}),
            )
        ),
    ],
)
def test_both_engines_have_the_same_waits(
    spark: SparkSession, number: int, how: dict[str, Any]
) -> None:
    longest_us = 10**9 if "percentiles" in how else 600
    operations = random_operations(number, number, longest_us)
    with duckdb.connect() as connection:
        by_duckdb = waits_of(connection, operations, **how)
    assert bool(by_duckdb.num_rows) == bool(number)
    assert_same(by_duckdb, waits_of(spark, operations, **how))


@pytest.mark.parametrize("number", [1, 7])
def test_both_engines_have_the_same_slowest_operations(spark: SparkSession, number: int) -> None:
    operations = random_operations(5, 500)
    with duckdb.connect() as connection:
        by_duckdb = slowest_of(connection, operations, number)
    assert by_duckdb.num_rows == 3 * 2 * number
    assert_same(by_duckdb, slowest_of(spark, operations, number))


@pytest.mark.parametrize(
    ("number", "width_us"),
    [(0, 50), (900, 7), pytest.param(900, 500, marks=pytest.mark.exhaustive)],
)
def test_both_engines_have_the_same_occupancy(
    spark: SparkSession, number: int, width_us: int
) -> None:
    operations = random_operations(number, number)
    runs = ["run-1", "run-2", "run-3"]
    # One run ends before its last operations do, and one at once.
    ends_us = [END_US, END_US - 500, 0]
    spans = pa.table({"run_id": runs, "end_us": ends_us, "width_us": [width_us] * 3})
    faults = pa.table(
        {
            "run_id": ["run-1", "run-1", "run-1", "run-2"],
            "kind": ["stall", "crash", "late", "stall"],
            "broker": pa.array([1, None, 0, 2], pa.int64()),
            "from_us": [0, 0, 5 * END_US, 100],
            "until_us": pa.array([END_US, None, None, 110], pa.int64()),
        }
    )
    with duckdb.connect() as connection:
        by_duckdb = occupancy_of(connection, operations, spans, faults, 4)
    by_spark = occupancy_of(spark, operations, spans, faults, 4)
    assert all(bool(table.num_rows) == bool(number) for table in by_spark.values())
    for name, table in by_duckdb.items():
        assert_same(table, by_spark[name])
