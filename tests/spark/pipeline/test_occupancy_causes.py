"""Hot keys, peaks and the slowest, against counts in plain Python."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline import hot_keys, peaks, slowest
from tests.spark.pipeline.audit_rows import Engine
from tests.spark.pipeline.operation_rows import SCHEMA, occupancy_of, slowest_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

Row = dict[str, Any]
END_US = 2_000
WIDTH_US = 50


def _random_operations(seed: int, number: int) -> list[Row]:
    chance = random.Random(seed)
    rows = []
    for operation in range(number):
        outcome = chance.choice(["immediate", "completed", "completed", "expired", "pending"])
        start_us = chance.randrange(END_US)
        wait_us = {"immediate": 0, "pending": END_US - start_us}.get(outcome, chance.randrange(600))
        rows.append(
            {
                "run_id": chance.choice(["run-1", "run-2"]),
                "broker": chance.randrange(2),
                "purgatory": chance.choice(["Fetch", "Produce"]),
                "operation": operation,
                "timeout_ms": 1,
                "start_us": start_us,
                "end_us": start_us + wait_us,
                "wait_us": wait_us,
                "outcome": outcome,
                "kind": chance.choice(["follower", "consumer"]),
                "watch_keys": chance.choice(
                    [None, ["a-0"], ["a-0", "a-1"], ["b-7", "b-7"], [f"c-{operation % 9}"]]
                ),
            }
        )
    return rows


@pytest.fixture(scope="module")
def operations() -> list[Row]:
    return _random_operations(3, 400)


@pytest.fixture(scope="module")
def spans() -> pa.Table:
    runs = ["run-1", "run-2"]
    return pa.table({"run_id": runs, "end_us": [END_US] * 2, "width_us": [WIDTH_US] * 2})


@pytest.fixture(scope="module")
def tables(engine: Engine, operations: list[Row], spans: pa.Table) -> dict[str, list[Row]]:
    """The rows of all tables, with four hot keys of each run and purgatory."""
    faults = pa.table(
        {
            "run_id": ["run-1", "run-1", "run-1"],
            "kind": ["stall", "crash", "late"],
            "broker": pa.array([1, None, 0], pa.int64()),
            "from_us": [0, 0, 5 * END_US],
            "until_us": pa.array([END_US, None, None], pa.int64()),
        }
    )
    given = pa.Table.from_pylist(operations, schema=SCHEMA)
    found = occupancy_of(engine, given, spans, faults, 4)
    return {name: table.to_pylist() for name, table in found.items()}


def _parked_at(operations: list[Row], at_us: int) -> list[Row]:
    return [
        row
        for row in operations
        if row["outcome"] != "immediate"
        and row["start_us"] <= at_us
        and (at_us < row["end_us"] or row["outcome"] == "pending")
    ]


def _in_run(row: Row) -> int:
    """The time that an operation was parked before the end of the run."""
    return max(0, min(int(row["end_us"]), END_US) - int(row["start_us"]))


def test_hot_keys_are_those_with_the_most_time_parked(
    tables: dict[str, list[Row]], operations: list[Row]
) -> None:
    rows = tables["hot_keys"]
    for run_id, purgatory in {(row["run_id"], row["purgatory"]) for row in operations}:
        parked: Counter[str] = Counter()
        entries: Counter[str] = Counter()
        expired: Counter[str] = Counter()
        for row in operations:
            if (row["run_id"], row["purgatory"]) != (run_id, purgatory):
                continue
            if row["outcome"] != "immediate":
                for key in set(row["watch_keys"] or []):
                    parked[key] += _in_run(row)
                    entries[key] += 1
                    expired[key] += row["outcome"] == "expired"
        expected = sorted(parked, key=lambda key: (-parked[key], key))[:4]
        found = sorted(
            (row for row in rows if (row["run_id"], row["purgatory"]) == (run_id, purgatory)),
            key=lambda row: row["rank"],
        )
        assert [row["key"] for row in found] == expected
        for row in found:
            assert row["mean_parked"] == pytest.approx(parked[row["key"]] / END_US)
            assert (row["entries"], row["expired"]) == (entries[row["key"]], expired[row["key"]])


def test_key_occupancy_equals_a_count_at_every_microsecond(
    tables: dict[str, list[Row]], operations: list[Row]
) -> None:
    wanted = tables["hot_keys"][0]
    own = [
        row
        for row in operations
        if row["watch_keys"] is not None
        and wanted["key"] in row["watch_keys"]
        and all(row[name] == wanted[name] for name in ("run_id", "purgatory"))
    ]
    sizes = [len(_parked_at(own, at_us)) for at_us in range(END_US)]
    rows = [
        row
        for row in tables["key_occupancy"]
        if all(row[name] == wanted[name] for name in ("run_id", "purgatory", "key"))
    ]
    assert len(rows) == END_US // WIDTH_US
    for row in rows:
        bucket = sizes[row["bucket_start_us"] : row["bucket_end_us"]]
        assert row["size_max"] == max(bucket)
        assert row["size_mean"] == pytest.approx(sum(bucket) / WIDTH_US)


def test_peaks_name_the_operations_parked_at_that_moment(
    tables: dict[str, list[Row]], operations: list[Row]
) -> None:
    rows = tables["peaks"]
    first = {(row["run_id"], row["purgatory"]): row for row in rows if row["rank"] == 1}
    assert len(first) == 4
    for (run_id, purgatory), row in first.items():
        own = [
            one for one in operations if (one["run_id"], one["purgatory"]) == (run_id, purgatory)
        ]
        sizes = [len(_parked_at(own, at_us)) for at_us in range(END_US)]
        assert row["size"] == max(sizes)
        assert row["at_us"] == sizes.index(max(sizes))
        parked = _parked_at(own, row["at_us"])
        assert row["oldest_us"] == row["at_us"] - min(one["start_us"] for one in parked)
        for what, column in (("kinds", "kind"), ("outcomes", "outcome"), ("brokers", "broker")):
            expected = Counter(str(one[column]) for one in parked)
            assert {one["name"]: one["parked"] for one in row[what]} == expected
        on_keys = Counter(key for one in parked for key in set(one["watch_keys"] or []))
        named = [(one["name"], one["parked"]) for one in row["keys"]]
        assert named == sorted(on_keys.items(), key=lambda one: (-one[1], one[0]))[:5]
        before = range(row["at_us"] - row["before_us"] + 1, row["at_us"] + 1)
        waited = [one for one in own if one["outcome"] != "immediate"]
        assert row["arrivals_before"] == sum(one["start_us"] in before for one in waited)
        assert row["arrivals_usual"] == pytest.approx(len(waited) * row["before_us"] / END_US)
        assert row["faults"] == (["crash", "stall 1"] if run_id == "run-1" else [])


def test_falling_size_has_its_peak_at_the_start_of_the_bucket(
    spark: SparkSession, spans: pa.Table
) -> None:
    own = [
        {**_random_operations(1, 1)[0], "run_id": "run-1", "purgatory": "Fetch", **times}
        for times in (
            {"start_us": 0, "end_us": 120, "wait_us": 120, "outcome": "completed"},
            {"start_us": 10, "end_us": 20, "wait_us": 10, "outcome": "completed"},
        )
    ]
    frame = spark.createDataFrame(pa.Table.from_pylist(own, schema=SCHEMA))
    table = spark.createDataFrame(
        pa.table(
            {
                "run_id": ["run-1"],
                "purgatory": ["Fetch"],
                "broker": pa.array([None], pa.int32()),
                "bucket_start_us": [100],
                "bucket_end_us": [150],
                "size_mean": [0.4],
                "size_max": [1],
            }
        )
    )
    (row,) = peaks(frame, table, spark.createDataFrame(spans)).toArrow().to_pylist()
    assert (row["at_us"], row["size"], row["faults"]) == (100, 1, None)


def test_slowest_operations_have_their_keys(engine: Engine, operations: list[Row]) -> None:
    rows = slowest_of(engine, pa.Table.from_pylist(operations, schema=SCHEMA), 3).to_pylist()
    assert len(rows) == 2 * 2 * 3
    for run_id, purgatory in {(row["run_id"], row["purgatory"]) for row in operations}:
        own = [
            one for one in operations if (one["run_id"], one["purgatory"]) == (run_id, purgatory)
        ]
        own.sort(key=lambda one: (-one["wait_us"], one["start_us"], one["operation"]))
        found = sorted(
            (row for row in rows if (row["run_id"], row["purgatory"]) == (run_id, purgatory)),
            key=lambda row: row["rank"],
        )
        for row, expected in zip(found, own, strict=False):
            assert {name: row[name] for name in expected} == expected


def test_counts_below_one_are_refused(spark: SparkSession) -> None:
    frame = spans = spark.range(1)
    refused = "number must be at least 1, not 0"
    with pytest.raises(ValueError, match=refused):
        slowest(frame, 0)
    with pytest.raises(ValueError, match=refused):
        hot_keys(frame, spans, 0)
    with pytest.raises(ValueError, match=refused):
        peaks(frame, frame, spans, number=0)
