"""Little's law in traces: the mean number parked is the rate of arrivals times the mean wait.

Little, Operations Research 9 (1961). Both sides are computed apart: the left one is the mean size
in the table `occupancy`, from a sweep over starts and ends; the right one is computed here, from
the rows of `operations`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from purgatory.pipeline.engines.run import run_job
from tests.theory.laws import number_present
from tests.unit.simulation.shipped_runs import ShippedRun

Row = dict[str, Any]
Place = tuple[str, int | None]
"""A purgatory, and a broker or None: all of them."""


def places_of(row: Row) -> Iterator[Place]:
    """The operation's own place, and that of all brokers."""
    yield row["purgatory"], None
    yield row["purgatory"], row["broker"]


def mean_sizes(trace: Path, out: Path) -> tuple[dict[Place, float], int]:
    """The mean number parked in each place, from the sizes of `occupancy`, and the run's length."""
    run_job("occupancy", [trace], out, engine="duckdb")
    areas: defaultdict[Place, float] = defaultdict(float)
    end_us = 0
    for row in pq.read_table(out / "occupancy").to_pylist():
        width_us = row["bucket_end_us"] - row["bucket_start_us"]
        areas[row["purgatory"], row["broker"]] += row["size_mean"] * width_us
        end_us = max(end_us, row["bucket_end_us"])
    return {place: area / end_us for place, area in areas.items()}, end_us


@pytest.mark.parametrize("name", ["leader-failover", "retry-reorder", "slow-follower", "steady"])
def test_littles_law_holds_in_each_shipped_scenario(
    name: str, shipped: ShippedRun, tmp_path: Path
) -> None:
    sizes, end_us = mean_sizes(shipped(name).trace, tmp_path / "out")
    waits_us: defaultdict[Place, list[int]] = defaultdict(list)
    for row in pq.read_table(shipped(name).trace / "operations").to_pylist():
        if row["outcome"] == "immediate":
            continue  # it was never parked
        # Operations that are pending at the end have waited until then.
        until_us = end_us if row["outcome"] == "pending" else min(row["end_us"], end_us)
        for place in places_of(row):
            waits_us[place].append(until_us - row["start_us"])
    assert sizes.keys() == waits_us.keys() and len(sizes) >= 2 * 4
    for place, waits in waits_us.items():
        mean_wait_us = sum(waits) / len(waits)
        expected = number_present(len(waits) / end_us, mean_wait_us)
        assert sizes[place] == pytest.approx(expected, rel=1e-9), place
