"""A fetch waits for its bytes and no longer, as measured at the client.

Lower bounds are strict: a response is never early. Upper bounds are asserted of the best of some
tries, as a busy machine delays any process now and then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AiokafkaPartition
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition

from purgatory.cluster import ThreadedCluster
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.wire.cluster.conftest import leader_of
from tests.wire.cluster.wire_client import WireClient

TRIES = 5
LATE_S = 0.020
LONG_MS = 20_000


class Topic:
    """A topic with one partition, and two connections to its leader."""

    def __init__(self, name: str, reader: WireClient, writer: WireClient) -> None:
        self.name = name
        self.reader = reader
        self.writer = writer
        self.batch_bytes = 0

    def append(self) -> float:
        """Append a batch of ``batch_bytes``; return when it was acknowledged."""
        return self.writer.produce(self.name, b"x" * 100)

    def end(self) -> int:
        """Return how many records there are."""
        self.reader.send_fetch(self.name, 0, min_bytes=0, max_wait_ms=0)
        _, records = self.reader.receive_fetched()
        return len(records) // self.batch_bytes


@pytest.fixture
def topic(cluster: ThreadedCluster, name: str) -> Iterator[Topic]:
    cluster.create_topic(name)
    port = cluster.call(lambda: cluster.running.brokers[leader_of(cluster.running, name)].port)
    with WireClient(port) as reader, WireClient(port) as writer:
        topic = Topic(name, reader, writer)
        topic.append()
        reader.send_fetch(name, 0, min_bytes=1, max_wait_ms=LONG_MS)
        topic.batch_bytes = len(reader.receive_fetched()[1])
        yield topic


def test_empty_fetch_completes_at_its_timeout(topic: Topic) -> None:
    late_s = []
    for max_wait_ms in (1, 10, 100, 250, 333):
        sent_s = topic.reader.send_fetch(topic.name, 1, min_bytes=1, max_wait_ms=max_wait_ms)
        came_s, records = topic.reader.receive_fetched()
        assert records == b""
        late_s.append(came_s - sent_s - max_wait_ms / 1_000)
    assert min(late_s) >= 0, f"answered early: {late_s}"
    assert min(late_s) < LATE_S, f"answered late: {late_s}"


def test_fetch_without_max_wait_returns_at_once(topic: Topic) -> None:
    topic.reader.send_fetch(topic.name, 1, min_bytes=1 << 19, max_wait_ms=0)
    assert topic.reader.receive_fetched()[1] == b""
    topic.reader.send_fetch(topic.name, 0, min_bytes=1 << 19, max_wait_ms=0)
    assert len(topic.reader.receive_fetched()[1]) == topic.batch_bytes


def test_fetch_with_enough_bytes_does_not_wait(topic: Topic) -> None:
    took_s = []
    for _ in range(TRIES):
        size = topic.batch_bytes
        sent_s = topic.reader.send_fetch(topic.name, 0, min_bytes=size, max_wait_ms=LONG_MS)
        came_s, records = topic.reader.receive_fetched()
        assert len(records) == size
        took_s.append(came_s - sent_s)
    assert min(took_s) < LATE_S, took_s


def test_fetch_completes_when_min_bytes_are_available(topic: Topic) -> None:
    size = topic.batch_bytes
    late_s = []
    for round_number in range(TRIES):
        offset = 1 + 3 * round_number
        topic.reader.send_fetch(topic.name, offset, min_bytes=3 * size, max_wait_ms=LONG_MS)
        for appended in range(2):
            topic.append()
            topic.writer.round_trip()
            assert not topic.reader.has_answer, f"answered with {appended + 1} batches of 3"
        acknowledged_s = topic.append()
        came_s, records = topic.reader.receive_fetched()
        assert len(records) == 3 * size
        late_s.append(came_s - acknowledged_s)
    assert min(late_s) < LATE_S, late_s


def test_fetch_for_one_more_byte_waits_until_its_timeout(topic: Topic) -> None:
    size = topic.batch_bytes
    sent_s = topic.reader.send_fetch(topic.name, 0, min_bytes=size + 1, max_wait_ms=150)
    came_s, records = topic.reader.receive_fetched()
    assert len(records) == size, "available records come at the timeout"
    assert came_s - sent_s >= 0.150


def test_a_consumer_gets_nothing_above_the_high_watermark(
    cluster: ThreadedCluster, topic: Topic
) -> None:
    leader = cluster.call(lambda: leader_of(cluster.running, topic.name))
    followers = [broker for broker in cluster.running.brokers if broker != leader]
    stalls = [cluster.fault.stall_follower(broker) for broker in followers]
    try:
        topic.writer.send_produce(topic.name, b"unsafe", acks=1, timeout_ms=1_000)
        assert topic.writer.receive_produced()[1] == 0
        topic.reader.send_fetch(topic.name, 1, min_bytes=1, max_wait_ms=LONG_MS)
        topic.writer.round_trip()
        assert not topic.reader.has_answer
    finally:
        for stall in stalls:
            stall.end()
    assert topic.reader.receive_fetched()[1] != b"", "the followers have it now"


# ---- the clients' own settings

MAX_WAIT_MS = 700


def read_with_confluent(servers: str, topic: str, min_bytes: int, max_wait_ms: int) -> float:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "waits",
            "fetch.min.bytes": min_bytes,
            "fetch.wait.max.ms": max_wait_ms,
        }
    )
    try:
        began_s = time.monotonic()
        consumer.assign([ConfluentPartition(topic, 0, 0)])
        message = consumer.poll(30)
        assert message is not None and message.error() is None
        return time.monotonic() - began_s
    finally:
        consumer.close()


def read_with_kafka_python(servers: str, topic: str, min_bytes: int, max_wait_ms: int) -> float:
    consumer = KafkaConsumer(
        bootstrap_servers=servers.split(","),
        fetch_min_bytes=min_bytes,
        fetch_max_wait_ms=max_wait_ms,
    )
    try:
        began_s = time.monotonic()
        consumer.assign([KafkaPythonPartition(topic, 0)])
        consumer.seek(KafkaPythonPartition(topic, 0), 0)
        assert consumer.poll(timeout_ms=30_000)
        return time.monotonic() - began_s
    finally:
        consumer.close()


def read_with_aiokafka(servers: str, topic: str, min_bytes: int, max_wait_ms: int) -> float:
    async def read() -> float:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=servers, fetch_min_bytes=min_bytes, fetch_max_wait_ms=max_wait_ms
        )
        await consumer.start()
        try:
            began_s = time.monotonic()
            consumer.assign([AiokafkaPartition(topic, 0)])
            consumer.seek(AiokafkaPartition(topic, 0), 0)
            await asyncio.wait_for(consumer.getone(), 30)
            return time.monotonic() - began_s
        finally:
            await consumer.stop()

    return asyncio.run(read())


@pytest.mark.parametrize("read", [read_with_confluent, read_with_kafka_python, read_with_aiokafka])
def test_consumer_with_large_min_bytes_waits_its_max_wait(
    cluster: ThreadedCluster, name: str, read: Any
) -> None:
    cluster.create_topic(name)
    ConfluentClient(cluster.bootstrap_servers).produce(name, [b"one"])
    took_s = read(cluster.bootstrap_servers, name, 10_000, MAX_WAIT_MS)
    assert took_s >= MAX_WAIT_MS / 1_000, "answered early"
    took_s = read(cluster.bootstrap_servers, name, 1, LONG_MS)
    assert took_s < LONG_MS / 1_000, "made to wait for what was there"
