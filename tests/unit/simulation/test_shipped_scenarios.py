"""The shipped scenarios run, show what they promise, and their tables are what the trace says."""

from __future__ import annotations

import json
from collections import Counter, defaultdict

import pyarrow.compute as pc
import pytest

from purgatory.simulation import load_scenario, shipped_scenarios
from purgatory.simulation.trace import OUTCOMES
from purgatory.trace.rounded_waits import MAX_RELATIVE_ERROR
from purgatory.trace.trace_schema import SCHEMA_VERSION
from tests.unit.simulation.shipped_runs import ShippedRun

NAMES = ("leader-failover", "retry-reorder", "slow-follower", "steady")
EACH = [
    pytest.param(name, marks=pytest.mark.slow) if name == "retry-reorder" else name
    for name in NAMES
]
"""The scenarios, of which one takes three seconds."""
EXACT_BELOW_US = 10_000


def test_each_shipped_scenario_has_a_description() -> None:
    assert tuple(shipped_scenarios()) == NAMES
    for name, description in shipped_scenarios().items():
        assert description.endswith("."), name
        assert load_scenario(name).scenario.name == name


@pytest.mark.parametrize("name", EACH)
def test_shipped_scenario_completes_all_records(name: str, shipped: ShippedRun) -> None:
    summary = shipped(name).summary
    assert summary["drained"]
    for row in summary["producers"]:
        assert row["unsettled"] == 0
        assert row["records"] == row["acknowledged"] + row["unanswered"] + row["failed"]


@pytest.mark.parametrize("name", EACH)
def test_table_of_purgatories_matches_the_trace(name: str, shipped: ShippedRun) -> None:
    run = shipped(name)
    operations = run.table("operations")
    columns = [operations[column].to_pylist() for column in ("purgatory", "kind", "outcome")]
    counted = Counter(zip(*columns, strict=True))
    told = {
        (row["purgatory"], row["kind"], outcome): row[outcome]
        for row in run.summary["purgatories"]
        for outcome in OUTCOMES
        if row[outcome]
    }
    assert told == counted
    by_broker = Counter(
        zip(operations["broker"].to_pylist(), operations["purgatory"].to_pylist(), strict=True)
    )
    assert by_broker == {
        (row["broker"], row["purgatory"]): row["operations"]
        for row in run.summary["brokers"]
        if row["operations"]
    }


@pytest.mark.parametrize("name", EACH)
def test_percentiles_match_the_trace_within_the_stated_error(
    name: str, shipped: ShippedRun
) -> None:
    run = shipped(name)
    operations = run.table("operations")
    for row in run.summary["purgatories"]:
        chosen = operations.filter(
            pc.and_(
                pc.and_(
                    pc.equal(operations["purgatory"], row["purgatory"]),
                    pc.equal(operations["kind"], row["kind"]),
                ),
                pc.not_equal(operations["outcome"], "pending"),
            )
        )
        told = row["wait_us"]
        assert told["count"] == chosen.num_rows
        if not chosen.num_rows:
            continue
        assert told["max"] == pc.max(chosen["wait_us"]).as_py()
        exact = pc.quantile(chosen["wait_us"], q=[0.50, 0.95, 0.99]).to_pylist()
        for percentile, value in zip(("p50", "p95", "p99"), exact, strict=True):
            if value < EXACT_BELOW_US:
                assert told[percentile] == pytest.approx(value, rel=1e-9)
            else:
                least = value * (1 - MAX_RELATIVE_ERROR)
                assert least <= told[percentile] <= value * (1 + 1e-9)


@pytest.mark.parametrize("name", EACH)
def test_table_of_producers_matches_the_trace(name: str, shipped: ShippedRun) -> None:
    run = shipped(name)
    sends = run.table("sends").select(["group", "value_id", "outcome", "attempt", "acks"])
    acknowledged: defaultdict[str, set[int]] = defaultdict(set)
    sent: defaultdict[str, set[int]] = defaultdict(set)
    for row in sends.to_pylist():
        sent[row["group"]].add(row["value_id"])
        if row["outcome"] == "ok" or row["acks"] == 0:
            acknowledged[row["group"]].add(row["value_id"])
    # Consumers read all that is committed, retention permitting.
    reads = run.table("reads").select(["group", "partition", "offset", "value_id"]).to_pylist()
    first_group = run.summary["consumers"][0]
    assert first_group["skipped"] == 0
    read = [row for row in reads if row["group"] == first_group["group"]]
    assert len(read) == first_group["records"]
    stored = {(row["partition"], row["offset"]): row["value_id"] for row in read}
    assert len(read) - len(stored) == first_group["reread"]
    copies = Counter(stored.values())
    for group, row in run.groups.items():
        assert len(acknowledged[group]) == row["acknowledged"] + row["unanswered"]
        assert (
            sum(copies[value] - 1 for value in sent[group] if value in copies)
            == (row["duplicates"])
        )
        assert sum(value not in copies for value in acknowledged[group]) == row["lost"]


@pytest.mark.parametrize("name", EACH)
def test_run_json_describes_the_tables(name: str, shipped: ShippedRun) -> None:
    run = shipped(name)
    head = json.loads((run.trace / "run.json").read_text())
    assert head["complete"] is True
    assert (head["schema_version"], head["run_id"]) == (SCHEMA_VERSION, f"{name}-1")
    scenario = load_scenario(name).scenario
    assert [fault["kind"] for fault in head["faults"]] == [one.kind for one in scenario.faults]
    assert [fault["at_ms"] for fault in head["faults"]] == [one.at_ms for one in scenario.faults]
    for table, told in head["tables"].items():
        parts = list((run.trace / table).iterdir())
        assert (len(parts), run.table(table).num_rows) == (told["parts"], told["rows"])
        assert run.table(table)["run_id"].unique().to_pylist() == [f"{name}-1"]
    assert head["summary"] == run.summary


def test_steady_is_healthy(shipped: ShippedRun) -> None:
    run = shipped("steady")
    for row in run.groups.values():
        assert row["acknowledged"] == row["records"]
        assert (row["duplicates"], row["reorderings"], row["lost"]) == (0, 0, 0)
    produce, follower, consumer = run.summary["purgatories"]
    assert produce["expired"] == 0 and produce["wait_us"]["p99"] < 100_000
    assert follower["completed"] > 0 and consumer["completed"] > 0


def test_slow_follower_shows_timeouts_and_duplicates(shipped: ShippedRun) -> None:
    run = shipped("slow-follower")
    produce, _, consumer = run.summary["purgatories"]
    assert produce["expired"] > 0 and produce["wait_us"]["max"] >= 1_500_000
    assert consumer["expired"] > 0
    assert run.groups["orders"]["duplicates"] > 0 and run.groups["orders"]["lost"] == 0


def test_leader_failover_shows_the_losses_of_each_acks(shipped: ShippedRun) -> None:
    run = shipped("leader-failover")
    assert run.summary["elections"] > 0 and run.summary["unclean_elections"] == 0
    assert run.groups["all"]["lost"] == 0
    assert run.groups["all"]["acknowledged"] == run.groups["all"]["records"]
    assert run.groups["one"]["lost"] > 0
    assert run.groups["none"]["lost"] > run.groups["one"]["lost"]


def test_retry_reorder_reorders_only_five_in_flight(shipped: ShippedRun) -> None:
    groups = shipped("retry-reorder").groups
    assert groups["five-in-flight"]["reorderings"] > 0
    assert groups["five-in-flight"]["duplicates"] > 0
    for name in ("one-in-flight", "idempotent"):
        assert groups[name]["retries"] > 0
        assert (groups[name]["reorderings"], groups[name]["duplicates"]) == (0, 0)
