"""The brokers' timing wheel is the scenario's: its tick and its size."""

from __future__ import annotations

from pathlib import Path

import pytest

from purgatory.simulation import ScenarioError, Simulation, parse_scenario
from tests.unit.simulation.running import HEAD, Ran, run_scenario
from timer import SystemTimer

IDLE_CONSUMER = """
[cluster]
{timer}

[[producers]]
group = "quiet"
rate = 0.5

[[consumers]]
group = "waiting"
max_wait_ms = 237
"""


def ran_with(timer: str) -> Ran:
    return run_scenario(HEAD + IDLE_CONSUMER.format(timer=timer))


def test_fetch_expires_on_time_with_a_tick_of_one_millisecond() -> None:
    waits = ran_with("").operations("Fetch", "consumer")["wait_us_by_outcome"]["expired"]
    assert waits["count"] > 0
    assert 237_000 <= waits["p50"] <= 238_000


def test_a_coarser_tick_lets_a_fetch_expire_up_to_a_tick_early() -> None:
    waits = ran_with("timer_tick_ms = 100").operations("Fetch", "consumer")
    expired = waits["wait_us_by_outcome"]["expired"]
    assert expired["count"] > 0
    assert 137_000 <= expired["p50"] < 237_000


def test_the_size_of_the_wheel_changes_nothing_that_a_client_sees() -> None:
    summaries = [ran_with(f"timer_wheel_size = {size}").summary for size in (2, 20, 1_000)]
    assert summaries[0] == summaries[1] == summaries[2]


def test_wheel_has_the_tick_and_size_of_the_scenario() -> None:
    text = HEAD + IDLE_CONSUMER.format(timer="timer_tick_ms = 5\ntimer_wheel_size = 7")
    text = text.replace("duration_ms = 1000", "duration_ms = 50\ndrain_ms = 0")
    run = Simulation(parse_scenario(text, "test.toml", Path()))
    run.run()
    for broker in run.brokers:
        for purgatory in broker.process.purgatories:
            assert isinstance(purgatory.timer, SystemTimer)
            level = purgatory.timer.snapshot()["levels"][0]
            assert (level["tick_ms"], len(level["buckets"])) == (5, 7)


@pytest.mark.parametrize("timer", ["timer_tick_ms = 0", "timer_wheel_size = 1"])
def test_invalid_tick_or_wheel_size_is_refused(timer: str) -> None:
    with pytest.raises(ScenarioError, match=rf"cluster\.{timer}: must be greater"):
        ran_with(timer)


def test_summary_has_the_p999_of_waits() -> None:
    waits = ran_with("").operations("Fetch", "consumer")["wait_us"]
    assert waits["p99"] <= waits["p999"] <= waits["max"]
