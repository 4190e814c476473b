"""The ranges of each micro-batch of a stream, planned against a real cluster without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from structlog.testing import capture_logs

from purgatory.cluster import ThreadedCluster
from purgatory.kafka import TopicPartition
from purgatory.source import BrokerError, DataLossError, OptionError
from purgatory.source import stream_reader as stream_reader_module
from purgatory.source.broker_client import BrokerClient
from purgatory.source.data_source import PurgatoryBatchReader
from purgatory.source.options import OffsetRange, OffsetsDocument, Subscription
from purgatory.source.stream_reader import PurgatoryStreamReader
from tests.spark.pipeline.source.topics import delete_before, numbered, options, write

ALL = ReadAllAvailable()


@contextmanager
def _reader(cluster: ThreadedCluster, **given: Any) -> Iterator[PurgatoryStreamReader]:
    reader = PurgatoryStreamReader(options(cluster.bootstrap_servers, given))
    try:
        yield reader
    finally:
        reader.stop()


def _begun(topic: str, *offsets: int) -> OffsetsDocument:
    return {topic: {str(number): offset for number, offset in enumerate(offsets)}}


def test_stream_begins_at_the_latest_offsets_by_default(
    cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic, 2)
    write(cluster.bootstrap_servers, topic, numbered(10, 2))
    with _reader(cluster, subscribe=topic) as reader:
        first = reader.initialOffset()
        assert first == _begun(topic, 5, 5)
        write(cluster.bootstrap_servers, topic, numbered(10, 2))
        # Asked again, it is the same; and the first batch, without a row, brings it into the
        # checkpoint, so that a query that stops early misses nothing.
        assert reader.initialOffset() == first
        assert reader.latestOffset(first, ALL) == first
        assert reader.latestOffset(first, ALL) == _begun(topic, 10, 10)


def test_replanned_first_batch_stays_empty_after_the_log_grew(
    cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic)
    with _reader(cluster, subscribe=topic) as reader:
        planned = reader.latestOffset(reader.initialOffset(), ALL)
    write(cluster.bootstrap_servers, topic, numbered(10))
    with _reader(cluster, subscribe=topic) as restarted:
        assert restarted.partitions(restarted.initialOffset(), planned) == []
        assert restarted.latestOffset(planned, ALL) == _begun(topic, 10)


def test_the_start_is_found_by_offsets_and_by_time(cluster: ThreadedCluster, topic: str) -> None:
    cluster.create_topic(topic, 3)
    write(cluster.bootstrap_servers, topic, numbered(30, 3))
    by_offset = f'{{"{topic}": {{"0": 4, "2": -1}}}}'
    with _reader(cluster, subscribe=topic, startingOffsets=by_offset) as reader:
        assert reader.initialOffset() == _begun(topic, 4, 0, 10)
    with _reader(cluster, subscribe=topic, startingTimestamp=1_028) as reader:
        # Records 28 and 29 are of that time or later; partition 0 has none.
        assert reader.initialOffset() == _begun(topic, 10, 9, 9)
    with (
        _reader(cluster, subscribe=topic, startingOffsets=f'{{"{topic}": {{"7": 0}}}}') as reader,
        pytest.raises(OptionError, match=f"partition 7 of topic '{topic}', which has 3"),
    ):
        reader.initialOffset()


def test_limit_is_shared_and_dropped_once_spark_lifts_it(
    cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic, 2)
    write(cluster.bootstrap_servers, topic, numbered(20, 2))
    with _reader(cluster, subscribe=topic, maxOffsetsPerTrigger=6) as reader:
        assert reader.getDefaultReadLimit() == ReadMaxRows(6)
        start = _begun(topic, 0, 0)
        assert reader.latestOffset(start, ReadMaxRows(6)) == _begun(topic, 3, 3)
        assert reader.latestOffset(start, ALL) == _begun(topic, 10, 10)
        assert reader.reportLatestOffset() == _begun(topic, 10, 10)


def test_each_partition_with_records_is_one_range(cluster: ThreadedCluster, topic: str) -> None:
    with _reader(cluster, subscribe=topic) as reader:
        ranges = reader.partitions(_begun(topic, 3, 5), _begun(topic, 7, 5, 2))
    assert ranges == [
        OffsetRange(TopicPartition(topic, 0), 3, 7),
        OffsetRange(TopicPartition(topic, 2), 0, 2),
    ]


def test_stream_reads_new_topics_from_their_beginning(cluster: ThreadedCluster, topic: str) -> None:
    cluster.create_topic(topic)
    with _reader(cluster, subscribePattern=f"{topic}.*") as reader:
        start = reader.initialOffset()
        assert start == _begun(topic, 0)
        cluster.call(lambda: cluster.running.controller.create_partitions(topic, 2))
        cluster.create_topic(f"{topic}-more")
        write(cluster.bootstrap_servers, topic, numbered(6, 2))
        write(cluster.bootstrap_servers, f"{topic}-more", numbered(4))
        reader.latestOffset(start, ALL)
        assert reader.latestOffset(start, ALL) == {
            topic: {"0": 3, "1": 3},
            f"{topic}-more": {"0": 4},
        }


def test_stream_waits_for_a_missing_topic(cluster: ThreadedCluster, topic: str) -> None:
    with _reader(cluster, subscribe=topic, startingOffsets="earliest") as reader:
        with capture_logs() as logs:
            assert reader.initialOffset() == {}
        assert [(line["event"], line["topic"]) for line in logs] == [("topic_missing", topic)]
        cluster.create_topic(topic)
        write(cluster.bootstrap_servers, topic, numbered(3))
        assert reader.latestOffset({}, ALL) == _begun(topic, 3)


def test_records_lost_to_retention_stop_the_query(cluster: ThreadedCluster, topic: str) -> None:
    cluster.create_topic(topic)
    write(cluster.bootstrap_servers, topic, numbered(20))
    delete_before(cluster, topic, 15)
    with (
        _reader(cluster, subscribe=topic) as reader,
        pytest.raises(DataLossError, match="offsets 10 to 14 are gone"),
    ):
        reader.latestOffset(_begun(topic, 10), ALL)


def test_a_new_partition_counts_from_its_first_offset(cluster: ThreadedCluster, topic: str) -> None:
    cluster.create_topic(topic)
    write(cluster.bootstrap_servers, topic, numbered(20))
    with _reader(cluster, subscribe=topic) as reader:
        assert reader.latestOffset({}, ReadMaxRows(8)) == _begun(topic, 8)
        delete_before(cluster, topic, 3)
        with pytest.raises(DataLossError, match="offsets 0 to 2 are gone"):
            reader.latestOffset({}, ALL)


def test_split_batch_has_the_whole_gap_in_its_first_range(
    cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic)
    write(cluster.bootstrap_servers, topic, numbered(21))
    delete_before(cluster, topic, 15)
    given = {"subscribe": topic, "startingOffsets": f'{{"{topic}": {{"0": 5}}}}'}
    given |= {"failOnDataLoss": "false", "minPartitions": "3"}
    ranges = PurgatoryBatchReader(options(cluster.bootstrap_servers, given)).partitions()
    assert [(one.start, one.end) for one in ranges] == [(5, 17), (17, 19), (19, 21)]
    given["endingOffsets"] = f'{{"{topic}": {{"0": 9}}}}'
    with capture_logs() as logs:
        (empty,) = PurgatoryBatchReader(options(cluster.bootstrap_servers, given)).partitions()
    assert (empty.start, empty.end) == (0, 0)
    assert [(line["event"], line["offsets"]) for line in logs] == [("records_lost", 4)]


def test_topic_deleted_during_planning_is_an_error_or_left_out(
    cluster: ThreadedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("purgatory.source.broker_client.GRACE_S", 0.5)
    gone, servers = f"{topic}-gone", cluster.bootstrap_servers
    cluster.create_topic(topic)
    write(servers, topic, numbered(3))
    partitions = BrokerClient.partitions

    def partitions_before(client: BrokerClient, subscription: Subscription) -> list[TopicPartition]:
        return sorted([*partitions(client, subscription), TopicPartition(gone, 0)])

    monkeypatch.setattr(BrokerClient, "partitions", partitions_before)
    given = {"subscribe": f"{topic},{gone}"}
    with pytest.raises(DataLossError, match=f"topic {gone} partition 0.* the topic was deleted"):
        PurgatoryBatchReader(options(servers, given)).partitions()
    given["failOnDataLoss"] = "false"
    assert PurgatoryBatchReader(options(servers, given)).partitions() == [
        OffsetRange(TopicPartition(topic, 0), 0, 3)
    ]


def test_internal_topics_are_read_by_name_and_not_by_pattern(cluster: ThreadedCluster) -> None:
    cluster.call(cluster.running.offsets_partitions)
    with _reader(cluster, subscribe="__consumer_offsets") as reader:
        assert list(reader.initialOffset()) == ["__consumer_offsets"]
    with _reader(cluster, subscribePattern=".*offsets") as reader:
        assert reader.initialOffset() == {}


def test_gap_is_planned_with_a_following_row(cluster: ThreadedCluster, topic: str) -> None:
    cluster.create_topic(topic)
    write(cluster.bootstrap_servers, topic, numbered(20))
    start = _begun(topic, 10)
    with _reader(cluster, subscribe=topic, failOnDataLoss=False) as reader:
        delete_before(cluster, topic, 15)
        assert reader.latestOffset(start, ReadMaxRows(2)) == _begun(topic, 17)
        delete_before(cluster, topic, 20)
        # A gap without a following record can't be marked: the stream waits for the next record.
        assert reader.latestOffset(start, ALL) == start
        write(cluster.bootstrap_servers, topic, numbered(1))
        assert reader.latestOffset(start, ALL) == _begun(topic, 21)


def test_deleted_or_recreated_topic_stops_the_query(
    cluster: ThreadedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader_module, "GRACE_S", 0.0)
    cluster.create_topic(topic)
    write(cluster.bootstrap_servers, topic, numbered(3))
    with _reader(cluster, subscribe=topic) as reader:
        with pytest.raises(DataLossError, match="read up to offset 9, but ends at 3"):
            reader.latestOffset(_begun(topic, 9), ALL)
        with pytest.raises(DataLossError, match="partition 1, read up to offset 4, is not among"):
            reader.latestOffset(_begun(topic, 3, 4), ALL)
    with _reader(cluster, subscribe=topic, failOnDataLoss=False) as reader:
        assert reader.latestOffset(_begun(topic, 9, 4), ALL) == _begun(topic, 3)


def _make_anew(cluster: ThreadedCluster, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_topics([topic])[topic].result()
    cluster.create_topic(topic)


def test_a_topic_recreated_with_as_many_records_stops_the_query(
    cluster: ThreadedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic(topic)
    write(cluster.bootstrap_servers, topic, numbered(3))
    with (
        _reader(cluster, subscribe=topic, startingOffsets="earliest") as reader,
        _reader(cluster, subscribe=topic, failOnDataLoss=False) as going_on,
    ):
        for one in (reader, going_on):
            assert one.latestOffset(_begun(topic, 0), ALL) == _begun(topic, 3)
        _make_anew(cluster, topic)
        write(cluster.bootstrap_servers, topic, numbered(5))
        with pytest.raises(DataLossError, match=f"topic {topic} was deleted and made anew"):
            reader.latestOffset(_begun(topic, 3), ALL)
        with capture_logs() as logs:
            assert going_on.latestOffset(_begun(topic, 3), ALL) == _begun(topic, 5)
            assert going_on.latestOffset(_begun(topic, 5), ALL) == _begun(topic, 5)
        assert [line["event"] for line in logs] == ["topic_recreated"]
        # With nothing to read, it is asked for now and then.
        monkeypatch.setattr(stream_reader_module, "_IDS_EVERY_S", 0.0)
        going_on.latestOffset(_begun(topic, 5), ALL)
        _make_anew(cluster, topic)
        write(cluster.bootstrap_servers, topic, numbered(5))
        with capture_logs() as logs:
            going_on.latestOffset(_begun(topic, 5), ALL)
        assert [line["event"] for line in logs] == ["topic_recreated"]


def test_available_now_reads_up_to_the_ends_at_its_start(
    cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic)
    write(cluster.bootstrap_servers, topic, numbered(10))
    with _reader(cluster, subscribe=topic, startingOffsets="earliest") as reader:
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        write(cluster.bootstrap_servers, topic, numbered(10))
        cluster.call(lambda: cluster.running.controller.create_partitions(topic, 2))
        half = reader.latestOffset(start, ReadMaxRows(6))
        assert half == _begun(topic, 6)
        end = reader.latestOffset(half, ReadMaxRows(6))
        assert end == _begun(topic, 10)
        assert reader.latestOffset(end, ReadMaxRows(6)) == end


def test_reader_is_sent_to_tasks_without_its_connections(
    cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic)
    with _reader(cluster, subscribe=topic) as reader:
        reader.initialOffset()
        sent = pickle.loads(pickle.dumps(reader))
        assert sent.initialOffset() == _begun(topic, 0)


def test_planning_waits_for_a_restarting_broker(cluster: ThreadedCluster, topic: str) -> None:
    cluster.create_topic(topic, replication=1)
    write(cluster.bootstrap_servers, topic, numbered(5))
    topic_partition = TopicPartition(topic, 0)
    leader = cluster.call(lambda: cluster.running.controller.state_of(topic_partition).leader)  # type: ignore[union-attr]
    with _reader(cluster, subscribe=topic) as reader:
        cluster.fault.kill(leader, for_s=0.5)
        assert reader.latestOffset(_begun(topic, 0), ALL) == _begun(topic, 5)


def test_unresponsive_brokers_are_given_up_with_the_reason() -> None:
    given = {"subscribe": "a", "kafkaConsumer__pollTimeoutMs": 300}
    reader = PurgatoryStreamReader(options("127.0.0.1:1", given))
    with pytest.raises(BrokerError, match=r"brokers at 127\.0\.0\.1:1: gave up after 0\.3 s"):
        reader.initialOffset()
    reader.stop()
