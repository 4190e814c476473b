"""The cost of recording a test's cluster for `kafka_cluster.audit()`.

    python -m tests.benchmarks.recorded_cost

A flood of different messages with acks=1, by librdkafka in a process of its own, into a cluster as
the pytest fixture has it: recorded and not, in turns. The figures are the cluster's processor time
for each message, and the flood's rate by the clock.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from purgatory.cluster import ClusterConfig, ThreadedCluster, TopicSpec
from tests.benchmarks.cluster_clients import FLOODED_TOPIC
from tests.benchmarks.cluster_speed import client
from tests.benchmarks.measurement import Figure, Size, in_turns, run_alone

_WARM_UP = 500
_ACKS = 1


def measure(size: Size = Size.USUAL) -> list[Figure]:
    """Return the costs of both, a message in each request and as many as come together."""
    figures = []
    for at_once, messages in ((1, size.pick(100, 20_000)), (10_000, size.pick(100, 100_000))):
        found = in_turns(
            {
                "recorded": partial(_flood, messages, at_once, recorded=True),
                "not recorded": partial(_flood, messages, at_once, recorded=False),
            },
            size.pick(1, 5, 11),
        )
        what = f"{messages:,} messages, acks=1, up to {at_once:,} in a request"
        for name, one in found.items():
            figures += [
                Figure(f"{what}, {name}: the cluster's processor, each", one["us"], "us"),
                Figure(f"{what}, {name}: by the clock", one["per_s"], "per s"),
            ]
        ratio = found["recorded"]["us"] / found["not recorded"]["us"]
        target = 2.0 if at_once == 1 else None
        figures.append(Figure(f"{what}: recorded costs the cluster", ratio, "x", target))
    return figures


def _flood(messages: int, at_once: int, *, recorded: bool) -> Mapping[str, float]:
    config = ClusterConfig(topics=[TopicSpec(FLOODED_TOPIC, 3)])
    with ThreadedCluster(config, recorded=recorded) as cluster:
        client("flood", cluster.bootstrap_servers, _WARM_UP, _ACKS, at_once)
        # The client's process is not in it, and in this one nothing else happens.
        before_s = time.process_time()
        told = client("flood", cluster.bootstrap_servers, messages, _ACKS, at_once)
        spent_s = time.process_time() - before_s
    return {"us": spent_s / messages * 1e6, "per_s": told["per_s"]}


if __name__ == "__main__":
    run_alone(measure)
