"""``purgatory fault``: the request of each command to the control, and its output."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from purgatory.cli import fault_command
from purgatory.cli.main import program
from purgatory.kafka.faults import FORMER_KINDS, KINDS

Asked = list[tuple[Any, ...]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The requests to the control, which accepts all."""
    asked: Asked = []

    def ask(*question: Any) -> dict[str, int]:
        asked.append(question)
        return {"number": 3, "result": 2, "ended": 1}

    monkeypatch.setattr(fault_command, "_request", ask)
    return asked


@pytest.mark.parametrize(
    ("typed", "sent", "said"),
    [
        (
            "stall-follower 2 --for 10s",
            {"kind": "stall_follower", "broker": 2, "for_s": 10.0},
            "fault 3: stall-follower, for 10s",
        ),
        (
            "slow-follower 2 --lag 5ms",
            {"kind": "slow_follower", "broker": 2, "lag_ms": 5.0},
            "fault 3: slow-follower, until purgatory fault end",
        ),
        (
            "shrink-isr orders 0 2",
            {"kind": "shrink_isr", "topic": "orders", "partition": 0, "broker": 2},
            "fault 3: shrink-isr, until purgatory fault end",
        ),
        (
            "kill 1 --for 500ms",
            {"kind": "kill", "broker": 1, "for_s": 0.5},
            "fault 3: kill, for 500ms",
        ),
        ("pause 1", {"kind": "pause", "broker": 1}, "fault 3: pause, until purgatory fault end"),
        ("cut-link 1 2", {"kind": "cut_link", "a": 1, "b": 2}, "fault 3: cut-link, until"),
        (
            "lose-responses 1 --count 2 --api produce",
            {"kind": "lose_responses", "broker": 1, "count": 2, "api": "produce"},
            "fault 3: lose-responses, 2 times\n",
        ),
        (
            "lose-responses 1 --count 2 --for 1s",
            {"kind": "lose_responses", "broker": 1, "count": 2, "for_s": 1.0},
            "fault 3: lose-responses, 2 times, or for 1s\n",
        ),
        (
            "lose-responses 1 --keep-connection",
            {"kind": "lose_responses", "broker": 1, "cut": False},
            "fault 3: lose-responses, until purgatory fault end",
        ),
        (
            "delay-responses 1 --delay 20ms --api fetch",
            {"kind": "delay_responses", "broker": 1, "api": "fetch", "by_ms": 20.0},
            "fault 3: delay-responses, until purgatory fault end",
        ),
        (
            "duplicate-responses 1",
            {"kind": "duplicate_responses", "broker": 1},
            "fault 3: duplicate-responses, until purgatory fault end",
        ),
        (
            "refuse-produces 1 --count 1",
            {"kind": "refuse_produces", "broker": 1, "count": 1},
            "fault 3: refuse-produces, once\n",
        ),
        ("cut-connections", {"kind": "cut_connections"}, "2 connections were cut"),
        ("cut-connections 1", {"kind": "cut_connections", "broker": 1}, "2 connections were cut"),
    ],
)
def test_fault_is_requested_as_typed(
    typed: str, sent: dict[str, Any], said: str, asked: Asked
) -> None:
    ran = CliRunner().invoke(program, ["fault", *typed.split()])
    assert (ran.exit_code, asked) == (0, [("POST", "/faults", sent)]), ran.output
    assert ran.output.startswith(said)


@pytest.mark.parametrize(
    "typed",
    [
        "fault --control 127.0.0.1:1 lose-responses 1",
        "fault lose-responses 1 --control 127.0.0.1:1",
        "requests list --control http://127.0.0.1:1/",
        "wait caught-up billing --control 127.0.0.1:1",
        "move leader orders 0 2 --token secret --control 127.0.0.1:1",
        "brokers add --control 127.0.0.1:1",
    ],
)
def test_control_stands_before_or_behind_the_command(typed: str) -> None:
    ran = CliRunner().invoke(program, typed.split())
    assert ran.exit_code == 2
    assert "no control responds at http://127.0.0.1:1:" in ran.stderr


@pytest.mark.parametrize("former", FORMER_KINDS)
def test_former_commands_exit_with_the_present_name(former: str) -> None:
    name, present = (kind.replace("_", "-") for kind in (former, FORMER_KINDS[former]))
    ran = CliRunner().invoke(program, ["fault", name, "1", "--count", "1"])
    assert ran.exit_code == 2
    assert f"purgatory fault: the fault {name} is gone; use {present}" in ran.stderr
    assert name not in CliRunner().invoke(program, ["fault", "--help"]).output


def test_each_kind_has_a_command() -> None:
    shown = CliRunner().invoke(program, ["fault", "--help"]).output
    assert [kind for kind in KINDS if kind.replace("_", "-") not in shown] == []


@pytest.mark.parametrize(
    ("typed", "right"),
    [
        ("cut-link 1 1", "brokers 1 and 1 are the same one"),
        ("lose-responses 1 --count 0", "not in the range x>=1"),
        ("stall-follower 1 --for 0s", "must be at least 1ms"),
        ("stall-follower 1 --for 10", "give a number and its unit"),
        ("stall-follower", "Missing argument"),
        ("slow-follower 1", "Missing option"),
        ("explode 1", "No such command"),
    ],
)
def test_invalid_fault_is_not_requested(typed: str, right: str, asked: Asked) -> None:
    ran = CliRunner().invoke(program, ["fault", *typed.split()])
    assert (ran.exit_code, asked) == (2, [])
    assert right in ran.output
    assert "Traceback" not in ran.output
