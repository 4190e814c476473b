"""The steps of a wheel's walk as plain data, and the bounds of what the page may request."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.view.wheel import MAX_DRAWN, WheelWalk, walk, walk_document
from timer import ManualClock

WALK_THROUGH = Path(__file__).parents[2] / "unit" / "timer" / "data" / "wheel-walkthrough.json"


@pytest.fixture(scope="module")
def walk_through() -> dict[str, Any]:
    """The seven-task walk: tick 1 s, 3 buckets, delays of 1 to 7 s."""
    document: dict[str, Any] = json.loads(WALK_THROUGH.read_text())
    return document


def test_the_seven_task_walk_takes_all_15_steps(walk_through: dict[str, Any]) -> None:
    steps = list(
        walk(
            walk_through["tick_ms"],
            walk_through["wheel_size"],
            walk_through["start_ms"],
            range(1000, 8000, 1000),
        )
    )
    assert len(steps) == 15
    for step, expected in zip(steps, walk_through["steps"], strict=True):
        assert step == expected


def test_a_task_that_is_due_at_once_runs_when_it_is_inserted() -> None:
    start, insert = walk(tick_ms=1, wheel_size=2, start_ms=5, delays_ms=[0])
    assert insert.get("ran") == [1]
    assert insert["state"] == start["state"]


def test_walk_shows_a_cascade_through_three_levels() -> None:
    steps = list(walk(tick_ms=1, wheel_size=20, start_ms=0, delays_ms=[450]))[2:]
    assert [step["clock_ms"] for step in steps] == [400, 440, 450]
    assert [step["polled"] for step in steps] == [
        [{"level": 3, "bucket": 1}],
        [{"level": 2, "bucket": 2}],
        [{"level": 1, "bucket": 10}],
    ]
    assert [step["reinserted"] for step in steps] == [[1], [1], []]
    assert [step["ran"] for step in steps] == [[], [], [1]]


def test_walk_shows_each_polled_bucket_of_an_advance() -> None:
    clock = ManualClock()
    wheel_walk = WheelWalk(tick_ms=1, wheel_size=20, clock=clock)
    for number, delay_ms in enumerate([3, 25, 19, 900], start=1):
        wheel_walk.insert(number, delay_ms)
    assert wheel_walk.advance() is None
    clock.advance(30)
    step = wheel_walk.advance()
    assert step is not None
    assert step["ran"] == [1, 3, 2]
    assert step["reinserted"] == []
    assert step["polled"] == [
        {"level": 1, "bucket": 3},
        {"level": 1, "bucket": 19},
        {"level": 2, "bucket": 1},
    ]


@given(
    tick_ms=st.integers(1, 50),
    wheel_size=st.integers(2, 6),
    start_ms=st.integers(0, 10**13),
    delays_ms=st.lists(st.integers(0, 100_000), max_size=8),
)
def test_every_task_runs_once_within_its_tick(
    tick_ms: int, wheel_size: int, start_ms: int, delays_ms: list[int]
) -> None:
    ran: list[int] = []
    for step in walk(tick_ms, wheel_size, start_ms, delays_ms):
        clock_ms = step.get("clock_ms", start_ms)
        for number in step.get("ran", ()):
            early_ms = start_ms + delays_ms[number - 1] - clock_ms
            assert 0 <= early_ms < tick_ms
            ran.append(number)
    assert sorted(ran) == list(range(1, len(delays_ms) + 1))


def test_default_walk_has_seven_tasks() -> None:
    told = json.loads(walk_document({"start_ms": "1675752020558"}))
    assert told == json.loads(WALK_THROUGH.read_text())


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"tick": "0s"}, "tick: '0s' is too short; it must be at least 1ms"),
        ({"tick": "2000h"}, "tick: '2000h' is too long"),
        ({"tick": "1"}, "tick: '1' is not a duration; give a number and its unit"),
        ({"tick": "9" * 5_000 + "h"}, "tick: '999"),
        ({"size": "1"}, "size: '1' is no whole number from 2 to 100"),
        ({"size": "9" * 5_000}, "size: '999"),
        ({"size": "٣"}, "size: '٣' is no whole number"),
        ({"start_ms": "-1"}, "start_ms: '-1' is no whole number"),
        ({"delays": ""}, "delays: '' is not a duration"),
        ({"delays": "1s,"}, "delays: '' is not a duration"),
        ({"delays": "1s," * 50 + "1s"}, "delays: at most 50 tasks are walked, not 51"),
        (
            {
                "delays": ",".join(f"{hours}h" for hours in range(1, 51)),
                "tick": "1ms",
                "size": "100",
            },
            "this walk is too long",
        ),
    ],
)
def test_refusal_of_an_invalid_request_lists_valid_values(
    asked: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}") as refused:
        walk_document(asked)
    assert len(str(refused.value)) < 300


@given(
    tick=st.integers(1, 10**7),
    size=st.integers(2, 100),
    start_ms=st.integers(0, 10**15),
    delays=st.lists(st.integers(0, 10**9), min_size=1, max_size=50),
)
def test_walk_is_bounded_and_runs_each_task_once(
    tick: int, size: int, start_ms: int, delays: list[int]
) -> None:
    asked = {"tick": f"{tick}ms", "size": f"{size}", "start_ms": f"{start_ms}"}
    asked["delays"] = ",".join(f"{one}ms" for one in delays)
    try:
        body = walk_document(asked)
    except ValueError:
        with pytest.raises(ValueError, match=r"^this walk is too long"):
            walk_document(asked)
        return
    steps = json.loads(body)["steps"]
    buckets = sum(len(one["buckets"]) for step in steps for one in step["state"]["levels"])
    assert buckets <= MAX_DRAWN
    ran = [task for step in steps for task in step.get("ran", ())]
    assert sorted(ran) == list(range(1, len(delays) + 1))
