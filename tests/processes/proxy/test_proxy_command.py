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
from tests.wire.cluster.confluent_client import ConfluentClient

COMMAND = [sys.executable, "-m", "purgatory"]


class Process:
    """A proxy, and what it printed at its start."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "proxy", *arguments, "--listen", "127.0.0.1:0", "--control-port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        printed = "".join(self.process.stdout.readline() for _ in range(3))
        (self.bootstrap_servers,) = re.findall(r"bootstrap.servers=(\S+)", printed)
        (self.control,) = re.findall(r"control: (http\S+)", printed)
        (self.page,) = re.findall(r"view: (http\S+)", printed)

    def fault(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``purgatory fault`` with this proxy's control."""
        command = [*COMMAND, "fault", "--control", self.control, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def process(cluster: ThreadedCluster) -> Iterator[Process]:
    started = Process("--to", cluster.bootstrap_servers)
    yield started
    started.process.kill()
    started.process.communicate()


@pytest.mark.slow
def test_faults_are_injected_by_command(process: Process, topic: str) -> None:
    begun = process.fault(
        *("return-error", "--api", "Produce", "--error", "NOT_LEADER_OR_FOLLOWER"),
        *("--topic", topic, "--count", "3"),
    )
    assert (begun.stdout, begun.stderr) == ("fault 1: return-error, 3 times\n", "")
    assert "api=produce" in process.fault("list").stdout
    ConfluentClient(process.bootstrap_servers).produce(topic, [b"one"])
    assert process.fault("list").stdout == "no fault is active\n"


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (["kill", "1"], "kill: not in a proxy: "),
        (["revive", "1"], "revive: not in a proxy: "),
        (["pause", "7"], "there is no broker 7; there are 1, 2, 3"),
    ],
)
def test_unsupported_fault_is_reported_in_one_line(
    process: Process, arguments: list[str], instead: str
) -> None:
    refused = process.fault(*arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert instead in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_command_ends_quietly_on_a_signal(process: Process, number: int) -> None:
    process.process.send_signal(number)
    out, err = process.process.communicate(timeout=30)
    assert (process.process.returncode, out) == (0, "")
    assert "Traceback" not in err


def test_the_page_is_served(process: Process) -> None:
    with urlopen(process.page) as response:
        assert b"<title>Purgatories</title>" in response.read()
    assert process.page == f"{process.control}/"


def test_a_plan_is_followed(cluster: ThreadedCluster, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('[[faults]]\nat_s = 0\nkind = "lose_responses"\napi = "Produce"\n')
    planned = Process("--to", cluster.bootstrap_servers, "--faults", str(plan))
    try:
        assert "lose_responses" in planned.fault("list").stdout
    finally:
        planned.process.kill()
        planned.process.communicate()


@pytest.mark.slow
def test_invalid_arguments_are_reported_in_one_line(cluster: ThreadedCluster) -> None:
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
            ran = subprocess.run(
                [*COMMAND, "proxy", "--listen", "127.0.0.1:0", "--control-port", "0", *arguments],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert (ran.returncode, ran.stdout) == (2, ""), arguments
            assert ran.stderr.startswith("purgatory proxy: "), ran.stderr
            assert said in ran.stderr
            assert ran.stderr.count("\n") == 1
