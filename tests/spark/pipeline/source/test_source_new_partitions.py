"""Partitions that a topic gets while a stream runs: read from their beginning, nothing twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.sql import SparkSession

from purgatory.cluster import ThreadedCluster
from purgatory.source import DataLossError
from tests.spark.pipeline.source.micro_batches import MicroBatches
from tests.spark.pipeline.source.streams import ON_AND_ON, Stream
from tests.spark.pipeline.source.topics import Record, delete_before, numbered, offsets_of, write


def add_partitions(cluster: ThreadedCluster, topic: str, count: int) -> None:
    """Have the topic so many partitions, as its administrator does."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for response in admin.create_partitions([NewPartitions(topic, count)]).values():
        response.result()


def _check(rows: Iterable[Any], counts: list[int]) -> None:
    """Check that each partition has so many rows, in order, from its beginning."""
    rows = list(rows)
    for partition, count in enumerate(counts):
        assert offsets_of(rows, partition) == list(range(count))
    assert len(rows) == sum(counts)


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("restarts", [False, True])
def test_new_partitions_are_read_from_their_beginning(
    cluster: ThreadedCluster, topic: str, start: str, restarts: bool
) -> None:
    cluster.create_topic(topic)
    servers = cluster.bootstrap_servers
    with MicroBatches(servers, subscribe=topic, startingOffsets=start) as live:
        live.plan()
        written = 0
        for partitions in (1, 2, 5):
            if partitions > 1:
                add_partitions(cluster, topic, partitions)
            # Records written to a new partition before its discovery are read, too.
            write(servers, topic, numbered(60, partitions, start=written))
            written += 60
            for _ in range(3):
                if live.plan(limit=17) is not None:
                    if restarts:
                        # The planned batch has the new partitions in its end alone.
                        live.restart()
                    live.commit()
        live.run(limit=17)
    _check(live.rows, [60 + 30 + 12, 30 + 12, 12, 12, 12])
    assert sorted(int(row["value"]) for row in live.rows) == list(range(written))
    assert {row["gap_before"] for row in live.rows} == {None}


def test_stopped_stream_reads_partitions_added_meanwhile(
    cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic)
    servers = cluster.bootstrap_servers
    write(servers, topic, numbered(10))
    with MicroBatches(servers, subscribe=topic, startingOffsets="earliest") as live:
        live.run()
        add_partitions(cluster, topic, 3)
        write(servers, topic, numbered(30, 3))
        live.restart()
        live.run(limit=4)
    _check(live.rows, [20, 10, 10])


def test_empty_new_partition_is_read_later(cluster: ThreadedCluster, topic: str) -> None:
    cluster.create_topic(topic)
    servers = cluster.bootstrap_servers
    write(servers, topic, numbered(3))
    with MicroBatches(servers, subscribe=topic, startingOffsets="earliest") as live:
        live.run()
        add_partitions(cluster, topic, 2)
        live.run()
        assert live.position == {topic: {"0": 3, "1": 0}}
        write(servers, topic, [Record(b"first", 1)])
        live.run()
    _check(live.rows, [3, 1])


@pytest.mark.parametrize("fails", [True, False])
def test_retention_before_the_discovery_is_data_loss(
    cluster: ThreadedCluster, topic: str, fails: bool
) -> None:
    cluster.create_topic(topic)
    servers = cluster.bootstrap_servers
    with MicroBatches(
        servers, subscribe=topic, startingOffsets="earliest", failOnDataLoss=fails
    ) as live:
        live.run()
        add_partitions(cluster, topic, 2)
        write(servers, topic, [Record(b"v", 1)] * 8)
        delete_before(cluster, topic, 5, partition=1)
        if fails:
            with pytest.raises(DataLossError, match=f"{topic} partition 1: offsets 0 to 4 are"):
                live.run()
        else:
            live.run()
            assert [(row["offset"], row["gap_before"]) for row in live.rows] == [
                (5, 5),
                (6, None),
                (7, None),
            ]


def test_restarted_broker_without_new_partitions_is_no_data_loss(
    cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic, replication=3)
    servers = cluster.bootstrap_servers
    write(servers, topic, numbered(5))
    with MicroBatches(servers, subscribe=topic, startingOffsets="earliest") as live:
        live.run()
        with cluster.fault.kill(1):
            add_partitions(cluster, topic, 4)
            write(servers, topic, numbered(20, 4))
            live.run()
        live.run()
        write(servers, topic, numbered(20, 4))
        live.run()
    _check(live.rows, [15, 10, 10, 10])


@pytest.mark.spark
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_spark_reads_partitions_added_twice_while_records_come(
    spark: SparkSession, cluster: ThreadedCluster, topic: str, tmp_path: Path
) -> None:
    cluster.create_topic(topic)
    servers = cluster.bootstrap_servers
    live = Stream(
        spark,
        servers,
        tmp_path,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=50,
    )
    partitions, written = 1, [0]
    ended = threading.Event()

    def write_on() -> None:
        while not ended.is_set():
            write(servers, topic, numbered(10, partitions, start=written[0]))
            written[0] += 10
            time.sleep(0.2)

    writer = threading.Thread(target=write_on)
    query = live.start(ON_AND_ON)
    writer.start()
    try:
        for count in (1, 3, 6):
            if count > 1:
                add_partitions(cluster, topic, count)
                partitions = count
            batches, deadline_s = len(live.batches), time.monotonic() + 300
            while len(live.batches) < batches + 3:
                assert time.monotonic() < deadline_s
                assert query.exception() is None
                time.sleep(0.1)
            if count == 3:
                query.stop()
                query = live.start(ON_AND_ON)
    finally:
        ended.set()
        writer.join()
        query.stop()
    live.run()
    # A stopped query may have shown a batch that it did not commit: that comes again, the same.
    rows = [row for rows in dict(live.batches).values() for row in rows]
    assert sorted(int(row.value) for row in rows) == list(range(written[0]))
    for partition in range(6):
        offsets = offsets_of(rows, partition)
        assert offsets == list(range(len(offsets)))
        assert offsets
