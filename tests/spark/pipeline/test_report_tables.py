"""The tables behind the report's plots: bins of waits, and where operations expired."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.pipeline.analysis_rows import attempts_of, distribution_of, expiry_of
from tests.spark.pipeline.audit_rows import Engine
from tests.spark.pipeline.operation_rows import assert_same, random_operations

pytestmark = pytest.mark.spark

Row = dict[str, Any]
_SCHEMA = pa.schema(
    [
        ("run_id", pa.string()),
        ("purgatory", pa.string()),
        ("broker", pa.int32()),
        ("outcome", pa.string()),
        ("start_us", pa.int64()),
        ("end_us", pa.int64()),
        ("wait_us", pa.int64()),
        ("watch_keys", pa.list_(pa.string())),
    ]
)


def _table(rows: list[tuple[Any, ...]], *left_out: str) -> pa.Table:
    timed = [(*row[:4], 10 * place, 10 * place + 5, *row[4:]) for place, row in enumerate(rows)]
    named = [dict(zip(_SCHEMA.names, row, strict=True)) for row in timed]
    return pa.Table.from_pylist(named, schema=_SCHEMA).drop_columns(list(left_out))


def _waits(waits_us: list[int]) -> pa.Table:
    rows: list[tuple[Any, ...]]
    rows = [("run", "Fetch", 0, "completed", wait_us, None) for wait_us in waits_us]
    rows += [("run", "Fetch", 0, "immediate", 0, None), ("run", "Fetch", 0, "pending", 5, None)]
    return _table(rows)


def test_each_wait_lies_in_its_bin(engine: Engine) -> None:
    waits_us = [0, 1, 10, 99, 100, 158, 159, 251, 1_000_000]
    found = distribution_of(engine, _waits(waits_us)).to_pylist()
    assert sum(row["operations"] for row in found) == len(waits_us)
    for row in found:
        inside = [
            us for us in waits_us if row["low_us"] * (1 - 1e-9) <= max(us, 1) < row["high_us"]
        ]
        assert row["operations"] == len(inside), row
        assert row["high_us"] / row["low_us"] == pytest.approx(10**0.2)
    hundred = next(row for row in found if row["low_us"] == pytest.approx(100))
    assert hundred["operations"] == 2


def test_both_engines_put_waits_near_bounds_in_the_same_bins(spark: SparkSession) -> None:
    bounds_us = [int(10 ** (number / 5)) for number in range(94)]
    near = [bound_us + more for bound_us in bounds_us for more in range(-2, 3)]
    waits = _waits([0, *(wait_us for wait_us in near if wait_us > 0), 2**63 - 1])
    with duckdb.connect() as connection:
        by_duckdb = distribution_of(connection, waits)
    assert by_duckdb.num_rows == 95
    assert_same(by_duckdb, distribution_of(spark, waits))


def _expired(engine: Engine, with_keys: bool, **options: int) -> list[Row]:
    rows: list[tuple[Any, ...]] = [
        ("run", "Produce", 0, "expired", 1, ["a-0", "a-1"]),
        ("run", "Produce", 0, "completed", 1, ["a-0", "a-0"]),
        ("run", "Produce", 1, "completed", 1, ["b-0"]),
        ("run", "Produce", 1, "immediate", 1, ["b-0"]),
        ("run", "Produce", 1, "pending", 1, ["b-0"]),
        ("run", "Produce", 1, "cancelled", 1, None),
    ]
    operations = _table(rows) if with_keys else _table(rows, "watch_keys")
    found: list[Row] = expiry_of(engine, operations, **options).to_pylist()
    return found


def _counts(rows: list[Row]) -> list[tuple[Any, ...]]:
    return [(row["broker"], row["watch_key"], row["operations"], row["expired"]) for row in rows]


def test_expired_operations_count_under_each_of_their_keys(engine: Engine) -> None:
    found = _expired(engine, with_keys=True)
    assert _counts(found) == [
        (0, None, 2, 1),
        (0, "a-0", 2, 1),
        (0, "a-1", 1, 1),
        (1, None, 2, 0),
        (1, "b-0", 1, 0),
    ]
    assert [row["expiry_ratio"] for row in found] == [0.5, 0.5, 1.0, 0.0, 0.0]
    times = [(row["from_us"], row["until_us"]) for row in found]
    assert times == [(0, 5), (0, 5), (0, 5), (None, None), (None, None)]


def test_records_count_once_in_each_outcome_of_their_attempts(engine: Engine) -> None:
    columns = ("value_id", "outcome", "error", "send_us", "answer_us")
    rows = [
        (1, "unknown", "TIMED_OUT", 10, 20),
        (1, "unknown", "DISCONNECTED", 30, None),
        (1, "ok", None, 40, 50),
        (2, "ok", None, 5, 6),
        (3, "unknown", "TIMED_OUT", 7, 90),
    ]
    record = {"run_id": "r", "group": "g", "topic": "t"}
    sends = [{**record, **dict(zip(columns, row, strict=True))} for row in rows]
    # The record 1 is stored twice, and one place of it was read by two readers.
    places = [(1, 0, 4), (1, 0, 4), (1, 1, 9), (2, 0, 5)]
    reads = [
        {"run_id": "r", "value_id": value, "topic": "t", "partition": partition, "offset": offset}
        for value, partition, offset in places
    ]
    found = attempts_of(engine, pa.Table.from_pylist(sends), pa.Table.from_pylist(reads))
    assert [tuple(row.values())[2:] for row in found.to_pylist()] == [
        ("all", "*", 5, 3, 2, 1, 1, 5, 90),
        ("ok", "*", 2, 2, 2, 1, 1, 5, 50),
        ("unknown", "*", 3, 2, 1, 1, 1, 7, 90),
        ("unknown", "DISCONNECTED", 1, 1, 1, 1, 1, 30, 30),
        ("unknown", "TIMED_OUT", 2, 2, 1, 1, 1, 7, 90),
    ]


def test_the_keys_with_the_most_expired_operations_are_kept(engine: Engine) -> None:
    assert _counts(_expired(engine, with_keys=True, most_keys=1)) == [
        (0, None, 2, 1),
        (0, "a-0", 2, 1),
        (1, None, 2, 0),
    ]


def test_trace_without_keys_counts_by_broker(engine: Engine) -> None:
    assert _counts(_expired(engine, with_keys=False)) == [(0, None, 2, 1), (1, None, 2, 0)]


def test_both_engines_choose_the_same_tied_keys(spark: SparkSession) -> None:
    operations = random_operations(9, 900)
    with duckdb.connect() as connection:
        by_duckdb = expiry_of(connection, operations, most_keys=7)
    assert len(set(by_duckdb["watch_key"].to_pylist())) > 7
    assert_same(by_duckdb, expiry_of(spark, operations, most_keys=7))
