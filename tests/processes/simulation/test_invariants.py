"""The assertions inside a run are awake: a model that is broken on purpose is caught by each.

Each test breaks one thing in the model, in a way that a mistake in it could.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from purgatory.kafka import ErrorCode
from purgatory.kafka.log.log import Log
from purgatory.kafka.replication.delayed_produce import DelayedProduce, ProduceCase
from purgatory.kafka.replication.partition import Partition
from purgatory.simulation import InvariantViolation
from tests.processes.cli.conftest import RunCommand
from tests.unit.simulation.running import run_scenario

SCENARIO = """
name = "checked"
duration_ms = 1500

[cluster]
session_timeout_ms = 100

[topic]
partitions = 2

[followers]
fetch_interval_ms = 60

[[producers]]
group = "orders"
count = 3
rate = 100.0
acks = "all"
timeout_ms = 500

[[consumers]]
group = "readers"

[[faults]]
kind = "kill"
broker = 0
at_ms = 800
"""

Break = Callable[[pytest.MonkeyPatch], None]


def answer_before_replication(monkeypatch: pytest.MonkeyPatch) -> None:
    """A produce with acks=all is acknowledged right after the leader's append."""

    def try_complete(self: DelayedProduce) -> bool:
        for status in self.statuses:
            status.end_wait(ProduceCase.REPLICATED, ErrorCode.NONE)
        return self.force_complete()

    monkeypatch.setattr(DelayedProduce, "try_complete", try_complete)


def commit_without_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The high watermark follows the leader's own log end, not the least of the in-sync set."""
    original = Partition.append_as_leader

    def append_as_leader(self: Partition, *args: Any) -> Any:
        appended = original(self, *args)
        self.log.update_high_watermark(self.log.end_offset)
        return appended

    monkeypatch.setattr(Partition, "append_as_leader", append_as_leader)


def let_the_high_watermark_slip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, a leader's high watermark is set to less than it was."""
    original = Log.update_high_watermark
    slipped = False

    def update_high_watermark(self: Log, offset: int) -> bool:
        nonlocal slipped
        if offset > 50 and not slipped:
            slipped = True
            self.high_watermark -= 5
            return True
        return original(self, offset)

    monkeypatch.setattr(Log, "update_high_watermark", update_high_watermark)


def answer_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A produce that waited answers once more than it should."""
    original = DelayedProduce.on_complete

    def on_complete(self: DelayedProduce) -> None:
        original(self)
        original(self)

    monkeypatch.setattr(DelayedProduce, "on_complete", on_complete)


def answer_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """A produce that waited completes without a word."""
    monkeypatch.setattr(DelayedProduce, "on_complete", lambda _self: None)


LOST = "an acknowledged acks=all record is lost while an in-sync member lives"
CASES = {
    "answer before replication": (answer_before_replication, f"{LOST}: .* but is not committed"),
    "commit without followers": (commit_without_followers, f"{LOST}: .* new leader of events-0"),
    "high watermark slips": (let_the_high_watermark_slip, "the high watermark went back on a live"),
    "answer twice": (answer_twice, "a request got more than one response"),
    "answer never": (answer_never, "a request got no response: .* timeout of 500 ms"),
}


def test_intact_model_violates_no_invariant() -> None:
    ran = run_scenario(SCENARIO)
    assert ran.summary["elections"] == 1
    assert ran.run.invariants.violation is None
    assert ran.producers("orders")["acknowledged"] == ran.producers("orders")["records"] > 300


@pytest.mark.parametrize(("break_it", "told"), CASES.values(), ids=list(CASES))
def test_invariants_catch_each_broken_model(
    break_it: Break, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    break_it(monkeypatch)
    with pytest.raises(InvariantViolation, match=told) as caught:
        run_scenario(SCENARIO, tmp_path / "trace")
    # Seed and time are what one needs to see it again.
    assert "(seed 1, at " in str(caught.value)
    head = json.loads((tmp_path / "trace" / "run.json").read_text())
    assert head["complete"] is False
    assert head["reason"] == f"invariant violated: {caught.value}"


def test_simulate_ends_with_status_1_and_names_the_violated_invariant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_command: RunCommand
) -> None:
    answer_twice(monkeypatch)
    (tmp_path / "checked.toml").write_text(SCENARIO)
    ran = run_command("simulate", str(tmp_path / "checked.toml"), "--quiet")
    assert ran.status == 1
    assert "invariant violated: a request got more than one response" in ran.err
    assert "Traceback" not in ran.err and ran.out == ""
