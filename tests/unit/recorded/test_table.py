"""The table of differences from a real Kafka, and the comparison that it judges."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recorded.comparison import VARIES, Difference, compare, without_noise
from tests.recorded.programs.registry import PROGRAMS
from tests.recorded.recorder import Step
from tests.recorded.recordings import NEWEST, has_recording
from tests.recorded.table import (
    MEANT_FILE,
    UNKNOWN,
    UNMENDED_FILE,
    Entry,
    fold,
    judge,
    read_entries,
    render_meant,
    unfold,
)

_DIFFERENCE = Difference("Fetch v4 all", ".Topics[].ErrorCode", "0", "1")


def _entry(*steps: str, path: str = ".Topics[].ErrorCode", ours: str = "1") -> Entry:
    return Entry(["fetch.fetch"], steps, [path], "0", ours, "why")


def test_entry_explains_its_difference() -> None:
    verdict = judge([_DIFFERENCE], [_entry("Fetch v4 all")])
    assert str(verdict) == ""


@pytest.mark.parametrize(
    "entry",
    [_entry("Fetch v5 all"), _entry("Fetch v4 all", ours="2"), _entry("Fetch v4 all", path=".X")],
)
def test_table_fails_both_ways(entry: Entry) -> None:
    verdict = judge([_DIFFERENCE], [entry])
    assert list(verdict.unexplained) == [_DIFFERENCE]
    assert [(one, list(places)) for one, places in verdict.unused] == [
        (entry, sorted([*entry.paths, *entry.steps]))
    ]


def test_entry_with_one_unused_step_fails() -> None:
    verdict = judge([_DIFFERENCE], [_entry("Fetch v4,5 all")])
    assert not verdict.unexplained
    assert [list(steps) for _, steps in verdict.unused] == [["Fetch v5 all"]]


@pytest.mark.parametrize(("step", "is_explained"), [("Fetch v9 other", True), ("Other v4", False)])
def test_entry_explains_other_steps_of_its_api(step: str, is_explained: bool) -> None:
    difference = _DIFFERENCE._replace(step=step)
    assert _entry("Fetch v4 all").explains_elsewhere(difference) is is_explained


@pytest.mark.parametrize("pattern", ["*", "Fetch v4*", "Fetch v4 all"])
def test_stars_stand_for_anything(pattern: str) -> None:
    assert str(judge([_DIFFERENCE], [_entry(pattern, path="*.ErrorCode", ours="*")])) == ""


def test_star_that_matches_nothing_fails() -> None:
    assert judge([], [_entry("*")]).unused


def test_folded_steps_unfold_to_themselves() -> None:
    names = [f"Fetch v{version} all" for version in (4, 5, 6, 9)] + ["HTTP", "Fetch v4 none"]
    folded = fold(names)
    assert "Fetch v4..6,9 all" in folded
    assert sorted(one for name in folded for one in unfold(name)) == sorted(names)


def test_comparison_finds_each_kind_of_difference() -> None:
    theirs = {"a": 1, "b": [{"Name": "x", "c": None}, {"Name": "y", "c": 2}], "d": True}
    ours = {"a": 1, "b": [{"Name": "y", "c": 3}], "d": 1, "e": 0}
    found = compare([Step("s", theirs), Step("gone", 0)], [Step("s", ours), Step("new", 0)])
    assert [(step, path) for step, path, *_ in found] == [
        ("s", ".b[x]"),
        ("s", ".b[y].c"),
        ("s", ".d"),
        ("s", ".e"),
        ("gone", ""),
        ("new", ""),
    ]


def test_noise_is_not_compared() -> None:
    recorded = without_noise({"a": 1, "b": [1, 2], "c": [1]}, {"a": 2, "b": [1, 3], "c": []})
    assert recorded == {"a": VARIES, "b": [1, VARIES], "c": VARIES}
    assert compare([Step("s", recorded)], [Step("s", {"a": 5, "b": [1, 9], "c": None})]) == []


def test_table_names_recorded_programs_and_reasons() -> None:
    for entry in (*read_entries(MEANT_FILE), *read_entries(UNMENDED_FILE)):
        assert set(entry.programs) <= set(PROGRAMS)
        assert entry.reason not in ("", UNKNOWN), f"without a reason: {entry}"


def test_each_program_is_recorded() -> None:
    assert [name for name in PROGRAMS if not has_recording(NEWEST, name)] == []


def test_document_has_the_meant_differences() -> None:
    text = (Path(__file__).parents[3] / "docs" / "kafka-model.md").read_text()
    shown = text.split("<!-- reference: python -m tests.recorded.table -->", 1)[1]
    assert shown.split("<!-- end of reference -->", 1)[0].strip() == render_meant()
