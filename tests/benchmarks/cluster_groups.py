"""The costs of groups to a cluster: heartbeats of many members, and a rebalance of many.

    python -m tests.benchmarks.cluster_groups

Cluster and members are processes of their own, on loopback. 10,000 members of groups of 20 of the
consumer protocol have a partition each; each sends a heartbeat every 5 s, the default, over 120
connections, one at a time. A classic group of 1,000 members, with a connection each, is stable
but for the last one: from its join until all have their assignments.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import median

from tests.benchmarks.cluster_members import MEMBERS_IN_GROUP
from tests.benchmarks.cluster_speed import ROOT, Process, cluster
from tests.benchmarks.measurement import Figure, Size, run_alone, say

INTERVAL_MS = 5_000


def _members(running: Process, *arguments: object) -> subprocess.Popen[str]:
    """Start the members; when all are ready it can be measured."""
    command = [sys.executable, "-m", "tests.benchmarks.cluster_members"]
    kind, *numbers = map(str, arguments)
    members = subprocess.Popen(
        [*command, kind, running.servers, *numbers], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert members.stdout is not None
    assert members.stdout.readline() == "ready\n"
    return members


def idle(count: int, seconds: float) -> list[Figure]:
    with (
        cluster(partitions=MEMBERS_IN_GROUP, quiet=True) as running,
        _members(running, "idle", count, seconds + 1, INTERVAL_MS) as members,
    ):
        assert members.stdout is not None
        time.sleep(0.5 * min(seconds, 1))
        before_s = running.cpu_s()
        time.sleep(seconds)
        share = (running.cpu_s() - before_s) / seconds
        rate = json.loads(members.stdout.read())["per_s"]
    say(f"{count:,} members gave {rate:,.0f} signs of life a second")
    what = f"{count:,} idle members of consumer groups (KIP-848)"
    return [Figure(what, 100 * share, "% of a core", 15)]


def rebalance(count: int, rounds: int) -> list[Figure]:
    took_s, spent_s = [], []
    for _ in range(rounds):
        with (
            cluster("--group-delay", "100ms", quiet=True) as running,
            _members(running, "rebalance", count) as members,
        ):
            assert members.stdout is not None
            before_s = running.cpu_s()
            took_s.append(json.loads(members.stdout.read())["seconds"])
            spent_s.append(running.cpu_s() - before_s)
    what = f"rebalance of {count:,} classic members"
    return [
        Figure(what, median(took_s), "s", 5),
        Figure(f"{what}, of the cluster's core", median(spent_s), "s"),
    ]


def measure(size: Size = Size.USUAL) -> list[Figure]:
    figures = idle(size.pick(20, 10_000), size.pick(0.3, 10))
    return figures + rebalance(size.pick(10, 1_000), size.pick(1, 3))


if __name__ == "__main__":
    run_alone(measure)
