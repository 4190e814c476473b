"""The seven-task walk: tick 1 s, 3 buckets, delays of 1 to 7 s, in all of its 15 states."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.timer.named_task import NamedTask, inline_timer, name_of
from timer import ManualClock, SystemTimer, timing_wheel

DATA = Path(__file__).with_name("data") / "wheel-walkthrough.json"
WALK: dict[str, Any] = json.loads(DATA.read_text())
STATES = range(15)


class Walk:
    """The walk, taken again through the public interface."""

    def __init__(self) -> None:
        self.clock = ManualClock(WALK["start_ms"])
        self.timer = inline_timer(self.clock, WALK["tick_ms"], WALK["wheel_size"])
        self.ran: list[object] = []

    def take(self, step: dict[str, Any]) -> None:
        """Insert a task or move to the next bucket, as ``step`` says."""
        if "delay_ms" in step:
            self.timer.add(NamedTask(step["delay_ms"], step["task"], self.ran))
        elif "clock_ms" in step:
            assert self.timer.next_expiration_ms() == step["clock_ms"]
            self.clock.advance_to(step["clock_ms"])
            assert self.timer.advance_clock(0)
        self.timer._check()

    def take_first(self, count: int) -> None:
        """Take the first ``count`` steps."""
        for step in WALK["steps"][:count]:
            self.take(step)


def state_of(timer: SystemTimer) -> dict[str, Any]:
    return dict(timer.snapshot(label=name_of))


def tasks_in(state: dict[str, Any], level: int, bucket: int) -> list[int]:
    tasks: list[int] = state["levels"][level - 1]["buckets"][bucket]["tasks"]
    return tasks


def test_the_walk_has_15_states_and_seven_tasks() -> None:
    assert len(WALK["steps"]) == len(STATES)
    delays = [step["delay_ms"] for step in WALK["steps"] if "delay_ms" in step]
    assert delays == list(range(1000, 8000, 1000))


@pytest.mark.parametrize("number", STATES, ids=lambda number: str(WALK["steps"][number]["event"]))
def test_wheel_reproduces_each_documented_state(number: int) -> None:
    walk = Walk()
    walk.take_first(number + 1)
    assert state_of(walk.timer) == WALK["steps"][number]["state"]


@pytest.mark.parametrize(
    "step", [step for step in WALK["steps"] if "polled" in step], ids=lambda step: step["event"]
)
def test_advance_polls_runs_and_reinserts_documented_tasks(step: dict[str, Any]) -> None:
    walk = Walk()
    walk.take_first(WALK["steps"].index(step))
    before = state_of(walk.timer)
    ran_before = len(walk.ran)
    walk.take(step)
    polled = [
        {"level": queued["level"], "bucket": queued["bucket"]}
        for queued in before["delay_queue"]
        if queued["expiration_ms"] <= step["clock_ms"]
    ]
    assert polled == step["polled"]
    assert walk.ran[ran_before:] == step["ran"]
    held = [task for place in polled for task in tasks_in(before, place["level"], place["bucket"])]
    assert [task for task in held if task not in walk.ran] == step["reinserted"]


def test_an_insertion_expires_at_the_delay_after_the_present() -> None:
    for step in WALK["steps"]:
        if "delay_ms" in step:
            assert step["expiration_ms"] == WALK["start_ms"] + step["delay_ms"]


def test_three_levels_stand_at_20_18_and_12_s_after_7_insertions() -> None:
    walk = Walk()
    walk.take_first(8)
    minute_ms = WALK["start_ms"] // 60_000 * 60_000
    starts = [level["covers_ms"][0] - minute_ms for level in state_of(walk.timer)["levels"]]
    assert starts == [20_000, 18_000, 12_000]


def test_a_level_once_made_stays() -> None:
    walk = Walk()
    walk.take_first(len(WALK["steps"]))
    assert walk.ran == [1, 2, 3, 4, 5, 6, 7]
    assert walk.timer.size == 0
    assert walk.timer.levels_in_use == 3


def test_the_wheels_header_shows_three_of_the_states() -> None:
    header = timing_wheel.__doc__ or ""
    minute_ms = WALK["start_ms"] // 60_000 * 60_000
    shown = []
    for number in (7, 8, 11):
        for level in WALK["steps"][number]["state"]["levels"]:
            in_use = sorted(
                (bucket["expiration_ms"] - minute_ms, bucket["tasks"])
                for bucket in level["buckets"]
                if bucket["tasks"]
            )
            if in_use:
                begin_s = (level["covers_ms"][0] - minute_ms) // 1_000
                buckets = (f"{at // 1_000} s: {' '.join(map(str, tasks))}" for at, tasks in in_use)
                shown.append(f"level {level['level']}, from {begin_s} s: {'   '.join(buckets)}")
    assert len(shown) == 7
    assert re.findall(r"level \d, from \d+ s: .+", header) == shown
