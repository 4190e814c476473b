"""The command ``purgatory proxy`` as a process, and ``purgatory fault`` at it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from purgatory.cluster import ThreadedCluster
from tests.processes.cli.conftest import RunCommand
from tests.wire.cluster.confluent_client import ConfluentClient

_LISTEN = ["--listen", "127.0.0.1:0", "--control-port", "0"]


class Process:
    """A proxy, and what it printed at its start."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "purgatory", "proxy", *_LISTEN, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        printed = "".join(self.process.stdout.readline() for _ in range(3))
        (self.bootstrap_servers,) = re.findall(r"bootstrap.servers=(\S+)", printed)
        (self.control,) = re.findall(r"control: (http\S+)", printed)
        (self.page,) = re.findall(r"view: (http\S+)", printed)

    def fault(self, *arguments: str) -> list[str]:
        """Return the words of ``purgatory fault`` with this proxy's control."""
        return ["fault", "--control", self.control, *arguments]


@pytest.fixture(scope="module")
def process_of_module(cluster: ThreadedCluster) -> Iterator[Process]:
    """A proxy whose tests end no process, and leave no fault."""
    started = Process("--to", cluster.bootstrap_servers)
    yield started
    started.process.kill()
    started.process.communicate()


@pytest.fixture
def process(cluster: ThreadedCluster) -> Iterator[Process]:
    """A proxy of one test."""
    started = Process("--to", cluster.bootstrap_servers)
    yield started
    started.process.kill()
    started.process.communicate()


@pytest.mark.slow
def test_faults_are_injected_by_command(
    process_of_module: Process, topic: str, run_command: RunCommand
) -> None:
    process = process_of_module
    words = process.fault(
        *("return-error", "--api", "Produce", "--error", "NOT_LEADER_OR_FOLLOWER"),
        *("--topic", topic, "--count", "3"),
    )
    assert run_command(*words) == (0, "fault 1: return-error, 3 times\n", "")
    assert "api=produce" in run_command(*process.fault("list")).out
    ConfluentClient(process.bootstrap_servers).produce(topic, [b"one"])
    assert run_command(*process.fault("list")).out == "no fault is active\n"


@pytest.mark.slow
def test_requests_are_listed_and_waited_for_by_command(
    process_of_module: Process, topic: str, run_command: RunCommand
) -> None:
    control = ["--control", process_of_module.control]
    ConfluentClient(process_of_module.bootstrap_servers).produce(topic, [b"one"])
    selected = ["--api", "Produce", "--topic", topic]
    assert run_command("wait", *control, "requests", *selected).status == 0
    assert "Produce" in run_command("requests", *control, "list", *selected).out
    refused = run_command("wait", *control, "caught-up", "billing")
    assert (refused.status, "caught_up: not in a proxy: " in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (["kill", "1"], "kill: not in a proxy: "),
        (["revive", "1"], "revive: not in a proxy: "),
        (["pause", "7"], "there is no broker 7; there are 1, 2, 3"),
    ],
)
def test_unsupported_fault_is_reported_in_one_line(
    process_of_module: Process, run_command: RunCommand, arguments: list[str], instead: str
) -> None:
    refused = run_command(*process_of_module.fault(*arguments))
    assert (refused.status, refused.out) == (2, "")
    assert instead in refused.err
    assert refused.err.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_command_ends_quietly_on_a_signal(process: Process, number: int) -> None:
    process.process.send_signal(number)
    out, err = process.process.communicate(timeout=30)
    assert (process.process.returncode, out) == (0, "")
    assert "Traceback" not in err


def test_the_page_is_served(process_of_module: Process) -> None:
    process = process_of_module
    with urlopen(process.page) as response:
        assert b"<title>Purgatories</title>" in response.read()
    assert process.page == f"{process.control}/"


def test_a_plan_is_followed(
    cluster: ThreadedCluster, tmp_path: Path, run_command: RunCommand
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('[[faults]]\nat_s = 0\nkind = "lose_responses"\napi = "Produce"\n')
    planned = Process("--to", cluster.bootstrap_servers, "--faults", str(plan))
    try:
        assert "lose_responses" in run_command(*planned.fault("list")).out
    finally:
        planned.process.kill()
        planned.process.communicate()


@pytest.mark.slow
def test_invalid_arguments_are_reported_in_one_line(
    cluster: ThreadedCluster, run_command: RunCommand
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        used, unused = taken.getsockname()[1], closed.getsockname()[1]
        for arguments, said in [
            (["--to", f"127.0.0.1:{unused}"], f"127.0.0.1:{unused} (Connection refused)"),
            (["--to", "kafka"], "'kafka' is not an address, such as kafka-1:9092"),
            (["--to", cluster.bootstrap_servers, "--listen", f"127.0.0.1:{used}"], "in use"),
            (["--to", "a:1", "--listen", "9092"], "'9092' is not an address"),
            (["--to", "a:1", "--listen", "0.0.0.0:0"], "advertised_host"),
            (["--to", "a:1", "--advertised-host", ""], "advertised_host='': the name or address"),
            (["--to", "a:1", "--advertised-host", "abc:9092"], "of a host, without a port"),
            (["--to", "a:1", "--to-ca", "ca.pem"], "--to-ca without --to-tls"),
            (["--to", "a:1", "--tls-key", "key.pem"], "--tls-key without --tls-cert"),
        ]:
            ran = run_command("proxy", "--listen", "127.0.0.1:0", "--control-port", "0", *arguments)
            assert (ran.status, ran.out) == (2, ""), arguments
            assert ran.err.startswith("purgatory proxy: "), ran.err
            assert said in ran.err
            assert ran.err.count("\n") == 1
