"""A scenario by chance: some hours of a small cluster, with light traffic and many faults."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from purgatory.simulation.scenario import Scenario
from purgatory.simulation.scenario_file import LoadedScenario
from tests.chaos.random_faults import Table, random_fault

FAULTS_PER_HOUR = 180
LONGEST_FAULT_MS = 40_000
MS_PER_HOUR = 3_600_000


def chaos_scenario(seed: int, hours: float) -> LoadedScenario:
    """A scenario of one seed.

    Args:
        seed: from which all chance comes.
        hours: how long records arrive, in hours of virtual time.
    """
    random = Random(seed)
    brokers = random.choice([3, 3, 4, 5])
    replicas = random.choice([2, 3])
    duration_ms = round(hours * MS_PER_HOUR)
    document: dict[str, Any] = {
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
        "producers": [_producers(random, group) for group in _ALONE],
        "consumers": [_consumers(random, group) for group in ("none", "dynamic", "static")],
        "faults": (
            _damage(random, brokers, duration_ms)
            if random.random() < 0.25
            else _faults(random, brokers, duration_ms)
        ),
    }
    if random.random() < 0.5:
        _add_transactions(random, document)
    scenario = Scenario.model_validate(document)
    return LoadedScenario(scenario, Path(), f"chaos {seed}")


_PRODUCERS: dict[str, Table] = {
    "all": {"acks": "all"},
    "idempotent": {"acks": "all", "idempotence": True},
    "one-in-flight": {"acks": "all", "max_in_flight": 1},
    "one": {"acks": 1},
    "none": {"acks": 0},
    "transactional": {"acks": "all", "idempotence": True},
    "transforming": {"acks": "all", "idempotence": True, "batch_size": 20},
}
"""The groups of producers, and what they promise: see `promises`."""

_ALONE = ("all", "idempotent", "one-in-flight", "one", "none")
"""Those that send without transactions."""


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


def _add_transactions(random: Random, document: dict[str, Any]) -> None:
    """Producers in transactions, others that transform what these and all send, and zombies."""
    membership = random.choice(["none", "dynamic", "static"])
    for group, more in (("transactional", {}), ("transforming", _TRANSFORMS)):
        producers = _producers(random, group)
        transactions: Table = {
            "requests": random.choice([1, 3, 10]),
            **random.choice(_TIMES),
            "aborted": 0.2,
            "zombies": 0.1,
            "zombie_ms": {"p50": 5_000.0, "p75": 8_000.0},
            **random.choice([{}, {"successor_ms": 2_000}]),
            **more,
        }
        producers["transactions"] = transactions
        if more:
            del producers["rate"]
            if membership != "none":  # the other members are the successors
                transactions.pop("successor_ms", None)
                producers["count"] = _MEMBERS
        document["producers"].append(producers)
    for group, topic in (("transformed", "events"), ("committed", "results")):
        is_shared = group == _TRANSFORMS["reads"] and membership != "none"
        members = _consumers(random, membership) if is_shared else {"max_wait_ms": 20_000}
        if is_shared:
            members |= {"count": _MEMBERS, "deduplicates": False}
        document["consumers"].append(
            {**members, "group": group, "topic": topic, "isolation": "read_committed"}
        )
    for fault in document["faults"]:
        if "api" in fault and random.random() < 0.5:
            fault["api"] = random.choice(_TRANSACTION_APIS)


_TIMES = (
    {"interval_ms": 1_000, "timeout_ms": 5_000},
    {"interval_ms": 1_000, "timeout_ms": 60_000},
    {"interval_ms": 30_000, "timeout_ms": 60_000},
)
_MEMBERS = 2
"""Of a group whose records are transformed by as many producers, if it has members."""
_TRANSFORMS = {"reads": "transformed", "writes": "results"}


def _consumers(random: Random, membership: str) -> Table:
    table: Table = {
        "group": f"{membership}-readers",
        "count": random.randint(1, 3),
        "max_wait_ms": 20_000,
        "membership": membership,
        "deduplicates": True,
    }
    if membership != "none":
        table |= {
            "session_timeout_ms": random.choice([10_000, 45_000]),
            "heartbeat_interval_ms": random.choice([3_000, 9_000]),
            "commit_interval_ms": random.choice([5_000, 20_000]),
            "max_poll_interval_ms": random.choice([20_000, 60_000]),
            "poll_interval_ms": random.choice([0.0, {"p50": 20.0, "p75": 80.0}]),
        }
    if random.random() < 0.5 and membership != "none":
        table |= {"stay_ms": {"p50": 300_000.0, "p75": 600_000.0}, "away_ms": 5_000.0}
    return table


def _faults(random: Random, brokers: int, duration_ms: int) -> list[Table]:
    """Most faults begin while another one lasts: it takes two to do harm."""
    count = max(1, round(FAULTS_PER_HOUR * duration_ms / MS_PER_HOUR))
    faults: list[Table] = []
    while len(faults) < count:
        at_ms = random.randrange(duration_ms)
        for _ in range(random.choice([1, 2, 2, 3])):
            fault = random_fault(random, brokers, at_ms, longest_ms=LONGEST_FAULT_MS)
            faults.append(fault)
            at_ms = min(duration_ms - 1, at_ms + random.randint(0, 10_000))
    # Requests of groups have faults, too.
    for fault in faults:
        if "api" in fault:
            fault["api"] = random.choice(_APIS)
    return faults


def _damage(random: Random, brokers: int, duration_ms: int) -> list[Table]:
    """Disks that lose the ends of logs: of one broker at a time, so that others are intact."""
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


_APIS = ("produce", "fetch", "join_group", "sync_group", "heartbeat", "offset_commit")
_TRANSACTION_APIS = (
    "init_producer_id",
    "add_partitions_to_txn",
    "add_offsets_to_txn",
    "txn_offset_commit",
    "end_txn",
)
