"""The commands on a real standalone cluster: the same results, also when a worker dies."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.analyze import write_results
from purgatory.pipeline.traces import find_traces
from tests.pipeline.cluster import Cluster, command_environment
from tests.pipeline.conftest import RandomOperations, WriteTrace

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(240)]

Row = dict[str, Any]
TABLES = ("waits", "occupancy", "runs")


@pytest.fixture(scope="module")
def trace(
    write_trace: WriteTrace,
    random_operations: RandomOperations,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A trace in more parts than a worker takes at once."""
    folder = tmp_path_factory.mktemp("cluster-trace") / "trace"
    return write_trace(folder, random_operations(7, 4000), duration_ms=1000, parts=12)


@pytest.fixture(scope="module")
def local_tables(
    spark: SparkSession, trace: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Row]]:
    """What the analysis of that trace gives on this machine alone."""
    folder = tmp_path_factory.mktemp("local-results")
    write_results(spark, find_traces([trace]), folder)
    return tables_in(folder)


def tables_in(folder: Path) -> dict[str, list[Row]]:
    """The rows of each table of an analysis, in their order."""
    return {table: pq.read_table(folder / table).to_pylist() for table in TABLES}


def start(arguments: Sequence[str], settings: Sequence[str] = ()) -> subprocess.Popen[str]:
    """A `purgatory` command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "purgatory", *arguments],
        env=command_environment(["spark.sql.shuffle.partitions=2", *settings]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def tasks_done(progress: str) -> int:
    """How many tasks the last line of progress in a text counts; 0 without any."""
    counts = re.findall(r"([\d,]+) of [\d,]+ tasks done", progress)
    return int(counts[-1].replace(",", "")) if counts else 0


def test_an_analysis_on_a_cluster_gives_what_it_gives_on_one_machine(
    cluster: Cluster, trace: Path, local_tables: dict[str, list[Row]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    before = [len(worker.lines) for worker in cluster.workers]
    with start(["analyze", str(trace), "--out", str(out), "--master", cluster.address]) as process:
        printed, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert said == ""
    assert f"Report: {out / 'report.html'}" in printed
    for worker, line in zip(cluster.workers, before, strict=True):
        worker.wait_for("Asked to launch executor .* for purgatory analyze", after=line)
    assert tables_in(out) == local_tables


def test_an_analysis_survives_the_death_of_a_worker(
    cluster: Cluster, trace: Path, local_tables: dict[str, list[Row]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    before = len(cluster.master.lines)
    # One core at a time, so that there is still much to do when the first task is done.
    settings = ["spark.default.parallelism=12", "spark.sql.files.maxPartitionBytes=1k"]
    arguments = ["analyze", str(trace), "--out", str(out), "--master", cluster.address]
    with start([*arguments, "--progress"], settings) as process:
        assert process.stderr is not None
        begun = next(filter(None, map(tasks_done, process.stderr)))
        cluster.workers.pop().kill()
        printed, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert "Report:" in printed
    assert tasks_done(said) > begun
    cluster.master.wait_for(r"Removing worker|Removing executor .* because", after=before)
    assert tables_in(out) == local_tables
    cluster.add_worker().wait_for("Successfully registered with master")
