"""How the scenarios of a sweep are dealt out over tasks, so that no core waits for a straggler.

The most expensive come first, and each batch takes a share of what is left: large batches while
there is much to do, small ones at the end. So the cores are done within about one small batch of
each other, though what a scenario costs is only estimated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_SHARES_PER_CORE = 8
_SMALLEST_PER_CORE = 200


def batches(costs: Sequence[float], cores: int) -> list[list[int]]:
    """Deal out scenarios.

    Args:
        costs: what each scenario is expected to cost, in any unit, at least 0.
        cores: how many tasks run at the same time.

    Returns:
        Lists of places in `costs`; each place is in exactly one of them. O(n log n).
    """
    order = sorted(range(len(costs)), key=lambda place: -costs[place])
    left = sum(costs)
    smallest = left / (_SMALLEST_PER_CORE * cores)
    dealt: list[list[int]] = []
    batch: list[int] = []
    share = held = 0.0
    for place in order:
        if not batch:
            share, held = max(left / (_SHARES_PER_CORE * cores), smallest), 0.0
        elif held + costs[place] > share:
            dealt.append(batch)
            left -= held
            batch, held = [], 0.0
            share = max(left / (_SHARES_PER_CORE * cores), smallest)
        batch.append(place)
        held += costs[place]
    if batch:
        dealt.append(batch)
    return dealt


def expected_cost(document: Mapping[str, Any]) -> float:
    """About how many requests a scenario makes, which is what its computing goes by.

    Args:
        document: the scenario with all its keys.
    """
    duration_s = (document["duration_ms"] or 60_000) / 1000
    replicas = document["topic"]["replication_factor"]
    produces = sum(_produces(group, duration_s) for group in document["producers"])
    brokers = document["cluster"]["brokers"]
    followers = _fetches(brokers * (replicas - 1), document["followers"]["fetch_max_wait_ms"])
    consumers = sum(
        _fetches(group["count"], max(1, group["max_wait_ms"])) for group in document["consumers"]
    )
    readers = replicas - 1 + len(document["consumers"])
    return float(10 + produces * (1 + readers) + (followers + consumers) * duration_s)


def _produces(group: Mapping[str, Any], duration_s: float) -> float:
    """How many produces a group sends: no more than records, and at least what fills batches."""
    rate = (group["rate"] or 10.0) * group["count"]
    full = rate / group["batch_size"]
    most_by_linger = group["count"] * 1000 / group["linger_ms"] if group["linger_ms"] else rate
    return float(duration_s * min(rate, max(full, min(rate, most_by_linger))))


def _fetches(fetchers: int, max_wait_ms: float) -> float:
    """How many fetches a second some fetchers make that find nothing."""
    return float(fetchers * 1000 / max(1.0, max_wait_ms))
