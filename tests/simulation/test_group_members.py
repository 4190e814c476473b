"""Consumers that join a group: who reads what, what they commit, and what a rebalance costs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from purgatory.kafka import TopicPartition
from purgatory.simulation import ScenarioError, Simulation, load_scenario, parse_scenario
from purgatory.simulation.invariants import GroupWatch, Invariants, InvariantViolation
from purgatory.simulation.runtime import RealTimeRuntime
from tests.simulation.running import Ran, run_scenario

HEAD = """
name = "group"
duration_ms = 20_000

[topic]
partitions = 6

[[producers]]
group = "orders"
rate = 50.0
spacing = "even"
keys = 1_000
idempotence = true
"""


def members(more: str = "", count: int = 3, name: str = "readers") -> str:
    return f"""
[[consumers]]
group = "{name}"
count = {count}
membership = "dynamic"
session_timeout_ms = 3_000
heartbeat_interval_ms = 500
commit_interval_ms = 500
{more}
"""


def group_of(ran: Ran, name: str = "readers") -> dict[str, int]:
    return next(row for row in ran.summary["consumers"] if row["group"] == name)


def test_the_partitions_are_shared_out_and_each_record_is_read_once(tmp_path: Path) -> None:
    ran = run_scenario(HEAD + members(), tmp_path / "trace")
    counts = group_of(ran)
    assert (counts["rebalances"], counts["reread"]) == (1, 0)
    assert counts["records"] == ran.producers("orders")["committed"]
    readers: dict[int, set[int]] = {}
    for row in ran.rows("reads"):
        readers.setdefault(row["partition"], set()).add(row["consumer"])
    assert sorted(readers) == list(range(6))
    assert all(len(who) == 1 for who in readers.values())
    assert Counter(min(who) for who in readers.values()) == {0: 2, 1: 2, 2: 2}


def test_members_wait_for_each_other_and_for_signs_of_life_in_purgatories(tmp_path: Path) -> None:
    ran = run_scenario(HEAD + members(), tmp_path / "trace")
    # The initial delay, and once more, as others came in it.
    assert ran.operations("Rebalance", "member")["expired"] == 2
    assert ran.operations("Sync", "member")["operations"] == 1
    beats = ran.operations("Heartbeat", "member")
    assert beats["completed"] > 3 * 30 and not beats["expired"]
    waited = [row for row in ran.rows("operations") if row["purgatory"] == "Rebalance"]
    assert [row["outcome"] for row in waited] == ["expired", "expired"]
    assert all(3_000_000 <= row["wait_us"] < 3_001_000 for row in waited)
    assert "readers" in waited[0]["watch_keys"][0]


def test_a_member_that_comes_later_gets_its_share_and_nothing_is_read_twice() -> None:
    late = "stay_ms = 8_000\naway_ms = 2_000"
    counts = group_of(run_scenario(HEAD + members(late)))
    assert counts["rebalances"] > 2
    assert counts["reread"] == 0  # who leaves commits first


def test_what_was_not_committed_is_read_again_when_a_member_works_for_too_long() -> None:
    slow = "max_poll_interval_ms = 1_000\npoll_interval_ms = { p50 = 100, p75 = 400 }"
    counts = group_of(run_scenario(HEAD + members(slow)))
    assert counts["expelled"] > 0 and counts["rebalances"] > counts["expelled"] / 3
    assert counts["reread"] > 0
    assert counts["records"] > counts["reread"]


def test_a_static_member_that_comes_back_in_time_causes_no_rebalance() -> None:
    flapping = "stay_ms = { p50 = 8_000, p75 = 9_000 }\naway_ms = 500"
    dynamic = group_of(run_scenario(HEAD + members(flapping)))
    static = group_of(run_scenario(HEAD + members(flapping).replace("dynamic", "static")))
    assert static["rebalances"] == 1 < dynamic["rebalances"]


@pytest.mark.parametrize("kind", ["kill", "pause"])
@pytest.mark.parametrize("broker", [0, 1, 2])
def test_a_group_outlives_its_coordinator(kind: str, broker: int, tmp_path: Path) -> None:
    fault = f'[[faults]]\nkind = "{kind}"\nbroker = {broker}\nat_ms = 8_000\nduration_ms = 6_000\n'
    ran = run_scenario(HEAD + members() + fault, tmp_path / "trace")
    assert ran.summary["drained"]
    counts = group_of(ran)
    read = {(row["partition"], row["offset"]) for row in ran.rows("reads")}
    assert len(read) == ran.producers("orders")["committed"]
    assert counts["reread"] == counts["records"] - len(read)


def test_one_of_two_groups_goes_on_while_the_other_storms() -> None:
    run = Simulation(load_scenario("rebalance-storm"))
    ran = Ran(run, run.run(), [])
    hasty, patient = group_of(ran, "hasty"), group_of(ran, "patient")
    assert patient["rebalances"] == 1 and not patient["reread"]
    assert hasty["rebalances"] > 10 and hasty["expelled"] > 10 and hasty["reread"] > 100


def test_groups_are_refused_in_real_time() -> None:
    loaded = parse_scenario(HEAD + members(), "test.toml", Path())
    with pytest.raises(ScenarioError, match=r"^test\.toml: .* virtual time only"):
        Simulation(loaded, make_runtime=RealTimeRuntime)


# What the watch finds.

PLACE = TopicPartition("events", 0)


def watch() -> tuple[GroupWatch, Invariants]:
    invariants = Invariants(1, lambda: 0)
    return GroupWatch("readers", invariants), invariants


def test_two_owners_of_one_partition_are_found() -> None:
    watched, invariants = watch()
    watched.record_assignment("one", (0, 1, 0, 1), [PLACE])
    watched.record_assignment("other", (0, 1, 0, 2), [PLACE])  # another generation
    watched.record_assignment("other", (0, 1, 0, 2), [PLACE])  # a static member came back
    assert invariants.violation is None
    watched.record_assignment("one", (0, 1, 0, 2), [PLACE])
    assert "the same partition" in str(invariants.violation)


def test_a_lost_commit_is_found() -> None:
    watched, invariants = watch()
    asked_before = watched.acknowledged_commits()
    first = watched.record_commit({PLACE: 5})
    watched.record_commit_response(first)
    watched.check_fetched_offsets(
        "one", {}, [PLACE], asked_before
    )  # it was answered before the commit counted
    watched.record_commit({PLACE: 9})  # its answer was lost: it may count, or not
    for offset in (5, 9):
        watched.check_fetched_offsets(
            "one", {PLACE: offset}, [PLACE], watched.acknowledged_commits()
        )
    assert invariants.violation is None
    watched.check_fetched_offsets("one", {}, [PLACE], watched.acknowledged_commits())
    with pytest.raises(InvariantViolation, match="commit of offsets is lost"):
        invariants.raise_if_violated()
