"""`spark.readStream` of the format, from a real cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from purgatory.cluster import ThreadedCluster
from purgatory.kafka import TopicPartition
from tests.spark.pipeline.source.streams import ON_AND_ON, Stream
from tests.spark.pipeline.source.topics import Record, delete_before, numbered, offsets_of, write

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_restarted_stream_resumes_at_its_offsets(
    spark: SparkSession, cluster: ThreadedCluster, topic: str, tmp_path: Path
) -> None:
    cluster.create_topic(topic, 2)
    servers = cluster.bootstrap_servers
    write(servers, topic, numbered(100, 2))
    stream = Stream(
        spark,
        servers,
        tmp_path,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=40,
    )
    stream.run()
    assert [len(rows) for _, rows in stream.batches] == [40, 40, 20]
    write(servers, topic, numbered(50, 2, start=100))

    def fail(number: int) -> None:
        if number == 4:
            raise RuntimeError("the sink is down")

    stream.before_batch = fail
    with pytest.raises(StreamingQueryException, match="the sink is down"):
        stream.run()
    stream.before_batch = lambda _: None
    stream.run()
    # The batch that failed was planned: it comes again with the same rows.
    assert [(number, len(rows)) for number, rows in stream.batches[3:]] == [(3, 40), (4, 10)]
    for partition in (0, 1):
        assert offsets_of(stream.rows, partition) == list(range(75))
    assert sorted(int(row.value) for row in stream.rows) == list(range(150))
    last = sorted((tmp_path / "offsets").glob("[0-9]"))[-1].read_text().splitlines()[-1]
    assert json.loads(last) == {topic: {"0": 75, "1": 75}}


def test_stream_from_the_latest_offsets_misses_no_later_record(
    spark: SparkSession, cluster: ThreadedCluster, topic: str, tmp_path: Path
) -> None:
    cluster.create_topic(topic)
    servers = cluster.bootstrap_servers
    write(servers, topic, numbered(10))
    stream = Stream(spark, servers, tmp_path, subscribe=topic)

    def fail(_: int) -> None:
        raise RuntimeError("too early")

    stream.before_batch = fail
    with pytest.raises(StreamingQueryException, match="too early"):
        stream.run()
    write(servers, topic, numbered(5, start=10))
    stream.before_batch = lambda _: None
    stream.run()
    assert offsets_of(stream.rows) == list(range(10, 15))


def test_new_partitions_and_topics_come_into_a_running_query(
    spark: SparkSession, cluster: ThreadedCluster, topic: str, tmp_path: Path
) -> None:
    cluster.create_topic(topic)
    servers = cluster.bootstrap_servers
    write(servers, topic, numbered(4))
    stream = Stream(
        spark, servers, tmp_path, subscribePattern=f"{topic}.*", startingOffsets="earliest"
    )
    query = stream.start(ON_AND_ON)
    try:
        query.processAllAvailable()
        cluster.call(lambda: cluster.running.controller.create_partitions(topic, 3))
        write(servers, topic, [Record(b"new", 2)])
        cluster.create_topic(f"{topic}-more")
        write(servers, f"{topic}-more", [Record(b"more")])
        query.processAllAvailable()
    finally:
        query.stop()
    found = [(row.topic, row.partition, row.value) for row in stream.rows[4:]]
    assert sorted(found) == [(topic, 2, b"new"), (f"{topic}-more", 0, b"more")]


@pytest.mark.exhaustive  # by day without Spark, in its order of calls
def test_retention_stops_a_stream_or_leaves_a_marked_gap(
    spark: SparkSession, cluster: ThreadedCluster, topic: str, tmp_path: Path
) -> None:
    cluster.create_topic(topic)
    servers = cluster.bootstrap_servers
    write(servers, topic, numbered(10))
    asked = {"subscribe": topic, "startingOffsets": "earliest"}
    Stream(spark, servers, tmp_path, **asked).run()
    write(servers, topic, numbered(10, start=10))
    delete_before(cluster, topic, 14)
    with pytest.raises(StreamingQueryException, match="partition 0: offsets 10 to 13 are gone"):
        Stream(spark, servers, tmp_path, **asked).run()
    stream = Stream(spark, servers, tmp_path, **asked, failOnDataLoss=False)
    stream.run()
    assert [(row.offset, row.gap_before) for row in stream.rows[:2]] == [(14, 4), (15, None)]
    assert offsets_of(stream.rows) == list(range(14, 20))


@pytest.mark.parametrize("anew", [False, True])
def test_a_topic_deleted_under_a_query_stops_it(
    spark: SparkSession, cluster: ThreadedCluster, topic: str, tmp_path: Path, anew: bool
) -> None:
    cluster.create_topic(topic)
    servers = cluster.bootstrap_servers
    write(servers, topic, numbered(4))
    stream = Stream(spark, servers, tmp_path, subscribe=topic, startingOffsets="earliest")
    query = stream.start(ON_AND_ON)
    try:
        query.processAllAvailable()
        admin = AdminClient({"bootstrap.servers": servers})
        admin.delete_topics([topic])[topic].result()
        if anew:
            cluster.create_topic(topic)
            write(servers, topic, numbered(9))
        how = "was deleted and made anew" if anew else "partition 0, read up to offset 4, is not"
        with pytest.raises(StreamingQueryException, match=f"topic {topic} {how}"):
            query.awaitTermination(120)
    finally:
        query.stop()
    assert offsets_of(stream.rows) == list(range(4))


def test_stream_survives_a_broker_restart(
    spark: SparkSession, cluster: ThreadedCluster, topic: str, tmp_path: Path
) -> None:
    cluster.create_topic(topic, 2, replication=1)
    servers = cluster.bootstrap_servers
    write(servers, topic, numbered(200, 2))
    topic_partition = TopicPartition(topic, 0)
    leader = cluster.call(lambda: cluster.running.controller.state_of(topic_partition).leader)  # type: ignore[union-attr]
    stream = Stream(
        spark,
        servers,
        tmp_path,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=50,
    )

    def kill(number: int) -> None:
        if number == 1:
            cluster.fault.kill(leader, for_s=1)

    stream.before_batch = kill
    stream.run()
    assert [len(rows) for _, rows in stream.batches] == [50] * 4
    for partition in (0, 1):
        assert offsets_of(stream.rows, partition) == list(range(100))


def test_a_stream_refuses_an_option_of_batches(
    spark: SparkSession, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    stream = Stream(spark, cluster.bootstrap_servers, tmp_path, subscribe="a", minPartitions=4)
    with pytest.raises(StreamingQueryException, match="minPartitions is no option of a stream"):
        stream.run()
