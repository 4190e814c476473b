"""What a test pays on a cluster of ours, and on a real Kafka: start, stop, memory, twenty tests.

    python -m tests.benchmarks.engines_cost 4.3.1     # a version, or the folder of a Kafka

Each figure is of one cluster at a time. The processor is that of this process and of the brokers',
which says more than the time where the machine does other work, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from purgatory.cluster import ClusterConfig, ThreadedCluster
from purgatory.real_kafka import KafkaFiles, ThreadedRealKafka, find_kafka

TESTS = 20
_BROKERS = (1, 3)
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


def _memory_mb(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * _PAGE_KB // 1024


def _processor_s() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


Cluster = ThreadedCluster | ThreadedRealKafka


def _start_and_stop(new: Callable[[], Cluster]) -> str:
    """Start and stop a cluster, and return the figures in words."""
    own_mb, processor_s, began_s = _memory_mb(os.getpid()), _processor_s(), time.monotonic()
    cluster = new()
    cluster.start()
    start_s = time.monotonic() - began_s
    if isinstance(cluster, ThreadedRealKafka):
        kafka = cluster.running
        processes = [kafka.pid(broker) for broker in kafka.brokers]
        memory_mb = sum(_memory_mb(process) for process in processes if process is not None)
    else:
        memory_mb = _memory_mb(os.getpid()) - own_mb
    began_s = time.monotonic()
    cluster.stop()
    stop_s = time.monotonic() - began_s
    processor_s = _processor_s() - processor_s
    return (
        f"start {start_s:.2f} s, stop {stop_s:.2f} s, processor {processor_s:.1f} s, {memory_mb} MB"
    )


def _suite(brokers: int, options: Sequence[str]) -> str:
    """Run a suite, and return the figures in words."""
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
        raise click.ClickException(done.stdout[-2_000:] + done.stderr[-1_000:])
    return f"{took_s:.1f} s, processor {_processor_s() - processor_s:.1f} s"


def _engines(files: KafkaFiles, brokers: int) -> dict[str, Callable[[], Cluster]]:
    config = ClusterConfig(brokers=brokers)
    return {
        "ours": lambda: ThreadedCluster(config),
        f"Kafka {files.version}": lambda: ThreadedRealKafka(files, config),
    }


@click.command()
@click.argument("kafka")
def main(kafka: str) -> None:
    """Measure both engines."""
    files = find_kafka(kafka)
    click.echo(f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    for brokers in _BROKERS:
        for name, new in _engines(files, brokers).items():
            click.echo(f"{name}, {brokers} brokers: {_start_and_stop(new)}")
            options = [] if name == "ours" else [f"--kafka={files.jars}"]
            click.echo(f"{name}, {brokers} brokers, {TESTS} tests: {_suite(brokers, options)}")


if __name__ == "__main__":
    main()
