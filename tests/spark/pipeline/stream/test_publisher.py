"""The rows that a cluster and a simulation publish of themselves."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from purgatory.cli.main import main
from purgatory.cluster import ClusterConfig, ClusterTrace, ThreadedCluster, TopicSpec
from purgatory.simulation import Simulation, apply_overrides, load_scenario
from purgatory.stream.publisher import RowPublisher, make_published_topics
from purgatory.trace.table_rows import ReadRow
from purgatory.trace.trace_tables import WithoutTopics

_PATIENCE_S = 30.0


def read_rows(
    bootstrap_servers: str,
    topic: str,
    most: int | None = None,
    client: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """All rows that a topic holds now, or the first so many."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"reader-of-{topic}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **(client or {}),
        }
    )
    rows: list[dict[str, Any]] = []
    ends: set[int | None] = set()
    partitions = len(consumer.list_topics(topic, 10).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    deadline = time.monotonic() + _PATIENCE_S
    while len(ends) < partitions and (most is None or len(rows) < most):
        assert time.monotonic() < deadline, f"{topic} was not read to its end"
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is not None:
            ends.add(message.partition())
        else:
            rows.append(json.loads(message.value() or b""))
    consumer.close()
    return rows


def write(
    bootstrap_servers: str, topic: str, records: int, client: Mapping[str, str] | None = None
) -> None:
    """Write so many records, acknowledged by all."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap_servers,
        "client.id": "shop",
        "log_level": 0,
    }
    producer = Producer({**settings, **(client or {})})
    for number in range(records):
        producer.produce(topic, f"value-{number}", f"key-{number % 7}")
    assert producer.flush(30) == 0


def test_cluster_publishes_no_events_of_its_own_topics() -> None:
    publisher = RowPublisher("live", run_id="r1", numbered_by="partition")
    trace = ClusterTrace(WithoutTopics(publisher, publisher.topics.values()))
    config = ClusterConfig(brokers=3, topics=[TopicSpec("orders", 2)])
    with ThreadedCluster(config, trace) as cluster:
        names = list(publisher.topics.values())
        cluster.call(lambda: make_published_topics(cluster.running, names))
        publisher.start(cluster.bootstrap_servers)
        write(cluster.bootstrap_servers, "orders", 100)
        read_rows_of_orders(cluster.bootstrap_servers)
        cluster.call(trace.close)
        published = publisher.close()
        sends = read_rows(cluster.bootstrap_servers, "live.sends")
        reads = read_rows(cluster.bootstrap_servers, "live.reads")
        operations = read_rows(cluster.bootstrap_servers, "live.operations")
    assert (published.failed, published.dropped) == (0, 0)
    assert published.delivered == len(sends) + len(reads) + len(operations)
    assert len(sends) == 100
    assert {(row["group"], row["topic"], row["outcome"]) for row in sends} == {
        ("shop", "orders", "ok")
    }
    assert {row["numbered_by"] for row in sends} == {"partition"}
    assert {row["value_id"] for row in reads} == {row["value_id"] for row in sends}
    assert {row["run_id"] for row in operations} == {"r1"}
    keys = {key for row in operations for key in row["watch_keys"]}
    assert {key.rpartition("-")[0] for key in keys if "(" not in key} >= {"orders"}
    assert not {key for key in keys for name in names if name in key}


def read_rows_of_orders(bootstrap_servers: str, records: int = 100) -> None:
    """Read the records, which are no JSON, so that there are reads."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "readers",
            "client.id": "readers",
        }
    )
    consumer.assign([TopicPartition("orders", number, 0) for number in range(2)])
    deadline, count = time.monotonic() + _PATIENCE_S, 0
    while count < records:
        assert time.monotonic() < deadline
        count += consumer.poll(1.0) is not None
    consumer.close()


def test_publisher_publishes_the_rows_of_a_trace(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    loaded = apply_overrides(load_scenario("steady"), duration_ms=500)
    with ThreadedCluster(ClusterConfig(brokers=1)) as cluster:
        publisher = RowPublisher("sim", run_id="r1", numbered_by="producer")
        names = list(publisher.topics.values())
        cluster.call(lambda: make_published_topics(cluster.running, names))
        publisher.start(cluster.bootstrap_servers)
        Simulation(loaded, trace_folder=tmp_path / "trace", publisher=publisher).run()
        published = publisher.close()
        assert (published.failed, published.dropped) == (0, 0)
        for table in ("operations", "sends", "reads"):
            rows = read_rows(cluster.bootstrap_servers, f"sim.{table}")
            written = pq.read_table(tmp_path / "trace" / table).to_pylist()
            strange = ("run_id", "started_us", "numbered_by")
            told = [{name: row[name] for name in row if name not in strange} for row in rows]
            wanted = [{name: row[name] for name in row if name != "run_id"} for row in written]
            assert sorted(map(repr, told)) == sorted(map(repr, wanted))


def test_rows_dropped_for_lack_of_room_are_counted() -> None:
    from purgatory.stream import publisher as row_publisher

    publisher = RowPublisher("live", run_id="r", numbered_by="partition")
    before, row_publisher.MOST_WAITING = row_publisher.MOST_WAITING, 2
    try:
        for _ in range(5):
            publisher.read(ReadRow("g", 1, 1, "t", 0, 0, 1, 1, True))
    finally:
        row_publisher.MOST_WAITING = before
    assert publisher.close().dropped == 5  # three for want of room, two that were never sent


def test_rows_after_the_end_are_not_counted_as_dropped() -> None:
    """A cluster takes the last rows itself, and so has more of them."""
    row = ReadRow("g", 1, 1, "orders", 0, 0, 1, 1, True)
    publisher = RowPublisher("live", run_id="r1", numbered_by="partition")
    config = ClusterConfig(brokers=1, topics=[TopicSpec("live.reads", 1)])
    with ThreadedCluster(config) as cluster:
        publisher.start(cluster.bootstrap_servers)
        publisher.read(row)
        assert publisher.close() == (1, 0, 0)
        publisher.read(row)
        assert publisher.close() == (1, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cluster", "--publish", "a b", "--port", "0"], "--publish 'a b' can't begin the name"),
    ],
)
def test_publishing_error_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_publishing_imports_no_spark() -> None:
    code = "import sys, purgatory.stream.publisher; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
