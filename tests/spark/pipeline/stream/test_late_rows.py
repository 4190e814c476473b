"""Partitions with backlogs of different lengths: no row of one is late because of another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from purgatory.cluster import ClusterConfig, ThreadedCluster, TopicSpec
from tests.spark.pipeline.stream.published_run import publish
from tests.spark.pipeline.stream.sample_rows import SECOND_US, operation
from tests.spark.pipeline.stream.test_stream_command import stream
from tests.spark.pipeline.stream.test_windowed_waits import rows_in

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

_PAUSE_S = 60
_BUSY_PER_S = 10
_TIMES = ("--window", "5s", "--watermark", "2s", "--most-rows", "400")


@pytest.fixture(scope="module", name="bootstrap")
def fixture_bootstrap() -> Iterator[str]:
    topic = TopicSpec("live.operations", 3)
    with ThreadedCluster(ClusterConfig(brokers=1, topics=[topic])) as cluster:
        yield cluster.bootstrap_servers


def test_quiet_partition_makes_no_row_of_a_busy_one_late(
    bootstrap: str, spark: SparkSession, tmp_path: Path
) -> None:
    busy = [
        operation(10 * SECOND_US + number * SECOND_US // _BUSY_PER_S, purgatory="Produce")
        for number in range(_PAUSE_S * _BUSY_PER_S)
    ]
    quiet = [
        operation((10 + second) * SECOND_US, purgatory="Fetch") for second in range(_PAUSE_S + 1)
    ]
    # The third partition stays empty, and must not hold up the windows of the others.
    publish(bootstrap, [(0, row) for row in quiet] + [(1, row) for row in busy])
    out = tmp_path / "out"
    assert stream(spark, bootstrap, out, *_TIMES) == 0
    assert rows_in(out / "quarantine" / "waits") == []
    counted = {"Produce": 0, "Fetch": 0}
    for row in rows_in(out / "waits"):
        counted[row["purgatory"]] += row["operations"]
    # The newest row is of the second 70, so the windows up to 65 are closed.
    assert counted == {"Produce": 55 * _BUSY_PER_S, "Fetch": 55}
