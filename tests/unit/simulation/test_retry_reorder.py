"""Reordering and duplicates come from retries with several requests in flight; and what cures them.

A broker dies, so that too few are in sync and produces are refused for a while, and some requests
get lost. (What the shipped scenario shows is in `test_shipped_scenarios`.)
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.unit.simulation.running import Ran, run_scenario

REFUSALS = """
name = "refusals"
duration_ms = 3000

[cluster]
session_timeout_ms = 200
replica_lag_time_max_ms = 500

[topic]
partitions = 1
min_insync_replicas = 3

[[producers]]
group = "changes"
count = 2
rate = 300.0
timeout_ms = 300
keys = 20
{producers}

[[faults]]
kind = "kill"
broker = 2
at_ms = 1000
duration_ms = 600
[[faults]]
kind = "lose_requests"
api = "produce"
at_ms = 500
duration_ms = 2000
share = 0.02
count = 20
"""
NOTHING = "max_in_flight = 5\nrequest_timeout_ms = 400"
ONE_IN_FLIGHT = "max_in_flight = 1\nbatch_size = 50\nrequest_timeout_ms = 400"
IDEMPOTENCE = "max_in_flight = 5\nidempotence = true\nrequest_timeout_ms = 400"


def first_offsets_out_of_order(ran: Ran) -> int:
    """Count, from the trace alone, values read whose sequence is below one read before it."""
    assert ran.trace is not None
    seen: set[int] = set()
    highest: dict[tuple[int, int], int] = defaultdict(lambda: -1)
    behind = 0
    for row in sorted(ran.rows("reads"), key=lambda row: (row["partition"], row["offset"])):
        if row["value_id"] in seen:
            continue
        seen.add(row["value_id"])
        producer, sequence = divmod(row["value_id"], 2**40)
        place = (producer, row["partition"])
        behind += sequence < highest[place]
        highest[place] = max(highest[place], sequence)
    return behind


@pytest.mark.parametrize("seed", [1, 2])
def test_five_in_flight_without_idempotence_reorder_and_duplicate(
    seed: int, tmp_path: Path
) -> None:
    readers = '[[consumers]]\ngroup = "appliers"\n'
    text = REFUSALS.format(producers=NOTHING) + readers
    ran = run_scenario(text, tmp_path / "trace", seed=seed)
    counts = ran.producers("changes")
    assert counts["reorderings"] > 0
    assert counts["duplicates"] > 0
    assert counts["lost"] == 0
    # The trace tells the same story as the simulation's own books.
    assert first_offsets_out_of_order(ran) == counts["reorderings"]
    values = [row["value_id"] for row in ran.rows("reads")]
    assert len(values) - len(set(values)) == counts["duplicates"]


@pytest.mark.parametrize("seed", [1, 2])
def test_producer_with_one_in_flight_keeps_the_order(seed: int) -> None:
    counts = run_scenario(REFUSALS.format(producers=ONE_IN_FLIGHT), seed=seed).producers("changes")
    assert counts["retries"] > 0
    assert counts["reorderings"] == 0
    assert counts["acknowledged"] == counts["records"]


@pytest.mark.parametrize("seed", [1, 2])
def test_idempotence_keeps_the_order_and_stores_each_record_once(seed: int) -> None:
    counts = run_scenario(REFUSALS.format(producers=IDEMPOTENCE), seed=seed).producers("changes")
    assert counts["retries"] > 0
    assert (counts["reorderings"], counts["duplicates"], counts["lost"]) == (0, 0, 0)
    assert counts["acknowledged"] == counts["records"] == counts["committed"]


# A follower stalls for longer than a produce may wait; what is sent again then may get lost.
RESENDING = """
name = "resending"
duration_ms = 1500

[cluster]
replica_lag_time_max_ms = 9000

[topic]
partitions = 2

[[producers]]
group = "changes"
count = 12
rate = 100.0
idempotence = true
timeout_ms = 100
request_timeout_ms = 600
retry_backoff_ms = 50

[[faults]]
kind = "stall_follower"
broker = 2
at_ms = 300
duration_ms = 160

[[faults]]
kind = "lose_requests"
api = "produce"
at_ms = 400
duration_ms = 300
share = 0.3
count = 20
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_broker_recognizes_a_retry_that_was_lost_again(seed: int) -> None:
    ran = run_scenario(RESENDING, seed=seed)
    assert ran.operations("Produce", "producer")["expired"] > 0
    counts = ran.producers("changes")
    assert (counts["reorderings"], counts["duplicates"], counts["lost"]) == (0, 0, 0)
    assert counts["acknowledged"] == counts["records"]
