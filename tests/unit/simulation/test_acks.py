"""The semantics of acks 0, 1 and all: which produces get a response, when, and what can be lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.simulation.running import HEAD, Ran, run_scenario

LEADER_DIES = """
name = "leader-dies"
duration_ms = 3000

[cluster]
session_timeout_ms = 300

[topic]
partitions = 1

[followers]
fetch_interval_ms = 20

[[faults]]
kind = "kill"
broker = 0
at_ms = 1000
duration_ms = 1000
"""


def orders(acks: str, more: str = "") -> str:
    return f'[[producers]]\ngroup = "orders"\ncount = 3\nrate = 100.0\nacks = {acks}\n{more}'


def run_with(acks: str, trace: Path) -> Ran:
    return run_scenario(HEAD + orders(acks), trace)


def test_acks_0_gets_no_response(tmp_path: Path) -> None:
    ran = run_with("0", tmp_path / "trace")
    counts = ran.producers("orders")
    assert counts["unanswered"] == counts["records"] == counts["committed"] > 200
    assert counts["acknowledged"] == 0
    assert ran.operations("Produce", "producer")["operations"] == 0
    for row in ran.rows("sends"):
        assert (row["acks"], row["outcome"]) == (0, "unknown")
        assert row["answer_us"] is None and row["offset"] is None


def test_acks_1_responds_after_the_leaders_append(tmp_path: Path) -> None:
    ran = run_with("1", tmp_path / "trace")
    counts = ran.producers("orders")
    assert counts["acknowledged"] == counts["records"] > 200
    assert ran.operations("Produce", "producer")["operations"] == 0
    answered_us = [row["answer_us"] - row["send_us"] for row in ran.rows("sends")]
    # Two ways through the network, of 0.2 ms each at the median: no follower had time for it.
    assert sorted(answered_us)[len(answered_us) // 2] < 1_000


def test_acks_all_waits_for_both_followers(tmp_path: Path) -> None:
    ran = run_with('"all"', tmp_path / "trace")
    counts = ran.producers("orders")
    assert counts["acknowledged"] == counts["records"] > 200
    produce = ran.operations("Produce", "producer")
    assert produce["completed"] == produce["operations"] == counts["requests"]
    waits_us = [row["wait_us"] for row in ran.rows("operations") if row["purgatory"] == "Produce"]
    assert min(waits_us) > 0
    offsets = [row["offset"] for row in ran.rows("sends")]
    assert sorted(offsets) == list(range(counts["records"]))


def test_acks_all_with_one_replica_waits_for_no_follower(tmp_path: Path) -> None:
    alone = "replication_factor = 1\nmin_insync_replicas = 1\n"
    ran = run_scenario(HEAD + alone + orders('"all"'), tmp_path / "trace")
    produce = ran.operations("Produce", "producer")
    assert produce["immediate"] == produce["operations"] == ran.producers("orders")["records"]
    assert produce["wait_us"]["max"] == 0


@pytest.mark.parametrize(
    ("acks", "loses"), [("0", True), ("1", True), ('"all"', False)], ids=["0", "1", "all"]
)
def test_acks_all_alone_loses_nothing_when_the_leader_is_killed(acks: str, loses: bool) -> None:
    ran = run_scenario(LEADER_DIES + orders(acks))
    assert ran.summary["elections"] == 1
    counts = ran.producers("orders")
    assert (counts["lost"] > 0) is loses
    assert counts["committed"] == counts["records"] - counts["lost"] - counts["failed"]


def test_acks_all_below_min_insync_replicas_stores_nothing(
    tmp_path: Path,
) -> None:
    text = (
        HEAD
        + "min_insync_replicas = 3\n"
        + orders('"all"', "delivery_timeout_ms = 400\n")
        + "[cluster]\nsession_timeout_ms = 50\n"
        + '[[faults]]\nkind = "kill"\nbroker = 2\nat_ms = 300\n'
    )
    ran = run_scenario(text, tmp_path / "trace")
    counts = ran.producers("orders")
    assert counts["failed"] > 0
    refused = [row for row in ran.rows("sends") if row["error"] == "NOT_ENOUGH_REPLICAS"]
    assert refused and all(row["outcome"] == "fail" for row in refused)
    assert all(row["offset"] is None for row in refused)
    stored = {row["value_id"] for row in ran.rows("sends") if row["outcome"] == "ok"}
    assert counts["acknowledged"] == len(stored)
    assert counts["committed"] <= counts["records"] - counts["failed"] + counts["unknown"]
