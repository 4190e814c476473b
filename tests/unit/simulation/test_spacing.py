"""Records arrive as their spacing says, from the first one on."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from tests.unit.simulation.running import Ran, run_scenario

SECONDS, PRODUCERS, RATE = 60, 2_000, 0.05
EXPECTED_PER_WINDOW = PRODUCERS * RATE * 5
"""In windows of five seconds, of which the first four together are one mean gap."""


def arrivals_of(folder: Path, spacing: str) -> tuple[Ran, list[tuple[int, int]]]:
    """A run of many slow producers, and its arrivals: producer and time in microseconds."""
    text = f"""
        name = "arrivals"
        duration_ms = {SECONDS * 1000}
        [cluster]
        brokers = 1
        [topic]
        partitions = 1
        replication_factor = 1
        min_insync_replicas = 1
        [[producers]]
        group = "orders"
        count = {PRODUCERS}
        rate = {RATE}
        acks = 0
        spacing = "{spacing}"
    """
    ran = run_scenario(text, folder / "trace")
    return ran, [(row["producer"], row["created_us"]) for row in ran.rows("sends")]


def per_window(arrivals: list[tuple[int, int]]) -> list[int]:
    counts = Counter(created_us // 5_000_000 for _, created_us in arrivals)
    return [counts[number] for number in range(SECONDS // 5)]


def kolmogorov_distance(values: list[float], mean: float) -> float:
    """The greatest distance of the values below `SECONDS` from the exponential distribution."""
    distances = []
    for number, value in enumerate(sorted(values)):
        if value < SECONDS:
            share = 1 - math.exp(-value / mean)
            low, high = number / len(values), (number + 1) / len(values)
            distances.append(max(abs(share - low), abs(share - high)))
    return max(distances)


def test_poisson_arrivals_are_poisson_from_the_first_one_on(tmp_path: Path) -> None:
    _, arrivals = arrivals_of(tmp_path, "poisson")
    counts = per_window(arrivals)
    # Chi square with 12 degrees of freedom: above 32.9 in one of 1,000.
    chi_square = sum((count - EXPECTED_PER_WINDOW) ** 2 / EXPECTED_PER_WINDOW for count in counts)
    assert chi_square < 32.9, counts
    # Each producer's first gap is exponential, too. One that never came counts as the longest.
    first_s = dict.fromkeys(range(PRODUCERS), float(SECONDS))
    for producer, created_us in sorted(arrivals, key=lambda arrival: -arrival[1]):
        first_s[producer] = created_us / 1e6
    # Kolmogorov and Smirnov: above 1.95 / sqrt(n) in one of 1,000. A uniform first gap has 0.37.
    assert kolmogorov_distance(list(first_s.values()), 1 / RATE) < 1.95 / math.sqrt(PRODUCERS)


def test_even_arrivals_keep_their_rate_from_the_first_gap_on(tmp_path: Path) -> None:
    ran, arrivals = arrivals_of(tmp_path, "even")
    assert ran.producers("orders")["records"] == PRODUCERS * RATE * SECONDS
    times: dict[int, list[int]] = {}
    for producer, created_us in sorted(arrivals, key=lambda arrival: arrival[1]):
        times.setdefault(producer, []).append(created_us)
    assert all(len(own) == 3 for own in times.values())
    assert all(abs(own[2] - own[1] - 1e6 / RATE) <= 1 for own in times.values())
    # Producers don't send in step: their first arrivals spread over the whole of a gap.
    counts = per_window(arrivals)
    assert counts[:4] == counts[4:8] == counts[8:]
    assert all(
        abs(count - EXPECTED_PER_WINDOW) < 5 * math.sqrt(EXPECTED_PER_WINDOW) for count in counts
    )
