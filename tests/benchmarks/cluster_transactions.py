"""The cost of transactions to a cluster, and the time of a commit.

    python -m tests.benchmarks.cluster_transactions

Cluster and producers are processes of their own, on loopback. A transaction has ten produces of one
message, into one partition, one after another; counted are the produces. Commits are timed from
EndTxn to its response, when all partitions have the markers, with one producer and no other client.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.benchmarks.cluster_producers import PRODUCES
from tests.benchmarks.cluster_speed import ROOT, Process, cluster
from tests.benchmarks.measurement import Figure, Size, run_alone, say

PRODUCERS = 100


def _produced(running: Process, producers: int, seconds: float) -> tuple[dict[str, Any], float]:
    """Run producers; return what they did, and the cluster's processor time for it."""
    command = [sys.executable, "-m", "tests.benchmarks.cluster_producers", running.servers]
    with subprocess.Popen(
        [*command, str(producers), str(seconds)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        before_s = running.cpu_s()
        result: dict[str, Any] = json.loads(process.stdout.readline())
        return result, max(running.cpu_s() - before_s, 0.01)


def measure(size: Size = Size.USUAL) -> list[Figure]:
    seconds = size.pick(0.3, 8)
    with cluster() as running:
        many, spent_s = _produced(running, size.pick(6, PRODUCERS), seconds)
    with cluster() as running:
        alone, _ = _produced(running, 1, seconds)
    waits_ms = alone["commits_ms"]
    say(f"{len(waits_ms)} commits, the slowest took {waits_ms[-1]:.1f} ms")
    what = f"produce requests, acks=all, in transactions of {PRODUCES}"
    rate = many["requests"] / many["seconds"]
    return [
        Figure(f"{what}, by the clock", rate, "per s"),
        Figure(
            f"{what}, per second of the cluster's core",
            many["requests"] / spent_s,
            "per s",
            12_000,
            "higher",
        ),
        Figure("commit of a transaction, p50", waits_ms[len(waits_ms) // 2], "ms"),
        Figure("commit of a transaction, p99", waits_ms[int(len(waits_ms) * 0.99)], "ms", 5),
    ]


if __name__ == "__main__":
    run_alone(measure)
