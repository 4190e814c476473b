"""The state that a trace tells of, against the simulation's own: taken from its objects as it runs.

The run is paused by an event in the last nanosecond of a microsecond, so all of that is over.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from purgatory import DelayedOperation
from purgatory.kafka import TopicPartition
from purgatory.simulation import Simulation, apply_overrides, load_scenario, parse_scenario
from purgatory.simulation.broker import Broker
from purgatory.simulation.scenario_file import LoadedScenario
from purgatory.view.time_travel import TracedRun
from timer import TimerTask

MOMENTS = 100

PAUSES = """
name = "pauses"
seed = 3
duration_ms = 6000

[cluster]
timer_tick_ms = {tick_ms}
timer_wheel_size = {wheel_size}

[topic]
partitions = 3
replication_factor = 3

[[producers]]
group = "p"
count = 6
rate = 40.0
acks = "all"
timeout_ms = 700

[[consumers]]
group = "c"
count = 4

[[faults]]
kind = "pause"
broker = 0
at_ms = 1500
duration_ms = 900

[[faults]]
kind = "pause"
broker = 1
at_ms = 2000
duration_ms = 1300

[[faults]]
kind = "kill"
broker = 2
at_ms = 3500
duration_ms = 800
lost_records = 3
"""
"""Paused brokers: when they resume, many operations expire at once; more were parked meanwhile."""


def scenario(name: str) -> LoadedScenario:
    if name.startswith("pauses"):
        _, tick_ms, wheel_size = name.split("-")
        text = PAUSES.format(tick_ms=tick_ms, wheel_size=wheel_size)
        return parse_scenario(text, "pauses", Path())
    return load_scenario(name)


def own_state(run: Simulation) -> dict[str, Any]:
    """The state of a run, from its brokers, logs and timers."""
    return {
        "brokers": {one.id: (one.alive, one.paused) for one in run.brokers},
        "wheels": {one.id: own_wheel(one) for one in run.brokers if one.alive},
        "waiting": sum((own_waiting(one) for one in run.brokers if one.alive), Counter()),
        "partitions": own_partitions(run),
        "faults": {fault.number for fault in run.faults.active},
        "immediate": own_immediate(run),
    }


def own_wheel(broker: Broker) -> tuple[Any, ...]:
    """Its levels, and how many operations that are due when lie in which bucket."""
    timer = broker.process.timer
    assert timer is not None
    levels = timer.snapshot(due_ms)["levels"]
    places = Counter(
        (level["level"], index, due)
        for level in levels
        for index, bucket in enumerate(level["buckets"])
        for due in bucket["tasks"]
    )
    return [tuple(level["covers_ms"]) for level in levels], places


def due_ms(task: TimerTask) -> Any:
    """When a task is due, by when it was submitted: nothing that the trace was written from."""
    assert isinstance(task, DelayedOperation)
    return task.delay_ms - (-task._op_start_ns // 1_000_000)


def own_waiting(broker: Broker) -> Counter[tuple[int, str]]:
    purgatories = broker.process.purgatories
    return Counter({(broker.id, one.name): one.num_delayed for one in purgatories})


def own_partitions(run: Simulation) -> dict[tuple[str, int], Any]:
    found = {}
    for place, state in run.controller.assignments.items():
        ends = {one.id: one.log_ends().get(place) for one in run.brokers}
        leading = run.brokers[state.leader] if state.leader >= 0 else None
        log = None if leading is None else own_log(leading, place)
        found[place.topic, place.partition] = (
            state.leader,
            state.leader_epoch,
            list(state.replicas),
            list(state.isr),
            {str(broker): end.offset for broker, end in ends.items() if end is not None},
            None if log is None else log.high_watermark,
        )
    return found


def own_log(broker: Broker, place: TopicPartition) -> Any:
    if not broker.alive:
        return broker._logs.get(place)
    partition = broker.manager.partition(place)
    return None if partition is None else partition.log


def own_immediate(run: Simulation) -> Counter[tuple[int, str]]:
    found: Counter[tuple[int, str]] = Counter()
    for (purgatory, _, broker, outcome), waits in run.recorder.waits.items():
        if outcome == "immediate":
            found[broker, purgatory] += waits.count
    return found


def rebuilt_state(run: TracedRun, at_us: int) -> dict[str, Any]:
    """The same of a traced run, from what goes to the page."""
    state = run.state(at_us)
    assert state["shown"] == state["pending"] == len(state["operations"])
    alive = [one for one in state["brokers"] if one["alive"]]
    places: dict[int, Counter[tuple[int, int, int]]] = {one["id"]: Counter() for one in alive}
    for _, broker, _, _, _, _, due, level, bucket in state["operations"]:
        if level is not None:
            places[broker][level, bucket, due] += 1
    return {
        "brokers": {one["id"]: (one["alive"], one["paused"]) for one in state["brokers"]},
        "wheels": {
            one["id"]: (
                [tuple(level["covers_ms"]) for level in one["wheel"]["levels"]],
                places[one["id"]],
            )
            for one in alive
        },
        "waiting": +Counter(
            {(one["id"], of["name"]): of["pending"] for one in alive for of in one["purgatories"]}
        ),
        "partitions": {
            (topic["name"], one["partition"]): (
                one["leader"],
                one["leader_epoch"],
                one["replicas"],
                one["isr"],
                one["log_end_offsets"],
                one["high_watermark"] if one["leader"] >= 0 else None,
            )
            for topic in state["topics"]
            for one in topic["partitions"]
        },
        "faults": {one["number"] for one in state["faults"] if one["active"]},
        "immediate": +Counter(
            {
                (one["id"], of["name"]): of["outcomes"]["immediate"]
                for one in state["brokers"]
                for of in one["purgatories"]
            }
        ),
    }


def ran(loaded: LoadedScenario, folder: Path, moments_us: list[int]) -> dict[int, dict[str, Any]]:
    """Run a scenario with a trace; return its own state at some moments."""
    run = Simulation(loaded, trace_folder=folder)
    seen: dict[int, dict[str, Any]] = {}

    def look(at_us: int) -> None:
        seen[at_us] = own_state(run)

    for at_us in moments_us:
        run.engine.call_at(at_us * 1_000 + 999, look, at_us)
    run.run()
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "duration_ms"),
    [
        # Each fault has begun by then; by night they end, too, as those of "pauses" do.
        ("slow-follower", 5_000),
        ("leader-failover", 7_000),
        ("retry-reorder", 3_000),
        ("pauses-1-20", 6_000),
        ("pauses-7-3", 6_000),
        pytest.param("slow-follower", 12_000, marks=pytest.mark.exhaustive),
        pytest.param("leader-failover", 15_000, marks=pytest.mark.exhaustive),
        pytest.param("retry-reorder", 10_000, marks=pytest.mark.exhaustive),
    ],
)
def test_rebuilt_state_equals_the_simulations_own_at_any_moment(
    name: str, duration_ms: int, tmp_path: Path
) -> None:
    loaded = apply_overrides(scenario(name), duration_ms=duration_ms)
    chance = random.Random(name)
    moments_us = [chance.randrange(duration_ms * 1_000) for _ in range(MOMENTS - 10)]
    # And as a millisecond begins, where wheels advance.
    moments_us += [chance.randrange(duration_ms) * 1_000 for _ in range(10)]
    seen = ran(loaded, tmp_path / "trace", moments_us)
    assert len(seen) == len(set(moments_us))

    run = TracedRun(tmp_path / "trace")
    for at_us in moments_us:  # in no order: it goes back as well
        rebuilt, own = rebuilt_state(run, at_us), seen[at_us]
        for part in own:
            assert rebuilt[part] == own[part], (name, at_us, part)
