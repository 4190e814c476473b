"""A client's latency, from send to response: the purgatory's wait is only a part of it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from purgatory.simulation.summary_tables import print_report
from tests.unit.simulation.running import HEAD, Ran, run_scenario

NEVER_FOLLOWED = (
    HEAD
    + """
    [network]
    delay_ms = 1
    [[producers]]
    group = "orders"
    rate = 100.0
    spacing = "even"
    timeout_ms = 50
    retries = 0
    [[faults]]
    kind = "stall_follower"
    broker = 1
    at_ms = 0
    duration_ms = 60_000
    """
)
"""Each produce waits its whole 50 ms; after a back-off, five are sent at once on a connection."""

LOSSES = (
    HEAD
    + """
    [[producers]]
    group = "orders"
    count = 3
    rate = 100.0
    batch_size = 3
    linger_ms = 20
    request_timeout_ms = 60
    timeout_ms = 40
    [[faults]]
    kind = "lose_responses"
    api = "produce"
    cut = false
    at_ms = 300
    count = 5
    [[faults]]
    kind = "pause"
    broker = 0
    at_ms = 600
    duration_ms = 30
    """
)


def latencies(ran: Ran) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = ran.producers("orders")["latency_us"]
    return found


def test_attempt_waits_for_all_requests_before_it_on_its_connection() -> None:
    ran = run_scenario(NEVER_FOLLOWED)
    times = latencies(ran)
    # A millisecond there and one back; two at the median and four at most before it, which wait
    # 50 ms each; and its own wait.
    assert (times["attempt"]["p50"], times["attempt"]["max"]) == (152_000, 252_000)
    assert (times["queue"]["p50"], times["queue"]["max"]) == (100_000, 200_000)
    assert times["wait"]["p50"] == 50_000
    assert times["network"]["p50"] == times["network"]["max"] == 2_000
    assert ran.operations("Produce", "producer")["wait_us"]["p50"] == times["wait"]["p50"]
    assert times["record"]["count"] == times["broken"]["count"] == 0


@pytest.mark.parametrize("text", [NEVER_FOLLOWED, LOSSES])
def test_the_spans_are_those_of_the_trace(tmp_path: Path, text: str) -> None:
    ran = run_scenario(text, tmp_path / "trace")
    spans: dict[str, list[int]] = defaultdict(list)
    for row in ran.rows("sends"):
        if row["answer_us"] is None:
            continue
        attempt_us = row["answer_us"] - row["send_us"]
        spans["attempt"].append(attempt_us)
        if row["settled_us"] is None:
            assert row["error"] == "DISCONNECTED"
            spans["broken"].append(attempt_us)
            continue
        assert row["created_us"] <= row["send_us"] <= row["arrived_us"] <= row["served_us"]
        assert row["served_us"] <= row["settled_us"] <= row["answer_us"]
        spans["queue"].append(row["served_us"] - row["arrived_us"])
        spans["wait"].append(row["settled_us"] - row["served_us"])
        spans["network"].append(attempt_us - spans["queue"][-1] - spans["wait"][-1])
        if row["outcome"] == "ok":
            spans["record"].append(row["answer_us"] - row["created_us"])
    assert len(spans["record"]) == ran.producers("orders")["acknowledged"]
    for span, shown in latencies(ran).items():
        found = spans[span]
        assert shown["count"] == len(found)
        assert shown["max"] == max(found, default=None)
        assert shown["mean"] == (sum(found) / len(found) if found else None)


def test_a_connection_serves_one_request_at_a_time(tmp_path: Path) -> None:
    ran = run_scenario(LOSSES, tmp_path / "trace")
    served = sorted(
        {
            (row["producer"], row["served_us"], row["settled_us"])
            for row in ran.rows("sends")
            if row["settled_us"] is not None
        }
    )
    for before, after in itertools.pairwise(served):
        assert before[0] != after[0] or before[2] <= after[1]


def test_latency_table_has_clients_times_beside_waits_in_purgatories() -> None:
    console = Console(record=True, width=120)
    with console.capture() as shown:
        print_report(run_scenario(LOSSES).summary, console)
    table = shown.get().split("Latencies of producers (ms)")[1]
    words = [line.split("│")[2].strip() for line in table.splitlines() if line.startswith("│")]
    assert words[:6] == [
        "record: arrival to acknowledged",
        "attempt: send to answer or break",
        "network, there and back",
        "queue of its connection",
        "wait at the broker",
        "connection broke, no answer",
    ]
