"""A topic's compression.type: its log has all batches in the topic's codec."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import Producer
from crc32c import crc32c

from purgatory.cluster import Cluster, ClusterConfig, ThreadedCluster, TopicSpec
from purgatory.cluster.records import codec_of, read_records, recompressed
from purgatory.kafka import RecordBatch, TopicPartition
from tests.wire.cluster.kafka_client import TIMEOUT_S, KafkaClient
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import record_batch

CODECS = ["uncompressed", "gzip", "snappy", "lz4", "zstd"]
_VALUES = [b"%d of some values that look alike" % number for number in range(50)]


def _codecs_in(cluster: ThreadedCluster, topic: str) -> set[int]:
    def look() -> set[int]:
        (broker, *_) = cluster.running.brokers.values()
        partition = broker.manager.partition(TopicPartition(topic, 0))
        assert partition is not None
        log = partition.log
        return {codec_of(one) for one in log.read(0, 10**9)}

    return set(cluster.call(look))


@pytest.mark.parametrize("codec", CODECS)
def test_every_client_reads_records_of_any_producer(
    cluster: ThreadedCluster, client: KafkaClient, codec: str, name: str
) -> None:
    cluster.create_topic(name, settings={"compression.type": codec})
    sent: list[bytes] = []
    for sent_with in ("none", "gzip", "snappy", "lz4", "zstd"):
        values = [sent_with.encode() + value for value in _VALUES]
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "compression.type": sent_with,
                "enable.idempotence": True,
            }
        )
        for value in values:
            producer.produce(name, value)
        assert producer.flush(TIMEOUT_S) == 0
        sent += values
    read = client.read(name, 0, len(sent))
    assert [record.value for record in read] == sent
    assert _codecs_in(cluster, name) == {CODECS.index(codec)}


@pytest.mark.parametrize("codec", range(1, 5))
def test_compression_changes_nothing_else_of_a_batch(codec: int) -> None:
    batch = RecordBatch.from_bytes(record_batch(_VALUES, 7, 3, 2, transactional=True))
    other = recompressed(batch, codec, None)
    assert other.size_bytes < batch.size_bytes
    assert list(read_records(other)) == list(read_records(batch))
    assert _identity(other) == _identity(batch)
    assert recompressed(other, codec, None) is other
    back = recompressed(other, 0, None)
    assert back.to_bytes() == batch.to_bytes()


@pytest.mark.parametrize("level", [None, 1, 17])
def test_blocks_of_lz4_are_independent_as_java_needs_them(level: int | None) -> None:
    batch = RecordBatch.from_bytes(record_batch([b"x" * 200_000, os.urandom(200_000)]))
    other = recompressed(batch, CODECS.index("lz4"), level)
    assert list(read_records(other)) == list(read_records(batch))
    header = other.to_bytes()[61:]
    is_version_1, is_independent, block_size = header[4] >> 6 == 1, header[4] & 0x20, header[5] >> 4
    assert is_version_1 and is_independent and block_size in range(4, 8)
    assert not header[4] & 0x03, "no dictionary, and nothing that is reserved"


def _identity(batch: RecordBatch) -> Sequence[object]:
    producer = (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.transactional)
    return (*producer, batch.record_count, batch.base_offset)


def test_bytes_that_are_no_batch_are_refused() -> None:
    batch = RecordBatch.from_bytes(record_batch(_VALUES))
    data = bytearray(recompressed(batch, 4, 9).to_bytes())
    data[61:] = b"\xff" * (len(data) - 61)
    data[17:21] = crc32c(data[21:]).to_bytes(4, "big")
    with pytest.raises(ValueError, match="decompress"):
        recompressed(RecordBatch.from_bytes(bytes(data)), 0, None)


@pytest.mark.parametrize(("version", "error"), [(3, 76), (6, 76), (7, 0), (9, 0)])
def test_zstd_is_refused_in_produce_versions_without_it(version: int, error: int) -> None:
    async def main() -> None:
        async with _one_topic() as (_, client):
            for codec, expected in ((4, error), (3, 0)):
                batch = recompressed(RecordBatch.from_bytes(record_batch(_VALUES)), codec, None)
                data = [{"index": 0, "records": batch.to_bytes()}]
                asked = {"acks": -1, "topic_data": [{"name": "t", "partition_data": data}]}
                answer = await client.ask(0, version, asked)
                [partition] = answer.responses[0].partition_responses
                assert partition.error_code == expected

    asyncio.run(main())


@pytest.mark.parametrize(("version", "error"), [(4, 76), (9, 76), (10, 0), (11, 0)])
def test_zstd_topic_is_refused_to_fetch_versions_without_it(version: int, error: int) -> None:
    async def main() -> None:
        async with _one_topic() as (cluster, client):
            data = [{"index": 0, "records": record_batch(_VALUES)}]
            asked: dict[str, Any] = {
                "acks": -1,
                "topic_data": [{"name": "t", "partition_data": data}],
            }
            await client.ask(0, 9, asked)
            for codec, expected in (("zstd", error), ("lz4", 0)):
                cluster.controller.change_topic_settings("t", {"compression.type": codec})
                partition = {
                    "partition": 0,
                    "partition_max_bytes": 1 << 20,
                    "current_leader_epoch": -1,
                }
                fetch = {
                    "replica_id": -1,
                    "max_bytes": 1 << 20,
                    "session_epoch": -1,
                    "topics": [{"topic": "t", "partitions": [partition]}],
                }
                answer = await client.ask(1, version, fetch)
                [told] = answer.responses[0].partitions
                assert told.error_code == expected
                assert bool(told.records) == (not expected)

    asyncio.run(main())


@asynccontextmanager
async def _one_topic() -> AsyncIterator[tuple[Cluster, RawClient]]:
    config = ClusterConfig(brokers=1, topics=[TopicSpec("t")])
    async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
        yield cluster, client
