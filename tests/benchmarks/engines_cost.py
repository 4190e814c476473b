"""The cost of tests on a cluster of ours, and on a real Kafka: start, stop, memory, twenty tests.

Each figure is of one cluster at a time. The processor is that of this process and of the brokers',
which says more than the time where the machine does other work, too. Without Java 17 or Maven there
are the figures of ours alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from purgatory.cluster import ClusterConfig, ClusterError, ThreadedCluster
from purgatory.real_kafka import KafkaFiles, ThreadedRealKafka, find_kafka
from tests.benchmarks.measurement import Figure, Size, run_alone, say

TESTS = 20
_KAFKA = "4.3.1"
_START_TARGETS_S = {1: 6.0, 3: 15.0}
"""The longest start of a real Kafka, by its number of brokers."""
_OUR_START_TARGET_S = 0.05
_PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024

_SUITE = """
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from purgatory.cluster import ClusterConfig


@pytest.fixture(scope="session")
def kafka_session_config():
    return ClusterConfig(brokers={brokers})


@pytest.mark.parametrize("number", range({tests}))
def test_order_arrives(kafka_session_cluster, kafka_name, number):
    servers, topic = kafka_session_cluster.bootstrap_servers, kafka_name("orders")
    kafka_session_cluster.create_topic(topic)
    producer = Producer({{"bootstrap.servers": servers, "acks": "all"}})
    with kafka_session_cluster.fault.lose_responses(api="Produce", count=1):
        producer.produce(topic, b"a book")
        assert producer.flush(60) == 0
    consumer = Consumer({{"bootstrap.servers": servers, "group.id": topic}})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(60).value() == b"a book"
    consumer.close()
"""


def memory_mb(process: int) -> int:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * _PAGE_KB // 1024


def _processor_s() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


Cluster = ThreadedCluster | ThreadedRealKafka


def _start_and_stop(name: str, new: Callable[[], Cluster], target_s: float | None) -> list[Figure]:
    own_mb, processor_s, began_s = memory_mb(os.getpid()), _processor_s(), time.monotonic()
    cluster = new()
    cluster.start()
    start_s = time.monotonic() - began_s
    if isinstance(cluster, ThreadedRealKafka):
        kafka = cluster.running
        processes = [kafka.pid(broker) for broker in kafka.brokers]
        used_mb = sum(memory_mb(process) for process in processes if process is not None)
    else:
        used_mb = memory_mb(os.getpid()) - own_mb
    began_s = time.monotonic()
    cluster.stop()
    stop_s = time.monotonic() - began_s
    return [
        Figure(f"{name}: start", start_s, "s", target_s),
        Figure(f"{name}: stop", stop_s, "s"),
        Figure(f"{name}: processor of both", _processor_s() - processor_s, "s"),
        Figure(f"{name}: memory", used_mb, "MB"),
    ]


def _suite(name: str, brokers: int, options: Sequence[str]) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "test_orders.py"
        file.write_text(_SUITE.format(brokers=brokers, tests=TESTS), encoding="utf-8")
        processor_s, began_s = _processor_s(), time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        done = subprocess.run(
            [*command, str(file)], cwd=folder, capture_output=True, text=True, check=False
        )
        took_s = time.monotonic() - began_s
    if done.returncode:
        raise RuntimeError(done.stdout[-2_000:] + done.stderr[-1_000:])
    return [
        Figure(f"{name}: {TESTS} tests", took_s, "s"),
        Figure(f"{name}: processor of {TESTS} tests", _processor_s() - processor_s, "s"),
    ]


def _find_kafka() -> KafkaFiles | None:
    try:
        return find_kafka(_KAFKA)
    except ClusterError as error:
        say(f"without a real Kafka: {error}")
        return None


def measure(size: Size = Size.USUAL) -> list[Figure]:
    """Measure both engines."""
    files = None if size is Size.SMALL else _find_kafka()
    say(f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    figures = []
    for brokers, target_s in list(_START_TARGETS_S.items())[: size.pick(1, 2)]:
        config = ClusterConfig(brokers=brokers)
        ours = f"ours, {brokers} brokers"
        figures += _start_and_stop(ours, partial(ThreadedCluster, config), _OUR_START_TARGET_S)
        if size is not Size.SMALL:
            figures += _suite(ours, brokers, [])
        if files is not None:
            real = f"Kafka {_KAFKA}, {brokers} brokers"
            figures += _start_and_stop(real, partial(ThreadedRealKafka, files, config), target_s)
            figures += _suite(real, brokers, [f"--kafka={files.jars}"])
    return figures


if __name__ == "__main__":
    run_alone(measure)
