"""Guarantees hold under all faults: random clusters with random faults, one per seed.

The run itself checks its invariants; these tests check the counts of each producer group, too.
"""

from __future__ import annotations

import json
from random import Random

import pytest

from tests.chaos.random_faults import random_fault
from tests.unit.simulation.running import run_scenario

GROUPS = {
    "all": 'acks = "all"',
    "idempotent": 'acks = "all"\nidempotence = true',
    "one-in-flight": 'acks = "all"\nmax_in_flight = 1',
    "one": "acks = 1",
    "none": "acks = 0",
}


def random_scenario(random: Random) -> str:
    brokers = random.choice([3, 4])
    text = f"""
name = "random"
duration_ms = 1500
drain_ms = 60_000
[cluster]
brokers = {brokers}
session_timeout_ms = {random.choice([50, 200, 600])}
replica_lag_time_max_ms = {random.choice([200, 600, 2000])}
[topic]
partitions = {random.choice([1, 3])}
replication_factor = {random.choice([2, 3])}
min_insync_replicas = {random.choice([1, 2])}
[[consumers]]
group = "readers"
"""
    for group, settings in GROUPS.items():
        text += f"""
[[producers]]
group = "{group}"
count = 2
rate = {random.choice([20.0, 50.0])}
batch_size = {random.choice([1, 10])}
timeout_ms = {random.choice([100, 400])}
request_timeout_ms = {random.choice([150, 600])}
retry_backoff_ms = {random.choice([10, 100])}
{settings}
"""
    for _ in range(random.randint(2, 6)):
        fault = random_fault(random, brokers, at_ms=random.randint(100, 1400))
        text += "[[faults]]\n"
        text += "".join(f"{key} = {json.dumps(value)}\n" for key, value in fault.items())
    return text


@pytest.mark.parametrize("seed", range(12))
def test_guarantees_hold_under_random_faults(seed: int) -> None:
    ran = run_scenario(random_scenario(Random(seed)))
    assert ran.summary["drained"]
    for group in ("all", "idempotent", "one-in-flight"):
        counts = ran.producers(group)
        assert counts["lost"] == 0, group
        assert counts["acknowledged"] == counts["records"], group
    assert ran.producers("one-in-flight")["reorderings"] == 0
    idempotent = ran.producers("idempotent")
    assert (idempotent["duplicates"], idempotent["reorderings"]) == (0, 0)
