"""The state that the trace of a simulation in real time tells of, against the simulation's own.

A moment at which it looks lasts until the microsecond after it, so that it is one of the trace's.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from purgatory.simulation import Simulation, parse_scenario
from purgatory.simulation.runtime import RealTimeRuntime
from purgatory.view.time_travel import TracedRun
from tests.view.test_state import own_partitions, own_waiting, rebuilt_state

SCENARIO = """
name = "by-the-clock"
duration_ms = 2400

[topic]
partitions = 3
replication_factor = 3

[[producers]]
group = "orders"
count = 2
rate = 40.0
acks = "all"
timeout_ms = 250

[[consumers]]
group = "readers"
max_wait_ms = 100

[[faults]]
kind = "stall_follower"
broker = 2
at_ms = 300
duration_ms = 600

[[faults]]
kind = "pause"
broker = 0
at_ms = 1000
duration_ms = 400

[[faults]]
kind = "kill"
broker = 1
at_ms = 1500
duration_ms = 500
"""
EVERY_MS = 37
SETTLING_US = 20_000
"""How long another thread may be on its way from what ends a wait to where that is written down."""
PARTS: tuple[str, ...] = ("brokers", "partitions", "faults", "waiting")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("run") / "trace"
    loaded = parse_scenario(SCENARIO, "by-the-clock", Path())
    run = Simulation(loaded, trace_folder=folder, make_runtime=RealTimeRuntime)
    seen: dict[int, dict[str, Any]] = {}

    def next_us() -> int:
        now_us = run.now_ns() // 1_000
        while run.now_ns() // 1_000 == now_us:
            pass
        return run.now_ns() // 1_000

    def look() -> None:
        at_us = next_us()
        waiting = sum((own_waiting(one) for one in run.brokers if one.alive), Counter())
        seen[at_us] = {
            "brokers": {one.id: (one.alive, one.paused) for one in run.brokers},
            "partitions": own_partitions(run),
            "faults": {fault.number for fault in run.faults.active},
            "waiting": waiting,
        }
        next_us()

    for at_ms in range(50, 2_400, EVERY_MS):
        run.engine.call_at(at_ms * 1_000_000, look)
    run.run()
    return folder, seen


def test_the_state_is_the_simulations_own(ran: tuple[Path, dict[int, dict[str, Any]]]) -> None:
    folder, seen = ran
    run = TracedRun(folder)
    assert run.about()["notes"] == [
        "This is a simulation in real time: where operations lie on the wheels is computed from "
        "when they came and their timeouts."
    ]
    settled = run.timeline.settled
    expired = [
        end_us for row, end_us in enumerate(settled.time_us) if settled.outcome.at(row) == "expired"
    ]
    compared = waited = 0
    for at_us, own in seen.items():
        rebuilt = rebuilt_state(run, at_us)
        parts = PARTS
        if any(abs(end_us - at_us) < SETTLING_US for end_us in expired):
            parts = PARTS[:-1]  # another thread may have been settling just then
        else:
            compared, waited = compared + 1, waited + own["waiting"].total()
        for part in parts:
            assert rebuilt[part] == own[part], (at_us, part)
    assert min(compared, waited) > len(seen) // 4
    # On a slow machine looks are few, and most of them see the same.
    assert {part: len({repr(own[part]) for own in seen.values()}) > 1 for part in PARTS} == (
        dict.fromkeys(PARTS, True)
    )
    assert any(own["brokers"][0] == (True, True) for own in seen.values())
    assert any(not own["brokers"][1][0] for own in seen.values())


def test_wheels_turn_while_a_broker_is_paused(
    ran: tuple[Path, dict[int, dict[str, Any]]],
) -> None:
    folder, seen = ran
    run = TracedRun(folder)
    # On a slow machine the pause begins late, or looks at it are few.
    paused_us = [at_us for at_us, own in seen.items() if own["brokers"][0] == (True, True)]
    first_us, last_us = paused_us[0], paused_us[-1]

    def clock_ms(at_us: int) -> int:
        [broker] = [one for one in run.state(at_us)["brokers"] if one["id"] == 0]
        assert broker["paused"]
        clock: int = broker["wheel"]["clock_ms"]
        return clock

    settled, due_ms = run.timeline.settled, run.timeline.parked.due_ms
    margin_ms = SETTLING_US // 1_000
    expired = [
        operation
        for row, operation in enumerate(settled.parked)
        if settled.outcome.at(row) == "expired"
        and settled.broker[row] == 0
        and operation >= 0
        and first_us // 1_000 + margin_ms < due_ms[operation] < last_us // 1_000 - margin_ms
        and settled.time_us[row] < last_us
    ]
    assert clock_ms(last_us) > clock_ms(first_us) or not expired


def test_a_trace_of_groups_in_real_time_is_not_begun(tmp_path: Path) -> None:
    text = SCENARIO.replace("max_wait_ms = 100", 'membership = "dynamic"')
    loaded = parse_scenario(text, "groups", Path())
    with pytest.raises(ValueError, match="virtual time only"):
        Simulation(loaded, trace_folder=tmp_path / "trace", make_runtime=RealTimeRuntime)
    assert not (tmp_path / "trace").exists()
