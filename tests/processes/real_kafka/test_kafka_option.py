"""pytest with ``--kafka``: the same tests on a real Kafka, and what it says where there is none."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

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
    os.kill(os.getpid(), signal.SIGKILL)
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


@pytest.mark.exhaustive  # as all tests that start a real Kafka
@pytest.mark.timeout(900)
def test_killed_pytest_leaves_no_java(kafka_files: KafkaFiles, tmp_path: Path) -> None:
    status, said = run_pytest(tmp_path, f"--kafka={kafka_files.jars}", "-vs", text=_TESTS)
    assert status == -signal.SIGKILL, said
    assert (said.count("PASSED"), said.count("SKIPPED")) == (2, 1)
    (broker,) = map(int, re.findall(r"broker (\d+)", said))
    ends_s = time.monotonic() + _ENDS_S
    while is_running(broker) and time.monotonic() < ends_s:
        time.sleep(_LOOKS_S)
    assert not is_running(broker)


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
