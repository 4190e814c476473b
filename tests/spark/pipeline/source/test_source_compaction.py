"""A compacted topic: each remaining record is read, and each range ends.

Offsets without a record are no loss: brokers leave holes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from pyspark.sql import SparkSession

from purgatory.cluster import ThreadedCluster
from purgatory.kafka import TopicPartition
from purgatory.source.data_source import PurgatoryBatchReader
from purgatory.source.options import OffsetRange
from purgatory.source.partition_reader import PartitionReader
from tests.spark.pipeline.source.micro_batches import MicroBatches, Row
from tests.spark.pipeline.source.streams import Stream
from tests.spark.pipeline.source.topics import Record, offsets_of, options, write

KEYS = 7
_SEGMENTS = {"internal.segment.bytes": "1000", "delete.retention.ms": "0"}
_COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def keyed(start: int, end: int) -> list[Record]:
    """Return records with one of few keys each, whose values count."""
    return [Record(b"%d" % number, key=b"%d" % (number % KEYS)) for number in range(start, end)]


def latest(rows: Iterable[Any]) -> dict[bytes, bytes | None]:
    """Return the last value of each key."""
    return {row["key"]: row["value"] for row in rows}


def create(cluster: ThreadedCluster, topic: str, settings: Mapping[str, str]) -> None:
    """Create a topic of one partition with small segments."""
    cluster.create_topic(topic, replication=1, settings={**_SEGMENTS, **settings})


def write_singly(cluster: ThreadedCluster, topic: str, records: list[Record]) -> None:
    """Write each record in a batch of its own, so that whole batches are compacted away."""
    settings: dict[str, str | int] = {"linger.ms": 0, "batch.num.messages": 1}
    write(cluster.bootstrap_servers, topic, records, **settings)


def compact(cluster: ThreadedCluster) -> None:
    """Run the brokers' periodic work, which is due every five seconds."""

    async def maintain() -> None:
        for broker in cluster.running.brokers.values():
            broker.apply_retention(broker.now_ms())
            await broker.compact(broker.now_ms())

    cluster.call(maintain)


def alter(cluster: ThreadedCluster, topic: str, settings: Mapping[str, str]) -> None:
    """Change settings of a topic."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for response in admin.incremental_alter_configs([resource]).values():
        response.result()


def read(cluster: ThreadedCluster, topic: str, start: int, end: int, **given: Any) -> list[Row]:
    """Return the rows of one range."""
    asked = options(cluster.bootstrap_servers, {"subscribe": topic, **given})
    found = OffsetRange(TopicPartition(topic, 0), start, end)
    return [row for batch in PartitionReader(asked, found).batches() for row in batch.to_pylist()]


def read_all(reader: PurgatoryBatchReader, ranges: list[OffsetRange]) -> list[Row]:
    """Return the rows of a batch, in the order of its ranges."""
    return [row for one in ranges for batch in reader.read(one) for row in batch.to_pylist()]


def test_each_range_has_its_remaining_records_and_ends(
    cluster: ThreadedCluster, topic: str
) -> None:
    create(cluster, topic, _COMPACTED)
    # Two keys are written once: their records stay amid those that go.
    once = [Record(b"once", key=b"first"), Record(b"once", key=b"second")]
    write_singly(
        cluster,
        topic,
        [*keyed(0, 40), once[0], *keyed(41, 90), once[1], *keyed(91, 150)],
    )
    compact(cluster)
    rows = read(cluster, topic, 0, 150)
    kept = offsets_of(rows)
    assert {40, 90} <= set(kept)
    assert len(kept) < 40
    assert latest(rows) == {
        b"first": b"once",
        b"second": b"once",
        **{b"%d" % (number % KEYS): b"%d" % number for number in range(143, 150)},
    }
    # Starts and ends where a record is, just before and after it, and where none is left.
    edges = [0, 20, 40, 41, 89, 90, 91, 149, 150]
    for start, end in combinations(edges, 2):
        found = read(cluster, topic, start, end)
        assert offsets_of(found) == [offset for offset in kept if start <= offset < end]
        assert {row["gap_before"] for row in found} <= {None}, "compaction is no loss"


def write_before_a_hole(cluster: ThreadedCluster, topic: str) -> None:
    """Write 22 records of which compaction leaves 15 to 19, and the last one, a tombstone."""
    create(cluster, topic, {**_COMPACTED, "segment.ms": "1"})
    write_singly(cluster, topic, [*keyed(0, 20), Record(None, key=b"6"), Record(None, key=b"0")])
    deadline_s = time.monotonic() + 60
    # The active segment is closed by time, and tombstones go by the second compaction.
    while cluster.call(lambda: _record_count(cluster, topic)) > 6:
        assert time.monotonic() < deadline_s
        compact(cluster)


def _record_count(cluster: ThreadedCluster, topic: str) -> int:
    topic_partition = TopicPartition(topic, 0)
    state = cluster.running.controller.state_of(topic_partition)
    assert state is not None
    partition = cluster.running.brokers[state.leader].manager.partition(topic_partition)
    assert partition is not None
    segments = [*partition.log.closed_segments(), partition.log.active_segment]
    return sum(batch.record_count for segment in segments for batch in segment.batches)


def test_log_with_a_hole_before_its_last_record_ends(cluster: ThreadedCluster, topic: str) -> None:
    write_before_a_hole(cluster, topic)
    with MicroBatches(
        cluster.bootstrap_servers, subscribe=topic, startingOffsets="earliest"
    ) as live:
        live.run(limit=20)
        assert live.position == {topic: {"0": 22}}
        assert offsets_of(live.batches[-1]) == [21]
    assert offsets_of(read(cluster, topic, 0, 22)) == [15, 16, 17, 18, 19, 21]
    assert read(cluster, topic, 20, 21) == []


@pytest.fixture
def writer(cluster: ThreadedCluster, topic: str) -> Iterator[Producer]:
    """A producer that can have an open transaction at the end of the test."""
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": topic, "log_level": 0}
    )
    producer.init_transactions(60)
    yield producer
    producer.abort_transaction(60)


def test_range_before_an_open_transaction_ends(
    cluster: ThreadedCluster, topic: str, writer: Producer
) -> None:
    servers = cluster.bootstrap_servers
    write_before_a_hole(cluster, topic)
    # Else the brokers' periodic work removes the tombstone, once it isn't in the last segment.
    alter(cluster, topic, {"delete.retention.ms": "86400000"})
    writer.begin_transaction()
    writer.produce(topic, b"open", b"open", partition=0)
    assert writer.flush(60) == 0
    # Brokers have nothing to send at 20 before the transaction ends; it ends after the test.
    began_s = time.monotonic()
    reader = PurgatoryBatchReader(options(servers, {"subscribe": topic}))
    ranges = reader.partitions()
    assert [(one.start, one.end) for one in ranges] == [(0, 22)]
    assert offsets_of(read_all(reader, ranges)) == [15, 16, 17, 18, 19, 21]
    compact(cluster)
    with MicroBatches(servers, subscribe=topic, startingOffsets="earliest") as live:
        live.run(limit=20)
        assert live.position == {topic: {"0": 22}}
    assert offsets_of(live.rows) == [15, 16, 17, 18, 19, 21]
    assert time.monotonic() < began_s + 60, "it does not wait for the 120 s of a poll"


def test_batch_in_many_ranges_has_each_remaining_record_once(
    cluster: ThreadedCluster, topic: str
) -> None:
    create(cluster, topic, _COMPACTED)
    write_singly(cluster, topic, [*keyed(0, 60), Record(b"once", key=b"x"), *keyed(61, 120)])
    compact(cluster)
    kept = offsets_of(read(cluster, topic, 0, 120))
    assert 60 in kept
    assert 99 not in kept
    for ending in (120, 100, 60):
        given = {"subscribe": topic, "endingOffsets": f'{{"{topic}": {{"0": {ending}}}}}'}
        reader = PurgatoryBatchReader(
            options(cluster.bootstrap_servers, {**given, "minPartitions": 9})
        )
        ranges = reader.partitions()
        assert len(ranges) >= 9
        assert offsets_of(read_all(reader, ranges)) == [
            offset for offset in kept if offset < ending
        ]


def test_compaction_between_planning_and_reading_is_no_data_loss(
    cluster: ThreadedCluster, topic: str
) -> None:
    create(cluster, topic, {})
    write_singly(cluster, topic, keyed(0, 100))
    asked = options(cluster.bootstrap_servers, {"subscribe": topic, "minPartitions": 4})
    reader = PurgatoryBatchReader(asked)
    ranges = reader.partitions()
    assert [(one.start, one.end) for one in ranges] == [(0, 25), (25, 50), (50, 75), (75, 100)]
    alter(cluster, topic, _COMPACTED)
    compact(cluster)
    rows = read_all(reader, ranges)
    assert len(rows) < 40
    assert offsets_of(rows) == sorted(set(offsets_of(rows)))
    assert latest(rows) == {b"%d" % (number % KEYS): b"%d" % number for number in range(93, 100)}
    assert {row["gap_before"] for row in rows} == {None}


def test_compaction_during_a_read_is_no_data_loss(cluster: ThreadedCluster, topic: str) -> None:
    create(cluster, topic, {"internal.segment.bytes": "20000"})
    padding = bytes(1_000)
    records = [one._replace(value=b"%s%s" % (one.value, padding)) for one in keyed(0, 3_000)]
    write(cluster.bootstrap_servers, topic, records, **{"batch.num.messages": 5})
    # The client fetches little in advance, so most is fetched after the compaction.
    little = {"kafka.fetch.message.max.bytes": 20_000, "kafka.queued.max.messages.kbytes": 20}
    asked = options(cluster.bootstrap_servers, {"subscribe": topic, **little})
    batches = PartitionReader(asked, OffsetRange(TopicPartition(topic, 0), 0, 3_000)).batches()
    rows = next(batches).to_pylist()
    alter(cluster, topic, _COMPACTED)
    compact(cluster)
    rows += [row for batch in batches for row in batch.to_pylist()]
    assert len(rows) < 2_500, "it was compacted while it was read"
    assert offsets_of(rows) == sorted(set(offsets_of(rows)))
    assert latest(rows) == {
        b"%d" % (number % KEYS): b"%d%s" % (number, padding) for number in range(2_993, 3_000)
    }
    assert {row["gap_before"] for row in rows} == {None}


def test_compaction_between_batches_loses_no_record(cluster: ThreadedCluster, topic: str) -> None:
    create(cluster, topic, _COMPACTED)
    written = 0
    with MicroBatches(
        cluster.bootstrap_servers, subscribe=topic, startingOffsets="earliest"
    ) as live:
        for _ in range(6):
            write_singly(cluster, topic, keyed(written, written + 40))
            written += 40
            live.plan(limit=27)
            compact(cluster)
            live.commit()
        live.run(limit=27)
    assert live.position == {topic: {"0": written}}
    assert offsets_of(live.rows) == sorted(set(offsets_of(live.rows)))
    assert len(live.rows) < written
    assert latest(live.rows) == {
        b"%d" % (number % KEYS): b"%d" % number for number in range(written - KEYS, written)
    }
    assert {row["gap_before"] for row in live.rows} == {None}


@pytest.mark.spark
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_spark_reads_a_topic_during_its_compaction(
    spark: SparkSession, cluster: ThreadedCluster, topic: str, tmp_path: Path
) -> None:
    create(cluster, topic, _COMPACTED)
    write_singly(cluster, topic, keyed(0, 400))
    live = Stream(
        spark,
        cluster.bootstrap_servers,
        tmp_path,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=150,
    )

    def compact_and_write(number: int) -> None:
        # The frame of the batch is read afterwards.
        compact(cluster)
        if number < 3:
            write_singly(cluster, topic, keyed(400 + 100 * number, 500 + 100 * number))

    live.before_batch = compact_and_write
    live.run()
    live.run()
    assert len(live.batches) >= 5
    assert offsets_of(live.rows) == sorted(set(offsets_of(live.rows)))
    expected = {b"%d" % (number % KEYS): b"%d" % number for number in range(693, 700)}
    assert latest(live.rows) == expected
    compact(cluster)
    rows = (
        spark.read.format("purgatory")
        .option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        .option("subscribe", topic)
        .option("minPartitions", 6)
        .load()
        .orderBy("offset")
        .collect()
    )
    assert len(rows) < 100
    assert latest(rows) == expected
