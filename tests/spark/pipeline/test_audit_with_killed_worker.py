"""The audit of a trace with transactions, on a cluster that loses a worker in the middle."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.benchmarks.large_traces import write_large_trace
from tests.benchmarks.planted_blocks import Shape
from tests.spark.pipeline.cluster import Cluster, command_environment

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

ROWS, PLANTED = 60_000, 50


def test_audit_on_a_cluster_survives_a_killed_worker(cluster: Cluster, tmp_path: Path) -> None:
    trace, out = tmp_path / "trace", tmp_path / "out"
    write_large_trace(trace, Shape(rows=ROWS, planted=PLANTED))
    expected = json.loads((trace / "expected.json").read_text("utf-8"))
    before = len(cluster.master.lines)
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "purgatory", "audit", str(trace), "--out", str(out)),
            *("--engine", "spark", "--master", cluster.address, "--progress"),
        ],
        env=command_environment(["spark.sql.shuffle.partitions=3"]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if " tasks done" in line:  # the first of many
                break
        cluster.workers.pop().kill()
        _, errors = process.communicate(timeout=800)
    cluster.add_worker().wait_for("Successfully registered with master")
    assert process.returncode == 1, errors
    cluster.master.wait_for(r"Removing worker|Removing executor .* because", after=before)
    found: Counter[str] = Counter()
    for row in pq.read_table(out / "audit").to_pylist():
        found[row["anomaly"]] += row["count"]
    assert found == expected
