"""The tables behind the report's plots: bins of waits, and where operations expired."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from purgatory.analysis.distribution import distribution
from purgatory.analysis.expiry import EXPIRY_ORDER, expiry

pytestmark = pytest.mark.spark

Row = dict[str, Any]


def _rows(spark: SparkSession, operations: list[tuple[Any, ...]], columns: str) -> Any:
    return spark.createDataFrame(operations, columns)


def test_each_wait_lies_in_its_bin(spark: SparkSession) -> None:
    waits_us = [0, 1, 10, 99, 100, 158, 159, 251, 1_000_000]
    rows = [("run", "Fetch", "completed", wait_us) for wait_us in waits_us]
    rows += [("run", "Fetch", "immediate", 0), ("run", "Fetch", "pending", 5)]
    columns = "run_id string, purgatory string, outcome string, wait_us bigint"
    found = distribution(_rows(spark, rows, columns)).orderBy("low_us").toArrow().to_pylist()
    assert sum(row["operations"] for row in found) == len(waits_us)
    for row in found:
        inside = [
            us for us in waits_us if row["low_us"] * (1 - 1e-9) <= max(us, 1) < row["high_us"]
        ]
        assert row["operations"] == len(inside), row
        assert row["high_us"] / row["low_us"] == pytest.approx(10**0.2)
    hundred = next(row for row in found if row["low_us"] == pytest.approx(100))
    assert hundred["operations"] == 2


def _expired(spark: SparkSession, with_keys: bool, **options: int) -> list[Row]:
    rows: list[tuple[Any, ...]] = [
        ("run", "Produce", 0, "expired", ["a-0", "a-1"]),
        ("run", "Produce", 0, "completed", ["a-0", "a-0"]),
        ("run", "Produce", 1, "completed", ["b-0"]),
        ("run", "Produce", 1, "immediate", ["b-0"]),
        ("run", "Produce", 1, "pending", ["b-0"]),
        ("run", "Produce", 1, "cancelled", None),
    ]
    columns = "run_id string, purgatory string, broker int, outcome string"
    if with_keys:
        operations = _rows(spark, rows, f"{columns}, watch_keys array<string>")
    else:
        operations = _rows(spark, [row[:-1] for row in rows], columns)
    found: list[Row] = expiry(operations, **options).orderBy(*EXPIRY_ORDER).toArrow().to_pylist()
    return found


def _counts(rows: list[Row]) -> list[tuple[Any, ...]]:
    return [(row["broker"], row["watch_key"], row["operations"], row["expired"]) for row in rows]


def test_expired_operations_count_under_each_of_their_keys(spark: SparkSession) -> None:
    found = _expired(spark, with_keys=True)
    assert _counts(found) == [
        (0, None, 2, 1),
        (0, "a-0", 2, 1),
        (0, "a-1", 1, 1),
        (1, None, 2, 0),
        (1, "b-0", 1, 0),
    ]
    assert [row["expiry_ratio"] for row in found] == [0.5, 0.5, 1.0, 0.0, 0.0]


def test_the_keys_with_the_most_expired_operations_are_kept(spark: SparkSession) -> None:
    assert _counts(_expired(spark, with_keys=True, most_keys=1)) == [
        (0, None, 2, 1),
        (0, "a-0", 2, 1),
        (1, None, 2, 0),
    ]
    with pytest.raises(ValueError, match="most_keys must be at least 0, and is -1"):
        _expired(spark, with_keys=True, most_keys=-1)


def test_a_trace_without_keys_tells_of_brokers(spark: SparkSession) -> None:
    assert _counts(_expired(spark, with_keys=False)) == [(0, None, 2, 1), (1, None, 2, 0)]
