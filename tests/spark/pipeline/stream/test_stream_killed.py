"""`purgatory stream` killed in several places, and on a standalone cluster: the same results.

The expected results are computed from the rows, and by a run without a kill.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from purgatory.cluster import ClusterConfig, ThreadedCluster
from purgatory.stream import metrics as live_metrics
from purgatory.stream.metrics import StreamMetrics
from tests.spark.pipeline.cluster import command_environment, standalone_cluster
from tests.spark.pipeline.stream.published_run import (
    BAD_ROWS,
    MOST_ROWS,
    TIMES,
    TOPICS,
    all_results,
    publish_run,
)
from tests.spark.pipeline.stream.test_stream_command import stream
from tests.spark.pipeline.stream.test_windowed_waits import rows_in

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(500)]

ROOT = Path(__file__).parents[4]
KILLED_AT = "2"
"""With its second results in Parquet and half of them in the topic."""
_PATIENCE_S = 200.0


class Undisturbed(NamedTuple):
    """A cluster with a published run, and its results without a kill."""

    bootstrap: str
    results: Mapping[str, list[str]]
    operations: int

    def arguments(self, out: Path, topic: str, master: str) -> list[str]:
        """The arguments of a command that does the same again."""
        places = ["--bootstrap", self.bootstrap, "--prefix", "live", "--out", str(out)]
        return [*places, *TIMES, *MOST_ROWS, "--to-topic", topic, "--once", "--master", master]


@pytest.fixture(scope="module", name="undisturbed")
def fixture_undisturbed(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Undisturbed]:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    with ThreadedCluster(ClusterConfig(brokers=1, topics=TOPICS)) as cluster:
        servers = cluster.bootstrap_servers
        operations = publish_run(servers, seed=5)
        assert stream(spark, servers, out, *TIMES, *MOST_ROWS, "--to-topic", "undisturbed") == 0
        assert sum(row["operations"] for row in rows_in(out / "waits")) == operations
        results = all_results(out, servers, "undisturbed")
        yield Undisturbed(servers, results, operations)


def test_killed_and_restarted_stream_has_each_row_once(
    undisturbed: Undisturbed, spark: SparkSession, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arguments = undisturbed.arguments(out, "killed", "local[2]")
    ran = subprocess.run(
        [sys.executable, "-m", "tests.spark.pipeline.stream.killed_stream", KILLED_AT, *arguments],
        cwd=ROOT,
        # Files left behind are removed with the folder of the test.
        env={**command_environment(), "TMPDIR": str(tmp_path)},
        check=False,
        timeout=_PATIENCE_S,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    written = len(rows_in(out / "waits"))
    with metrics_at_the_end() as scraped:
        more = ("--to-topic", "killed", "--metrics-port", "0")
        assert stream(spark, undisturbed.bootstrap, out, *TIMES, *MOST_ROWS, *more) == 0
    assert 0 < written < len(rows_in(out / "waits")), "it was killed midway"
    assert all_results(out, undisturbed.bootstrap, "killed") == undisturbed.results
    assert counters(scraped[0]) == {
        "operations": undisturbed.operations,
        "rows_quarantined": BAD_ROWS,
    }


@contextmanager
def metrics_at_the_end() -> Iterator[list[str]]:
    """Have the last contents of `/metrics` recorded."""
    scraped: list[str] = []
    serve = live_metrics.serve_metrics

    @contextmanager
    def serve_metrics(metrics: StreamMetrics, port: int) -> Iterator[int]:
        with serve(metrics, port) as at:
            yield at
            with urlopen(f"http://{live_metrics.ADDRESS}:{at}/metrics") as answer:
                scraped.append(answer.read().decode())

    with patch.object(live_metrics, "serve_metrics", serve_metrics):
        yield scraped


def counters(text: str) -> dict[str, float]:
    """The sums of the live counters in `/metrics`."""
    return {
        family.name.removeprefix("purgatory_live_"): sum(
            sample.value for sample in family.samples if sample.name.endswith("_total")
        )
        for family in text_string_to_metric_families(text)
        if family.type == "counter"
    }


@pytest.mark.exhaustive
def test_stream_survives_a_lost_worker_with_equal_results(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with standalone_cluster(tmp_path) as cluster:
        arguments = undisturbed.arguments(out, "cluster", cluster.address)
        with subprocess.Popen(
            [sys.executable, "-m", "purgatory", "stream", *arguments],
            cwd=ROOT,
            env=command_environment(),
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            wait_for_results(process, out)
            cluster.workers[0].kill()
            killed_after = batches(out)
            _, errors = process.communicate(timeout=_PATIENCE_S)
        assert process.returncode == 0, errors
        assert batches(out) > killed_after, "it was over before the worker was killed"
        cluster.master.wait_for(r"Removing worker|Removing executor .* because")
    assert all_results(out, undisturbed.bootstrap, "cluster") == undisturbed.results


def wait_for_results(process: subprocess.Popen[str], out: Path) -> None:
    """Wait for the first part."""
    deadline = time.monotonic() + _PATIENCE_S
    while not any((out / "waits").glob("part-*")):
        assert time.monotonic() < deadline, "there are no results"
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        pytest.fail("it ended without results")


def batches(out: Path) -> int:
    """The number of committed batches."""
    return len(list((out / "checkpoint").glob("*/commits/[0-9]*")))
