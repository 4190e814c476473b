"""The size of a purgatory over time, against a walk through every microsecond."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from purgatory.pipeline.jobs.run_spans import MOST_POINTS, bucket_width_us
from tests.spark.pipeline.audit_rows import Engine
from tests.spark.pipeline.operation_rows import SCHEMA, occupancy_of

Row = dict[str, Any]
Wait = tuple[int, int, int, str]
"""Broker, start, end, outcome."""


def _expected(waits: Sequence[Wait], end_us: int, width_us: int) -> dict[tuple[Any, int], Row]:
    """Mean and maximum of each bucket, by counting the waiting operations of each microsecond."""
    table = {}
    brokers: list[int | None] = [None, *sorted({broker for broker, *_ in waits})]
    for broker in brokers:
        own = [wait for wait in waits if broker in (None, wait[0]) and wait[3] != "immediate"]
        size = [
            sum(
                start <= at < end or (outcome == "pending" and start <= at)
                for _, start, end, outcome in own
            )
            for at in range(end_us)
        ]
        for start in range(0, end_us, width_us):
            bucket = size[start : start + width_us]
            table[broker, start] = {
                "bucket_end_us": min(start + width_us, end_us),
                "size_mean": sum(bucket) / len(bucket),
                "size_max": max(bucket),
            }
    return table


def _found(
    engine: Engine, runs: dict[str, Sequence[Wait]], end_us: int, widths_us: Sequence[int]
) -> dict[str, dict[tuple[Any, int], Row]]:
    operations = pa.Table.from_pylist(
        [
            {
                "run_id": run_id,
                "purgatory": "Fetch",
                "broker": broker,
                "start_us": start,
                "end_us": end,
                "outcome": outcome,
            }
            for run_id, waits in runs.items()
            for broker, start, end, outcome in waits
        ],
        schema=SCHEMA,
    )
    spans = pa.table(
        {
            "run_id": list(runs),
            "end_us": [end_us] * len(runs),
            "width_us": widths_us,
        }
    )
    tables: dict[str, dict[tuple[Any, int], Row]] = {run_id: {} for run_id in runs}
    for row in _rows(engine, operations, spans):
        key = (row["broker"], row["bucket_start_us"])
        assert key not in tables[row["run_id"]], "a bucket has one row"
        tables[row["run_id"]][key] = {
            name: row[name] for name in ("bucket_end_us", "size_mean", "size_max")
        }
    return tables


def _rows(engine: Engine, operations: pa.Table, spans: pa.Table) -> list[Row]:
    tables = occupancy_of(engine, operations, spans, names=["occupancy"])
    rows: list[Row] = tables["occupancy"].to_pylist()
    return rows


def test_occupancy_of_a_handmade_trace_is_exact(
    engine: Engine,
    write_trace: Callable[..., Path],
    hand_operations: list[Any],
    tmp_path: Path,
) -> None:
    write_trace(tmp_path, hand_operations)
    operations = pq.read_table(tmp_path / "operations")
    spans = pa.table({"run_id": ["by-hand-1"], "end_us": [1000], "width_us": [400]})
    rows = [row for row in _rows(engine, operations, spans) if row["purgatory"] == "Produce"]
    found = {
        (row["broker"], row["bucket_start_us"]): (
            row["bucket_end_us"],
            row["size_mean"],
            row["size_max"],
        )
        for row in rows
    }
    assert found == {
        # Three waits from 100 (of 50, 150 and 400 us) and one of 500 us from 200, on broker 0.
        (0, 0): (400, (50 + 150 + 300 + 200) / 400, 3),
        (0, 400): (800, (100 + 300) / 400, 2),
        (0, 800): (1000, 0.0, 0),
        # One from 700 that the end of the run cut off, on broker 1.
        (1, 0): (400, 0.0, 0),
        (1, 400): (800, 100 / 400, 1),
        (1, 800): (1000, 1.0, 1),
        (None, 0): (400, (50 + 150 + 300 + 200) / 400, 3),
        (None, 400): (800, (100 + 300 + 100) / 400, 2),
        (None, 800): (1000, 1.0, 1),
    }


_wait = st.tuples(
    st.integers(0, 2),
    st.integers(0, 40),
    st.integers(0, 40),
    st.sampled_from(["completed", "expired", "immediate", "pending"]),
).map(
    lambda wait: (wait[0], min(wait[1:3]), 40 if wait[3] == "pending" else max(wait[1:3]), wait[3])
)


@settings(
    max_examples=3,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    runs=st.lists(st.lists(_wait, min_size=1, max_size=12), min_size=10, max_size=10),
)
def test_occupancy_equals_a_count_at_every_microsecond(
    engine: Engine, runs: list[list[Wait]]
) -> None:
    # Many runs at once: Spark's time is per job, not per row.
    named: dict[str, Sequence[Wait]] = {f"run-{n}": waits for n, waits in enumerate(runs)}
    widths_us = [1, 7, 10, 40, 100] * 2
    found = _found(engine, named, 40, widths_us)
    for (run_id, waits), width_us in zip(named.items(), widths_us, strict=True):
        expected = _expected(waits, 40, width_us)
        assert found[run_id].keys() == expected.keys()
        for key, row in expected.items():
            assert found[run_id][key] == pytest.approx(row), (run_id, key)


@pytest.mark.parametrize(
    ("duration_us", "width_us"),
    [
        (0, 1),
        (1, 1),
        (MOST_POINTS, 1),
        (MOST_POINTS + 1, 2),
        (2 * MOST_POINTS + 1, 5),
        (5 * MOST_POINTS + 1, 10),
        (60_000_000, 200_000),
        (10**18, 5 * 10**15),
    ],
)
def test_bucket_width_follows_the_length_of_the_run(duration_us: int, width_us: int) -> None:
    assert bucket_width_us(duration_us) == width_us
    assert -(-duration_us // width_us) <= MOST_POINTS
