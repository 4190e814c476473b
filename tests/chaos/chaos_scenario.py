"""A random scenario: some hours of a small cluster, with light traffic and many faults."""

from __future__ import annotations

from pathlib import Path
from random import Random

from purgatory.simulation.scenario import Scenario
from purgatory.simulation.scenario_file import LoadedScenario
from tests.chaos.random_faults import Table, random_fault

FAULTS_PER_HOUR = 180
LONGEST_FAULT_MS = 40_000
MS_PER_HOUR = 3_600_000


def chaos_scenario(seed: int, hours: float) -> LoadedScenario:
    """A scenario of one seed.

    Args:
        seed: of all random choices.
        hours: how long records arrive, in hours of virtual time.
    """
    random = Random(seed)
    brokers = random.choice([3, 3, 4, 5])
    replicas = random.choice([2, 3])
    duration_ms = round(hours * MS_PER_HOUR)
    document = {
        "name": "chaos",
        "seed": seed,
        "duration_ms": duration_ms,
        "drain_ms": 600_000,
        "cluster": {
            "brokers": brokers,
            "session_timeout_ms": random.choice([100, 2_000, 9_000]),
            "replica_lag_time_max_ms": random.choice([5_000, 30_000]),
        },
        "topic": {
            "partitions": random.choice([1, 2, 4]),
            "replication_factor": replicas,
            "min_insync_replicas": random.randint(1, replicas),
            "retention_bytes": 2**40,
        },
        "followers": {"fetch_max_wait_ms": 20_000},
        "network": {"delay_ms": random.choice([0.2, {"p50": 0.5, "p75": 2.0}])},
        "producers": [_producers(random, group) for group in _PRODUCERS],
        "consumers": [
            {
                "group": "readers",
                "count": random.randint(1, 3),
                "max_wait_ms": 20_000,
                "deduplicates": True,
            }
        ],
        "faults": (
            _damage(random, brokers, duration_ms)
            if random.random() < 0.25
            else _faults(random, brokers, duration_ms)
        ),
    }
    scenario = Scenario.model_validate(document)
    return LoadedScenario(scenario, Path(), f"chaos {seed}")


_PRODUCERS: dict[str, Table] = {
    "all": {"acks": "all"},
    "idempotent": {"acks": "all", "idempotence": True},
    "one-in-flight": {"acks": "all", "max_in_flight": 1},
    "one": {"acks": 1},
    "none": {"acks": 0},
}
"""The groups of producers; `promises` has the guarantees of each."""


def _producers(random: Random, group: str) -> Table:
    return {
        "group": group,
        "rate": 0.08,
        "batch_size": random.choice([1, 10]),
        "linger_ms": random.choice([0, 50]),
        "timeout_ms": random.choice([1_000, 10_000]),
        "request_timeout_ms": random.choice([2_000, 15_000]),
        "retry_backoff_ms": 500,
        "delivery_timeout_ms": 10**9,
        "keys": 20,
        **_PRODUCERS[group],
    }


def _faults(random: Random, brokers: int, duration_ms: int) -> list[Table]:
    """Faults that mostly overlap, since a single one does no harm."""
    count = max(1, round(FAULTS_PER_HOUR * duration_ms / MS_PER_HOUR))
    faults: list[Table] = []
    while len(faults) < count:
        at_ms = random.randrange(duration_ms)
        for _ in range(random.choice([1, 2, 2, 3])):
            fault = random_fault(random, brokers, at_ms, longest_ms=LONGEST_FAULT_MS)
            faults.append(fault)
            at_ms = min(duration_ms - 1, at_ms + random.randint(0, 10_000))
    return faults


def _damage(random: Random, brokers: int, duration_ms: int) -> list[Table]:
    """Disks that lose the ends of logs, one broker at a time: the others stay intact."""
    return [
        {
            "kind": "kill",
            "broker": random.randrange(brokers),
            "at_ms": at_ms,
            "lost_records": random.choice([0, 1, 10, 1_000]),
            "duration_ms": random.randint(10, 30_000),
        }
        for at_ms in range(30_000, duration_ms, 120_000)
    ]
