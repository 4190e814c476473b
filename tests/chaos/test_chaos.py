"""Minutes of chaos: guarantees hold, injected defects are found, a seed repeats its hour."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest
from click.testing import CliRunner

from purgatory.kafka import ProducerStates, TopicPartition
from purgatory.kafka.controller import Controller
from purgatory.kafka.topics import PartitionState
from tests.chaos.chaos import main, run_hour
from tests.chaos.chaos_scenario import chaos_scenario
from tests.chaos.wire_hour import run_wire

HOURS = 0.1


@pytest.mark.parametrize("seed", range(6))
def test_guarantees_hold_for_minutes_of_chaos(seed: int) -> None:
    summary, problems = run_hour(seed, HOURS)
    assert problems == []
    assert summary is not None and summary["faults"] and summary["drained"]


def test_a_seed_gives_the_same_hour_again() -> None:
    first, second = (run_hour(3, HOURS)[0] for _ in range(2))
    assert first == second
    assert chaos_scenario(3, HOURS) == chaos_scenario(3, HOURS) != chaos_scenario(4, HOURS)


def _elect_whoever_lives(
    self: Controller, topic_partition: TopicPartition, state: PartitionState
) -> None:
    """Elect the last live replica as if cleanly, in sync or not."""
    living = [broker for broker in state.replicas if broker in self.live]
    state.leader_epoch += 1
    state.leader = living[-1] if living else -1
    if living:
        state.isr = (state.leader,)
    self.on_elected(topic_partition, state)


def _find_no_duplicate(self: ProducerStates, *_: object) -> None:
    """Treat each retried batch as new."""


BROKEN: Mapping[str, tuple[object, str, Callable[..., object]]] = {
    "a leader that was out of sync": (Controller, "_elect", _elect_whoever_lives),
    "unrecognized duplicates": (ProducerStates, "find_duplicate", _find_no_duplicate),
}
"""Parts of the model, and their defective replacements."""


@pytest.mark.parametrize("name", BROKEN)
def test_chaos_finds_each_broken_part(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*BROKEN[name])
    assert any(run_hour(seed, HOURS)[1] for seed in range(40))


def test_wire_chaos_finds_that_readers_get_no_aborted_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ProducerStates, "aborted_between", lambda *_: ())
    assert any(run_wire(seed, minutes=0.5).wrong for seed in range(4))


def test_command_prints_hours_and_rate() -> None:
    command = [sys.executable, "-m", "tests.chaos.chaos", "--seed", "5", "--hours", "0.05"]
    ran = subprocess.run([*command, "--no-audit"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("chaos from seed 5: 0.05 hours of a cluster in ")
    assert ran.stdout.endswith("promises broken: 0\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hours", "1"], "--seed"),
        (["--seed", "x"], "--seed"),
        (["--seed", "1", "--hours", "0"], "--hours"),
    ],
)
def test_invalid_options_are_refused(arguments: list[str], message: str) -> None:
    ran = CliRunner().invoke(main, arguments)
    assert ran.exit_code == 2 and message in ran.stderr
    assert "Traceback" not in ran.stderr
