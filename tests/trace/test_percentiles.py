"""One rule for percentiles, whoever computes them."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from purgatory.pipeline import waits
from purgatory.pipeline.stream.windowed_waits import WaitWindow
from purgatory.simulation.latencies import Waits
from purgatory.trace.percentiles import DECIMALS, PERCENTILES, percentiles


@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=50), st.lists(st.floats(0, 1), max_size=5)
)
def test_they_are_those_of_numpy(found: list[int], shares: list[float]) -> None:
    expected = [float(np.quantile(found, share)) for share in shares]
    rounded = 0.6 * 10**-DECIMALS
    assert percentiles(Counter(found), max(found), shares) == pytest.approx(
        expected, rel=1e-9, abs=rounded
    )


def test_the_longest_wait_counts_as_it_was() -> None:
    assert percentiles({10_000: 2}, 10_009, [0, 0.5, 1]) == [10_000, 10_004.5, 10_009]


@pytest.mark.spark
@pytest.mark.parametrize("number", [1, 2, 3, 999])
def test_simulation_analysis_and_live_jobs_tell_the_same_of_the_same_waits(
    spark: SparkSession, number: int
) -> None:
    chance = random.Random(number)
    found = [int(chance.lognormvariate(10, 3)) for _ in range(number)]
    simulated = Waits()
    for wait_us in found:
        simulated.add(wait_us)
    live = WaitWindow()
    live.add(pd.DataFrame({"outcome": "completed", "wait_us": found}))
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
    told = live.result()
    shown = {name: told[name] for name in PERCENTILES if name in told}
    assert len(shown) == 3
    assert shown == pytest.approx({name: expected[name] for name in shown}, rel=1e-12)
