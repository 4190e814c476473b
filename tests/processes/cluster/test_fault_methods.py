"""The ways to ask for a fault: methods that mypy checks, a plan, the live view, and one list."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from purgatory.cluster import Faults
from purgatory.cluster.control.control import available_faults
from purgatory.cluster.fault_plan import load_fault_plan
from purgatory.cluster.threaded_cluster import ThreadedFaults
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import FORMER_KINDS, KINDS, Kill, StallFollower, parse_fault
from purgatory.kafka.faults.active_faults import fault_text

ROOT = Path(__file__).parents[3]

_SNIPPET = """
from datetime import timedelta
from purgatory.cluster import Faults, ThreadedCluster, ThreadedFault

def on_a_thread(kafka_cluster: ThreadedCluster) -> None:
    with kafka_cluster.fault.lose_responses(broker=1, count=1, api="produce") as lost:
        fault: ThreadedFault = lost
    cut: int = kafka_cluster.fault.cut_connections()
    kafka_cluster.fault.lose_anwsers(broker=1)  # "ThreadedFaults" has no attribute "lose_anwsers"
    kafka_cluster.fault.lose_responses(brocker=1)  # Unexpected keyword argument "brocker"
    kafka_cluster.fault.stall_follower("1")  # incompatible type "str"; expected "int"
    kafka_cluster.fault.kill(1, 2.5)  # Too many positional arguments
    kafka_cluster.fault.slow_follower(1, timedelta(seconds=2), for_s=timedelta(minutes=1))
    kafka_cluster.fault.slow_follower(1, "2s")  # expected "float | timedelta"
    kafka_cluster.fault.throttle(throttle_ms=0.5)  # expected "int | timedelta"
    kafka_cluster.fault.slow_follower(1)  # Too few arguments

async def on_the_loop(faults: Faults) -> None:
    (await faults.kill(1, for_s=2.5)).end()
    (await faults.kill(1, for_s=timedelta(seconds=2.5))).end()
    with faults.pause(1) as fault:
        fault.use()
    faults.pauze(1)  # "Faults" has no attribute "pauze"
    faults.delay_responses(1)  # Missing named argument "by_ms"
    faults.return_error(api="Produce", error="NOT_LEADER_OR_FOLLOWER", topic="orders", count=3)
    faults.return_error(api="Produce", errors=[7])  # "int"; expected "str | None"
    faults.delay_responses(by_ms=1, distribution="gauss")  # incompatible type "Literal['gauss']"
"""


def test_mypy_refuses_unknown_faults_and_arguments(tmp_path: Path) -> None:
    snippet = tmp_path / "snippet.py"
    snippet.write_text(_SNIPPET)
    # Only the sources of the methods are read, so that it takes seconds without mypy's cache.
    names = ["__init__", "fault_injection", "threaded_cluster"]
    files = [ROOT / "purgatory" / "cluster" / f"{name}.py" for name in names]
    kafka = ROOT / "purgatory" / "kafka"
    files += sorted((kafka / "faults").glob("*.py"))
    files.append(ROOT / "purgatory" / "settings" / "typed_duration.py")
    options = ["--config-file=", "--cache-dir=/dev/null", "--follow-imports=skip"]
    command = [sys.executable, "-m", "mypy", *options, "--explicit-package-bases", str(snippet)]
    ran = subprocess.run(
        [*command, *map(str, files)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    errors = re.findall(r"snippet\.py:(\d+): error: (.*)", ran.stdout)
    lines = enumerate(_SNIPPET.splitlines(), 1)
    expected = [(str(number), line.split("  # ")[1]) for number, line in lines if "  # " in line]
    assert [number for number, _ in errors] == [number for number, _ in expected], ran.stdout
    for (_, error), (_, part) in zip(errors, expected, strict=True):
        assert part in error


@pytest.mark.parametrize("methods", [Faults, ThreadedFaults])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_each_kind_has_a_method_with_its_arguments(kind: Any, methods: type[Any]) -> None:
    arguments = set(inspect.signature(kind).parameters)
    assert set(inspect.signature(getattr(methods, kind.kind)).parameters) - {"self"} == arguments


@pytest.mark.parametrize("methods", [Faults, ThreadedFaults])
@pytest.mark.parametrize("former", FORMER_KINDS)
def test_former_kinds_raise_with_the_present_name(former: str, methods: type[Any]) -> None:
    present = FORMER_KINDS[former]
    with pytest.raises(AttributeError, match=rf"\.{former} is gone; use {present}$"):
        getattr(methods, former)
    with pytest.raises(ClusterError, match=f"^the fault {former} is gone; use {present}$"):
        parse_fault({"kind": former, "broker": 1, "count": 1})


def test_live_view_offers_faults_for_each_live_broker() -> None:
    state = {"brokers": [{"id": 1, "alive": False}, {"id": 2, "alive": True}]}
    assert [fault_text(fault) for fault in available_faults(state)] == [
        "stall follower 2 for 10 s",
        "kill 2 for 10 s",
        "pause 2 for 10 s",
        "lose responses 2 (1, produce)",
        "refuse produces 2 (1)",
        "return error 2 (3, produce, NOT_LEADER_OR_FOLLOWER)",
        "load coordinator 2 for 10 s",
        "freeze metadata 2 for 10 s",
        "lower leader epochs 2 for 10 s",
        "throttle 2 (1000 ms) for 10 s",
        "delay responses 2 (100 ms) for 10 s",
        "slow responses 2 (1000 bytes/s) for 10 s",
        "truncate responses 2 (1)",
        "jump clock 2 (3600000 ms) for 10 s",
        "cut connections 2",
    ]


def test_plan_accepts_each_kind_with_its_arguments(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        '[[faults]]\nat_s = 5\nkind = "stall_follower"\nbroker = 2\nfor_s = 10\nevery_s = 60\n'
        '[[faults]]\nat_s = 0.5\nkind = "kill"\nbroker = 1\n'
    )
    assert [(one.at_s, one.every_s, one.fault) for one in load_fault_plan(path)] == [
        (5, 60, StallFollower(2, for_s=10)),
        (0.5, None, Kill(1)),
    ]


@pytest.mark.parametrize(
    ("planned", "wrong"),
    [
        ('kind = "kil"', "faults.1: there is no fault 'kil'; did you mean \"kill\"?"),
        ('kind = "kill"\nbrokr = 1', "faults.1: kill: takes no 'brokr'; did you mean \"broker\"?"),
        ('kind = "explode"', "faults.1: there is no fault 'explode'; there are stall_follower,"),
        ("broker = 1", 'faults.1: a fault is an object with a "kind": stall_follower,'),
        ('kind = "kill"', "faults.1: kill: missing a required argument: 'broker'; it takes broker"),
        ('kind = "pause"\nbroker = 1\nfor_s = -1', "faults.1: for_s=-1: a number of seconds above"),
        ('kind = "kill"\nbroker = 1\nevery_s = 0', "faults.1.every_s: Input should be greater"),
    ],
)
def test_invalid_plan_is_refused_before_the_start(planned: str, wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    first = '[[faults]]\nat_s = 0\nkind = "pause"\nbroker = 1\n'
    path.write_text(f"{first}[[faults]]\nat_s = 1\n{planned}\n")
    with pytest.raises(ClusterError, match=re.escape(f"{path}: {wrong}")):
        load_fault_plan(path)
