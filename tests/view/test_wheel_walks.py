"""Walks of a wheel for the page: the same as the terminal's, and bounded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.view.wheel_walks import MOST_DRAWN, walk_document

WALK_THROUGH = Path(__file__).parents[1] / "timer" / "data" / "wheel-walkthrough.json"


def test_the_walk_through_seven_tasks_is_what_is_told_without_a_question() -> None:
    told = json.loads(walk_document({"start_ms": "1675752020558"}))
    assert told == json.loads(WALK_THROUGH.read_text())


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"tick": "0s"}, "tick: '0s' is too short; it must be at least 1ms"),
        ({"tick": "2000h"}, "tick: '2000h' is too long"),
        ({"tick": "1"}, "tick: '1' is no duration; give a number and its unit"),
        ({"tick": "9" * 5_000 + "h"}, "tick: '999"),
        ({"size": "1"}, "size: '1' is no whole number from 2 to 100"),
        ({"size": "9" * 5_000}, "size: '999"),
        ({"size": "٣"}, "size: '٣' is no whole number"),
        ({"start_ms": "-1"}, "start_ms: '-1' is no whole number"),
        ({"delays": ""}, "delays: '' is no duration"),
        ({"delays": "1s,"}, "delays: '' is no duration"),
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
def test_nonsense_is_answered_with_what_would_be_right(
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
def test_what_is_told_is_bounded_and_each_task_runs_once(
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
    assert buckets <= MOST_DRAWN
    ran = [task for step in steps for task in step.get("ran", ())]
    assert sorted(ran) == list(range(1, len(delays) + 1))
