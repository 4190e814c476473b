"""Spark and DuckDB give the same waits: every cell, its type, and the order of the rows."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from tests.analysis.waiting_rows import assert_same, random_operations, slowest_of, waits_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (0, {"by_topic": True}),
        (3_000, {}),
        (3_000, {"by_topic": True}),
        (3_000, {"by_topic": True, "window_us": 500, "percentiles": "approximate"}),
        (300, {"by_topic": True, "window_us": 300}),
        (3_000, {"window_us": 300, "percentiles": "approximate"}),
        (300, {"percentiles": "approximate"}),
    ],
)
def test_waits(spark: SparkSession, number: int, how: dict[str, Any]) -> None:
    longest_us = 10**9 if "percentiles" in how else 600
    operations = random_operations(number, number, longest_us)
    with duckdb.connect() as connection:
        by_duckdb = waits_of(connection, operations, **how)
    assert bool(by_duckdb.num_rows) == bool(number)
    assert_same(by_duckdb, waits_of(spark, operations, **how))


@pytest.mark.parametrize("number", [1, 7])
def test_slowest(spark: SparkSession, number: int) -> None:
    operations = random_operations(5, 500)
    with duckdb.connect() as connection:
        by_duckdb = slowest_of(connection, operations, number)
    assert by_duckdb.num_rows == 3 * 2 * number
    assert_same(by_duckdb, slowest_of(spark, operations, number))
