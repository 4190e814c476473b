"""Windowed occupancy of a stream, beside the job on a trace of the same operations."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from purgatory.stream.checkpoint import Checkpoint
from purgatory.stream.metrics import StreamMetrics
from purgatory.stream.windowed_occupancy import PARKED, closed_until
from tests.spark.pipeline.operation_rows import SCHEMA, occupancy_of
from tests.spark.pipeline.stream.conftest import Feed, FileSource
from tests.spark.pipeline.stream.sample_rows import SECOND_US, STARTED_US, operation
from tests.spark.pipeline.stream.test_windowed_waits import WINDOW_US, rows_in, run_once

LONGEST_US = 25 * SECOND_US
END_US = 100 * SECOND_US
TIMES = {"watermark_delay_us": 10 * SECOND_US, "longest_wait_us": LONGEST_US}
OUTCOMES = ("immediate", "completed", "completed", "expired", "cancelled", "pending")
Rows = list[dict[str, Any]]


def random_operations(chance: random.Random, number: int) -> Rows:
    """Operations of two runs, with ties, many in the first seconds and few in a pause."""
    rows = []
    for _ in range(number):
        outcome = chance.choice(OUTCOMES)
        end_us = chance.choice(
            [chance.randrange(40 * SECOND_US), chance.randrange(80, 100) * SECOND_US]
        )
        end_us = END_US if outcome == "pending" else end_us
        longest_us = min(end_us, chance.choice([SECOND_US, LONGEST_US]))
        wait_us = 0 if outcome == "immediate" else chance.randrange(longest_us + 1)
        more = {
            "run_id": chance.choice(["run", "other"]),
            "purgatory": chance.choice(["Produce", "Fetch"]),
            "broker": chance.randrange(3),
        }
        rows.append(operation(end_us, outcome, wait_us, **more))
    return rows


def of_the_job(operations: Rows) -> Rows:
    """The rows of the job `occupancy` on a trace, of the buckets in which something was parked."""
    columns = [{name: row[name] for name in SCHEMA.names} for row in operations]
    runs = sorted({row["run_id"] for row in operations})
    spans = pa.table(
        {"run_id": runs, "end_us": [END_US] * len(runs), "width_us": [WINDOW_US] * len(runs)}
    )
    with duckdb.connect() as engine:
        table = occupancy_of(
            engine, pa.Table.from_pylist(columns, SCHEMA), spans, names=["occupancy"]
        )["occupancy"]
    return [row for row in table.to_pylist() if row["size_max"]]


def of_the_stream(out: Path) -> Rows:
    """The rows of a stream, with the columns and the order of the job's."""
    rows = rows_in(out / "occupancy")
    for row in rows:
        for name in ("start", "end"):
            at_us = round(row.pop(f"window_{name}").timestamp() * SECOND_US)
            row[f"bucket_{name}_us"] = at_us - STARTED_US
    return sorted(
        rows,
        key=lambda row: (
            row["run_id"],
            row["purgatory"],
            -1 if row["broker"] is None else row["broker"],
            row["bucket_start_us"],
        ),
    )


def pending_operations(metrics: StreamMetrics, purgatory: str) -> list[float | None]:
    """The mean and the maximum in `/metrics`."""
    return [
        metrics.registry.get_sample_value(
            "purgatory_live_pending_operations", {"purgatory": purgatory, "statistic": statistic}
        )
        for statistic in ("mean", "max")
    ]


def test_windows_equal_the_jobs_buckets_cell_by_cell(
    spark: SparkSession, source: FileSource, feed: Feed, tmp_path: Path
) -> None:
    chance = random.Random(8)
    operations = random_operations(chance, 900)
    # Out of order by less than rows may be late.
    operations.sort(key=lambda row: row["end_us"] + chance.randrange(8 * SECOND_US))
    out = tmp_path / "out"
    for rows in (operations[:400], operations[400:600]):
        feed(rows)
    run_once(spark, source, out, **TIMES)
    before = of_the_stream(out)
    for rows in (operations[600:], [operation(END_US + LONGEST_US + 20 * SECOND_US, "immediate")]):
        feed(rows)
    metrics = run_once(spark, source, out, **TIMES)

    expected = of_the_job(operations)
    found = of_the_stream(out)
    assert [{name: row[name] for name in expected[0]} for row in found] == expected
    assert 0 < len(before) < len(found)
    assert rows_in(out / "quarantine" / "waits") == []
    last = [row for row in expected if row["purgatory"] == "Fetch" and row["broker"] is None][-1]
    assert pending_operations(metrics, "Fetch") == [last["size_mean"], last["size_max"]]


def test_wait_beyond_the_longest_counts_its_end_and_is_reported(
    spark: SparkSession, source: FileSource, feed: Feed, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    feed([operation(65 * SECOND_US, "expired", 60 * SECOND_US)])
    feed([operation(200 * SECOND_US, "immediate")])
    metrics = run_once(spark, source, out, **TIMES)
    found = [
        (row["bucket_start_us"] // SECOND_US, row["size_mean"], row["size_max"])
        for row in of_the_stream(out)
        if row["broker"] is None
    ]
    assert found == [(40, 1.0, 1), (50, 1.0, 1), (60, 0.5, 1)]
    assert [(row["reason"], row["rows"]) for row in rows_in(out / "quarantine" / "waits")] == [
        ("outlasted", 1)
    ]
    assert pending_operations(metrics, "Produce") == [0, 0], "nothing waits since"


@pytest.mark.parametrize("longest_wait_us", [0, 7, 10, 25])
def test_closed_windows_are_beyond_the_reach_of_rows(longest_wait_us: int) -> None:
    for watermark_us in range(200):
        until_us = closed_until(watermark_us, window_us=10, longest_wait_us=longest_wait_us)
        # The window of waits that the watermark is in is open: a row may end at its start.
        reach_us = max(0, watermark_us // 10 * 10 - longest_wait_us)
        assert until_us <= reach_us < until_us + 10
        assert until_us % 10 == 0


@pytest.fixture(name="checkpoint")
def fixture_checkpoint(tmp_path: Path) -> Checkpoint:
    """A checkpoint with the waits of three batches."""
    checkpoint = Checkpoint(tmp_path)
    for number, ends_us in enumerate(([10, 30], [], [20, 40])):
        rows = [
            {"run_id": "run", "purgatory": "Fetch", "broker": 1, "start_us": end - 5, "end_us": end}
            for end in ends_us
        ]
        checkpoint.keep_parked(number, pa.Table.from_pylist(rows, PARKED))
    return checkpoint


def ends(parked: pa.Table) -> list[int]:
    """When these waits ended."""
    return sorted(parked["end_us"].to_pylist())


def test_checkpoint_reads_the_waits_of_a_span_of_time(checkpoint: Checkpoint) -> None:
    assert ends(checkpoint.parked(0, 100)) == [10, 20, 30, 40]
    assert ends(checkpoint.parked(10, 26)) == [20, 30]
    assert ends(checkpoint.parked(40, 100)) == []


def test_checkpoint_drops_the_waits_of_batches_that_are_over(checkpoint: Checkpoint) -> None:
    checkpoint.drop_parked(29)
    assert ends(checkpoint.parked(0, 100)) == [10, 20, 30, 40]
    checkpoint.drop_parked(30)
    assert ends(checkpoint.parked(0, 100)) == [20, 40]
    checkpoint.drop_parked(40)
    assert ends(checkpoint.parked(0, 100)) == []
