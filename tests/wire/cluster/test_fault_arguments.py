"""Faults asked for in all ways: it is the same fault each time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from purgatory.cli import fault_command
from purgatory.cli.main import program
from purgatory.cluster import ClusterConfig, Control, Faults, ThreadedCluster
from purgatory.cluster.control.control import available_faults
from purgatory.cluster.fault_plan import load_fault_plan
from purgatory.kafka.faults import (
    DelayResponses,
    Fault,
    FreezeMetadata,
    JumpClock,
    LoadCoordinator,
    LowerLeaderEpochs,
    ReturnError,
    SlowResponses,
    Throttle,
    TruncateResponses,
    parse_fault,
)


class Asked(NamedTuple):
    """A fault, and how it is asked for: from Python, on the command line, and as JSON or TOML."""

    fault: Fault
    called: Callable[[Any], Any]
    typed: str
    sent: dict[str, Any]


ASKED = [
    Asked(
        ReturnError(api="Fetch", errors=("NOT_LEADER_OR_FOLLOWER", None, "REQUEST_TIMED_OUT")),
        lambda fault: fault.return_error(
            api="Fetch", errors=["NOT_LEADER_OR_FOLLOWER", None, "REQUEST_TIMED_OUT"]
        ),
        "return-error --api Fetch --errors NOT_LEADER_OR_FOLLOWER,none,REQUEST_TIMED_OUT",
        {"api": "Fetch", "errors": ["NOT_LEADER_OR_FOLLOWER", "none", "REQUEST_TIMED_OUT"]},
    ),
    Asked(
        ReturnError(api="Produce", error="NOT_LEADER_OR_FOLLOWER", topic="orders", count=3),
        lambda fault: fault.return_error(
            api="Produce", error="NOT_LEADER_OR_FOLLOWER", topic="orders", count=3
        ),
        "return-error --api Produce --error NOT_LEADER_OR_FOLLOWER --topic orders --count 3",
        {"api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "topic": "orders", "count": 3},
    ),
    Asked(
        ReturnError(
            1,
            client_id="c",
            error="REQUEST_TIMED_OUT",
            partition=2,
            transactional_id="t",
            after=True,
            for_s=62,
        ),
        lambda fault: fault.return_error(
            1,
            client_id="c",
            error="REQUEST_TIMED_OUT",
            partition=2,
            transactional_id="t",
            after=True,
            for_s=62,
        ),
        "return-error 1 --client-id c --error REQUEST_TIMED_OUT --partition 2 --transactional-id t "
        "--after --for 62s",
        {
            "broker": 1,
            "client_id": "c",
            "error": "REQUEST_TIMED_OUT",
            "partition": 2,
            "transactional_id": "t",
            "after": True,
            "for_s": 62,
        },
    ),
    Asked(
        LoadCoordinator(2, group_id="g", for_s=60.5),
        lambda fault: fault.load_coordinator(2, group_id="g", for_s=60.5),
        "load-coordinator 2 --group g --for 60500ms",
        {"broker": 2, "group_id": "g", "for_s": 60.5},
    ),
    Asked(
        Throttle(api="fetch", throttle_ms=250),
        lambda fault: fault.throttle(api="fetch", throttle_ms=250),
        "throttle --api fetch --throttle 250ms",
        {"api": "fetch", "throttle_ms": 250},
    ),
    Asked(
        LowerLeaderEpochs(epochs=2, topic="orders"),
        lambda fault: fault.lower_leader_epochs(epochs=2, topic="orders"),
        "lower-leader-epochs --epochs 2 --topic orders",
        {"epochs": 2, "topic": "orders"},
    ),
    Asked(
        DelayResponses(by_ms=5, distribution="uniform", to_ms=20.5, seed=7),
        lambda fault: fault.delay_responses(by_ms=5, distribution="uniform", to_ms=20.5, seed=7),
        "delay-responses --delay 5ms --distribution uniform --delay-to 20500us --seed 7",
        {"by_ms": 5, "distribution": "uniform", "to_ms": 20.5, "seed": 7},
    ),
    Asked(
        DelayResponses(by_ms=5, distribution="lognormal", p75_ms=20),
        lambda fault: fault.delay_responses(by_ms=5, distribution="lognormal", p75_ms=20),
        "delay-responses --delay 5ms --distribution lognormal --delay-p75 20ms",
        {"by_ms": 5, "distribution": "lognormal", "p75_ms": 20},
    ),
    Asked(
        TruncateResponses(1, 1, keep_bytes=9),
        lambda fault: fault.truncate_responses(1, 1, keep_bytes=9),
        "truncate-responses 1 --count 1 --keep-bytes 9",
        {"broker": 1, "count": 1, "keep_bytes": 9},
    ),
    Asked(
        SlowResponses(bytes_per_s=100, share=0.5),
        lambda fault: fault.slow_responses(bytes_per_s=100, share=0.5),
        "slow-responses --rate 100 --share 0.5",
        {"bytes_per_s": 100, "share": 0.5},
    ),
    Asked(
        FreezeMetadata(2),
        lambda fault: fault.freeze_metadata(2),
        "freeze-metadata 2",
        {"broker": 2},
    ),
    Asked(
        JumpClock(1, -90_000),
        lambda fault: fault.jump_clock(1, -90_000),
        "jump-clock 1 --jump -90s",
        {"broker": 1, "jump_ms": -90_000},
    ),
]
_TYPES = [pytest.param(one, id=one.typed.split(" --")[0]) for one in ASKED]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    """Two brokers."""
    with ThreadedCluster(ClusterConfig(brokers=2)) as running:
        yield running


@pytest.mark.parametrize("asked", _TYPES)
def test_python_methods_make_each_fault(asked: Asked, cluster: ThreadedCluster) -> None:
    with asked.called(cluster.fault):
        [begun] = cluster.running.fault.active
        assert begun.fault == asked.fault
    faults: Faults = cluster.running.fault
    begun = cluster.call(lambda: asked.called(faults))
    assert begun.fault == asked.fault
    cluster.call(begun.end)


@pytest.mark.parametrize("asked", _TYPES)
def test_commands_post_each_fault(asked: Asked, cluster: ThreadedCluster) -> None:
    control = Control(cluster.running)
    cluster.call(control.start)
    try:
        where = ["fault", "--control", control.url]
        ran = CliRunner().invoke(program, [*where, *asked.typed.split()])
        assert ran.exit_code == 0, ran.output
        [begun] = cluster.running.fault.active
        assert begun.fault == asked.fault
        assert CliRunner().invoke(program, [*where, "end", str(begun.number)]).exit_code == 0
        assert cluster.running.fault.active == []
    finally:
        cluster.call(control.stop)


@pytest.mark.parametrize("asked", _TYPES)
def test_json_and_plans_make_each_fault(asked: Asked, tmp_path: Path) -> None:
    sent = {"kind": asked.fault.kind, **asked.sent}
    assert parse_fault(json.loads(json.dumps(sent))) == asked.fault
    lines = [f"{name} = {json.dumps(value)}" for name, value in sent.items()]
    plan = tmp_path / "plan.toml"
    plan.write_text("\n".join(["[[faults]]", "at_s = 0", *lines]))
    assert [one.fault for one in load_fault_plan(plan)] == [asked.fault]


def test_page_shows_each_fault() -> None:
    offered = available_faults({"brokers": [{"id": 1, "alive": True}]})
    assert {one.fault.kind for one in ASKED} <= {one.kind for one in offered}


@pytest.mark.parametrize(
    ("typed", "right"),
    [
        ("return-error --api Produce", "error or errors: one of them"),
        ("return-error --error NOT_LEADER", "the nearest are NOT_LEADER_OR_FOLLOWER"),
        ("return-error --error NONE", "is not an error"),
        ("delay-responses --delay 5ms --distribution gauss", "is not one of"),
        ("delay-responses --delay 5ms --distribution uniform", "it takes to_ms"),
        ("delay-responses --delay 5ms --delay-to 4ms", "that is for distribution='uniform'"),
        ("jump-clock 1", "Missing option"),
        ("jump-clock 1 --jump 5", "give a number and its unit"),
        ("jump-clock 1 --jump --5s", "give a number and its unit"),
        ("throttle --throttle 500us", "must be at least 1ms"),
        ("slow-responses --rate 0", "not in the range x>=1"),
        ("truncate-responses --keep-bytes -1", "not in the range x>=0"),
    ],
)
def test_invalid_arguments_are_reported(
    typed: str, right: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fault_command, "_request", lambda *_: pytest.fail("it was asked for"))
    ran = CliRunner().invoke(program, ["fault", *typed.split()])
    assert ran.exit_code == 2
    assert right in " ".join(re.sub("[│\n]", " ", ran.output).split())
    assert "Traceback" not in ran.output
