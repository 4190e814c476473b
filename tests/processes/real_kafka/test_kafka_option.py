"""pytest with ``--kafka``: the same tests on a real Kafka, and what it says where there is none."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from purgatory.real_kafka import KafkaFiles
from tests.processes.cli.conftest import RunCommand
from tests.world.virtual.pytest_run import run_pytest

_TESTS = """
import os
import signal

import pytest
from confluent_kafka import Producer

from purgatory.cluster import ClusterConfig


@pytest.fixture(scope="session")
def kafka_session_config():
    return ClusterConfig(brokers=1)


def test_response_is_lost_once(kafka_session_cluster, kafka_name):
    kafka_session_cluster.create_topic(kafka_name("orders"), partitions=1)
    producer = Producer({"bootstrap.servers": kafka_session_cluster.bootstrap_servers})
    with kafka_session_cluster.fault.lose_responses(api="Produce", count=1) as fault:
        producer.produce(kafka_name("orders"), b"one")
        assert producer.flush(60) == 0
    assert fault.uses == 1
    assert kafka_session_cluster.audit(expect=["once"]).count("duplicate") == 1
    found = {topic["name"]: topic for topic in kafka_session_cluster.state()["topics"]}
    assert found[kafka_name("orders")]["partitions"][0]["high_watermark"] == 2


def test_follower_is_stalled(kafka_session_cluster):
    with pytest.raises(pytest.skip.Exception, match="stall_follower: not with a real Kafka: its"):
        kafka_session_cluster.fault.stall_follower(1)


def test_time_is_virtual(world):
    pass


def test_pytest_is_killed(kafka_session_cluster):
    kafka = kafka_session_cluster.running
    print("broker", kafka_session_cluster.call(lambda: kafka.pid(1)), flush=True)
    os.kill(os.getpid(), signal.Signals[os.environ["ENDED_BY"]])
    signal.pause()
"""

_LOOKS_S, _ENDS_S = 0.1, 30.0


def is_running(process: int) -> bool:
    """Whether a process is there."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    with suppress(OSError):  # one that has ended, for which nobody has waited
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    return True


def assert_ends(process: int) -> None:
    """Assert that a process ends, soon."""
    ends_s = time.monotonic() + _ENDS_S
    while is_running(process) and time.monotonic() < ends_s:
        time.sleep(_LOOKS_S)
    assert not is_running(process)


@pytest.mark.exhaustive  # as all tests that start a real Kafka
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("ended_by", "status"),
    [("SIGKILL", -signal.SIGKILL), ("SIGINT", pytest.ExitCode.INTERRUPTED)],
)
def test_ended_pytest_leaves_no_java(
    kafka_files: KafkaFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ended_by: str,
    status: int,
) -> None:
    monkeypatch.setenv("ENDED_BY", ended_by)
    ended, said = run_pytest(tmp_path, f"--kafka={kafka_files.jars}", "-vs", text=_TESTS)
    assert ended == status, said
    assert (said.count("PASSED"), said.count("SKIPPED")) == (2, 1)
    (broker,) = map(int, re.findall(r"broker (\d+)", said))
    assert_ends(broker)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--kafka=nowhere",), "--kafka nowhere: neither a version, as 4.3.1, nor a folder"),
        (("--kafka=2.8.0",), "--kafka 2.8.0: too old: 4.0 or later is needed"),
        (("--kafka-strict",), "--kafka-strict without --kafka"),
    ],
)
def test_missing_kafka_ends_pytest_by_one_line(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    status, output = run_pytest(tmp_path, *options, text="def test_it():\n    pass\n")
    assert status == pytest.ExitCode.USAGE_ERROR
    (line,) = (line for line in output.splitlines() if line.strip())
    assert line.startswith(f"ERROR: {said}")


_STRICT = """
def test_time_is_virtual(world):
    pass
"""


@pytest.mark.slow
def test_strict_option_fails_what_only_ours_can_do(kafka_files: KafkaFiles, tmp_path: Path) -> None:
    options = (f"--kafka={kafka_files.jars}", "--kafka-strict")
    status, said = run_pytest(tmp_path, *options, text=_STRICT)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert re.search(r"^virtual time: not with a real Kafka", said, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--kafka", "nowhere"), "--kafka nowhere: neither a version"),
        (("--kafka", "4.3.1", "--metrics-port", "0"), "--metrics-port: not with --kafka"),
    ],
)
def test_cluster_command_without_a_kafka_is_one_line(
    run_command: RunCommand, words: tuple[str, ...], said: str
) -> None:
    ran = run_command("cluster", *words)
    assert ran.status == 2
    (line,) = ran.err.splitlines()
    assert line.startswith(f"purgatory cluster: {said}")


@pytest.mark.exhaustive
@pytest.mark.parametrize("ended_by", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_ended_cluster_command_leaves_no_java(
    kafka_files: KafkaFiles, tmp_path: Path, ended_by: str
) -> None:
    words = [sys.executable, "-m", "purgatory", "cluster", "--kafka", str(kafka_files.jars)]
    words += ["--brokers", "1", "--topic", "orders:2"]
    said = tmp_path / "said"
    with said.open("w") as output:
        cluster = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)
    try:
        servers = wait_for_line(cluster, said, r"(127\.0\.0\.1:\d+)")
        topics = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=30).topics
        assert len(topics["orders"].partitions) == 2
        brokers = java_processes(cluster.pid)
        assert brokers
        cluster.send_signal(signal.Signals[ended_by])
        status = cluster.wait(_ENDS_S)
    finally:
        cluster.kill()
        cluster.wait()
    assert status == (-signal.SIGKILL if ended_by == "SIGKILL" else 0)
    assert "Traceback" not in said.read_text()
    for broker in brokers:
        assert_ends(broker)


def wait_for_line(process: subprocess.Popen[bytes], output: Path, pattern: str) -> str:
    """Return what a command's output has for a pattern, once it is there."""
    ends_s = time.monotonic() + 120
    while time.monotonic() < ends_s and process.poll() is None:
        if found := re.search(pattern, output.read_text()):
            return found[1]
        time.sleep(_LOOKS_S)
    pytest.fail(f"the command said: {output.read_text()}")


def java_processes(parent: int) -> list[int]:
    """Return a process's children that run Java."""
    children = Path(f"/proc/{parent}/task").glob("*/children")
    found = [int(child) for listed in children for child in listed.read_text().split()]
    return [one for one in found if "java" in Path(f"/proc/{one}/cmdline").read_text()]
