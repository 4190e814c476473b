"""Consumers that read from a replica in their own rack (KIP-392)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition

from purgatory.cluster import Cluster, ClusterConfig, ThreadedCluster, TopicSpec
from purgatory.kafka import TopicPartition
from purgatory.kafka.errors import ClusterError
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.wire.cluster.kafka_client import TIMEOUT_S
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import record_batch

_CONFIG = ClusterConfig(brokers=3, racks=("a", "b", "c"), topics=[TopicSpec("t", 1, 3)])
_RACKS = {1: "a", 2: "b", 3: "c"}


def _leader(cluster: Cluster) -> int:
    state = cluster.controller.state_of(TopicPartition("t", 0))
    assert state is not None
    return state.leader


async def _produce(cluster: Cluster, count: int) -> None:
    async with await RawClient.to(cluster, _leader(cluster)) as client:
        data = [{"index": 0, "records": record_batch([b"x"] * count)}]
        topics = [{"name": "t", "partition_data": data}]
        answer = await client.ask(0, 9, {"acks": -1, "topic_data": topics})
        assert answer.responses[0].partition_responses[0].error_code == 0


async def _fetch(client: RawClient, rack: str, offset: int, wait_ms: int = 0) -> Any:
    asked = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    values = {
        "rack_id": rack,
        "max_wait": timedelta(milliseconds=wait_ms),
        "min_bytes": 1,
        "session_epoch": -1,
        "topics": [{"topic": "t", "partitions": [asked]}],
    }
    answer = await client.ask(1, 12, values)
    return answer.responses[0].partitions[0]


def test_consumers_read_from_the_replica_in_their_rack() -> None:
    async def main() -> None:
        async with Cluster(_CONFIG) as cluster:
            await _produce(cluster, 5)
            leader = _leader(cluster)
            other = next(number for number in _RACKS if number != leader)
            async with (
                await RawClient.to(cluster, leader) as to_leader,
                await RawClient.to(cluster, other) as to_other,
            ):
                sent = await _fetch(to_leader, _RACKS[other], 0)
                assert (sent.error_code, sent.preferred_read_replica) == (0, other)
                assert not sent.records
                for rack in (_RACKS[leader], "nowhere", ""):
                    read = await _fetch(to_leader, rack, 0)
                    assert read.preferred_read_replica == -1
                    assert read.records
                too_far = await _fetch(to_leader, _RACKS[other], 6)
                assert (too_far.error_code, too_far.preferred_read_replica) == (1, -1)
                # The follower's records may be read before it knows that they are committed.
                while not (read := await _fetch(to_other, _RACKS[other], 0, 1_000)).records:
                    assert read.error_code == 0
                waiting = asyncio.create_task(_fetch(to_other, _RACKS[other], 5, 60_000))
                await _produce(cluster, 1)
                read = await waiting
                assert (read.error_code, read.high_watermark) == (0, 6)
                assert read.records, "it was woken by what the follower learned of"
                assert (await _fetch(to_other, "", 0)).error_code == 0
                beyond = await _fetch(to_other, _RACKS[other], 99)
                assert beyond.error_code == 1

    asyncio.run(main())


def test_dead_or_lagging_replicas_are_no_preferred_replicas() -> None:
    async def main() -> None:
        async with Cluster(_CONFIG) as cluster:
            await _produce(cluster, 5)
            leader = _leader(cluster)
            dead, left_out = (number for number in _RACKS if number != leader)
            await cluster.kill(dead)
            cluster.fault.shrink_isr("t", 0, left_out)
            async with await RawClient.to(cluster, leader) as client:
                for broker in (dead, left_out):
                    read = await _fetch(client, _RACKS[broker], 0)
                    assert (read.error_code, read.preferred_read_replica) == (0, -1)
                    assert read.records

    asyncio.run(main())


def test_confluent_kafka_reads_from_the_replica_in_its_rack() -> None:
    with ThreadedCluster(_CONFIG) as cluster:
        values = [b"%d" % number for number in range(20)]
        ConfluentClient(cluster.bootstrap_servers).produce("t", values)
        leader = cluster.call(lambda: _leader(cluster.running))
        other = next(number for number in _RACKS if number != leader)
        follower = cluster.running.brokers[other].manager
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "client.rack": _RACKS[other],
                "group.id": "of no one",
                "enable.auto.commit": False,
            }
        )
        try:
            with patch.object(follower, "fetch_records", wraps=follower.fetch_records) as asked:
                consumer.assign([ConfluentPartition("t", 0, 0)])
                read: list[bytes | None] = []
                while len(read) < 20:
                    messages = consumer.consume(20 - len(read), TIMEOUT_S)
                    assert messages
                    read += [message.value() for message in messages]
            assert read == values
            assert asked.called
        finally:
            consumer.close()


def test_racks_are_given_for_all_brokers_or_none() -> None:
    with pytest.raises(ClusterError, match="must be one for each of 3 brokers"):
        Cluster(ClusterConfig(brokers=3, racks=("a", "b")))
