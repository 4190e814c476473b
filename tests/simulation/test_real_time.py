"""The same scenario by the machine's clock: threaded timers and reapers, the same books.

What a machine's load may change (waits, counts of fetches) is not asserted, only what it may not:
everything is answered once, nothing is lost, what must expire does, and not early.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from purgatory.simulation import Simulation, parse_scenario
from purgatory.simulation.runtime import RealTimeRuntime
from tests.cli.conftest import RunCommand
from tests.simulation.running import read_table

# A follower that stalls for 300 ms holds up produces that may wait for 100.
SCENARIO = """
name = "by-the-clock"
duration_ms = 600

[topic]
partitions = 2

[[producers]]
group = "orders"
count = 2
rate = 50.0
acks = "all"
timeout_ms = 100
request_timeout_ms = 20000

[[consumers]]
group = "readers"
max_wait_ms = 100

[[faults]]
kind = "stall_follower"
broker = 2
at_ms = 200
duration_ms = 300
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Simulation, Path]:
    before = set(threading.enumerate())
    trace = tmp_path_factory.mktemp("real-time") / "trace"
    run = Simulation(
        parse_scenario(SCENARIO, "test.toml", Path()),
        trace_folder=trace,
        make_runtime=RealTimeRuntime,
    )
    run.run()
    assert set(threading.enumerate()) <= before, "its threads have ended with it"
    return run, trace


def test_it_takes_the_time_it_simulates(ran: tuple[Simulation, Path]) -> None:
    run, _ = ran
    summary = run.summary()
    assert summary["virtual_ms"] >= 600
    assert summary["drained"]


def test_every_record_is_delivered(ran: tuple[Simulation, Path]) -> None:
    (counts,) = ran[0].summary()["producers"]
    assert counts["acknowledged"] == counts["records"] > 20
    assert counts["lost"] == 0


def test_reapers_expire_what_waits_and_none_of_it_early(ran: tuple[Simulation, Path]) -> None:
    operations = read_table(ran[1], "operations")
    expired = [row for row in operations if row["outcome"] == "expired"]
    assert [row for row in expired if row["purgatory"] == "Produce"]
    assert all(row["wait_us"] >= row["timeout_ms"] * 1_000 for row in expired)


def test_the_summary_counts_what_the_trace_holds(ran: tuple[Simulation, Path]) -> None:
    run, trace = ran
    operations = read_table(trace, "operations")
    assert len({row["operation"] for row in operations}) == len(operations)
    for row in run.summary()["purgatories"]:
        mine = [
            one["outcome"]
            for one in operations
            if (one["purgatory"], one["kind"]) == (row["purgatory"], row["kind"])
        ]
        assert row["operations"] == len(mine)
        assert row["expired"] == mine.count("expired")
    head = json.loads((trace / "run.json").read_text())
    assert head["complete"] is True


def test_the_command_runs_it_by_the_clock(tmp_path: Path, run_command: RunCommand) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO.replace("duration_ms = 600", "duration_ms = 300"))
    ran = run_command("simulate", str(path), "--real-time", "--json", "--quiet")
    assert ran.status == 0, ran.err
    summary = json.loads(ran.out)
    assert summary["producers"][0]["acknowledged"] == summary["producers"][0]["records"] > 0
