"""One rule for percentiles, in each of their implementations."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from purgatory.pipeline import waits
from purgatory.simulation.latencies import Waits
from purgatory.stream.watermark import Watermark
from purgatory.stream.windowed_waits import State, close_windows, count_batch
from purgatory.trace.percentiles import DECIMALS, PERCENTILES, percentiles


@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=50), st.lists(st.floats(0, 1), max_size=5)
)
def test_percentiles_match_numpy(found: list[int], shares: list[float]) -> None:
    expected = [float(np.quantile(found, share)) for share in shares]
    rounded = 0.6 * 10**-DECIMALS
    assert percentiles(Counter(found), max(found), shares) == pytest.approx(
        expected, rel=1e-9, abs=rounded
    )


def test_longest_wait_is_not_rounded() -> None:
    assert percentiles({10_000: 2}, 10_009, [0, 0.5, 1]) == [10_000, 10_004.5, 10_009]


@pytest.mark.spark
@pytest.mark.parametrize(
    "number",
    [1, 999, *(pytest.param(number, marks=pytest.mark.exhaustive) for number in (2, 3))],
)
def test_simulation_analysis_and_live_jobs_agree_on_percentiles(
    spark: SparkSession, number: int
) -> None:
    chance = random.Random(number)
    found = [int(chance.lognormvariate(10, 3)) for _ in range(number)]
    simulated = Waits()
    for wait_us in found:
        simulated.add(wait_us)
    operations = pa.table(
        {
            "run_id": ["run"] * number,
            "purgatory": ["Fetch"] * number,
            "kind": ["consumer"] * number,
            "outcome": ["completed"] * number,
            "start_us": pa.array([0] * number, pa.int64()),
            "wait_us": pa.array(found, pa.int64()),
        }
    )
    table = waits(spark.createDataFrame(operations), percentiles="approximate")
    analyzed = table.where("kind = 'all' AND outcome = 'all'").toArrow().to_pylist()[0]
    expected = dict(zip(PERCENTILES, simulated.percentiles(*PERCENTILES.values()), strict=True))
    assert {name: analyzed[name] for name in PERCENTILES} == pytest.approx(expected, rel=1e-12)
    shown = {name: value for name, value in live(spark, operations).items() if name in PERCENTILES}
    assert len(shown) == 3
    assert shown == pytest.approx({name: expected[name] for name in shown}, rel=1e-12)


def live(spark: SparkSession, operations: pa.Table) -> dict[str, Any]:
    """The one window of operations in the results of `purgatory stream`."""
    texts, numbers = (
        pa.array([None] * len(operations), pa.string()),
        pa.array([0] * len(operations)),
    )
    rows = operations.drop_columns(["start_us"])
    for name, column in {"topic": texts, "partition": numbers, "event_us": numbers}.items():
        rows = rows.append_column(name, column)
    for name in ("problem", "example"):
        rows = rows.append_column(name, texts)
    session = spark.newSession()
    batch = session.createDataFrame(rows)
    counts = count_batch(batch, window_us=1_000, longest_wait_us=2**62).counts
    after = Watermark(1_000)
    _, results = close_windows(session, counts, State(), after, window_us=1_000)
    row: dict[str, Any] = results["waits"].to_pylist()[0]
    return row
