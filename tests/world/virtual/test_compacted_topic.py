"""The audit of a compacted topic that is read before and after the cleaner."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from purgatory.cluster import ClusterConfig, TopicSpec
from purgatory.virtual import World
from purgatory.virtual.cluster import WorldCluster

KEYS, VERSIONS = 3, 6


async def _read(cluster: WorldCluster, client_id: str) -> int:
    count = 0
    async with AIOKafkaConsumer(
        "states",
        bootstrap_servers=cluster.bootstrap_servers,
        client_id=client_id,
        auto_offset_reset="earliest",
    ) as consumer:
        while found := await consumer.getmany(timeout_ms=2_000):
            count += sum(map(len, found.values()))
    return count


async def _run(cluster: WorldCluster, reads_before: bool) -> tuple[int, int]:
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, enable_idempotence=True
    ) as producer:
        for version in range(VERSIONS):
            for key in range(KEYS):
                state = None if (version, key) == (VERSIONS - 2, 0) else b"state %d" % version
                await producer.send_and_wait("states", state, key=b"%d" % key)
        before = await _read(cluster, "early") if reads_before else 0
        for number in range(3):
            await asyncio.sleep(60)  # for the next segment, and for the cleaner
            await producer.send_and_wait("states", b"late %d" % number, key=b"0")
    return before, await _read(cluster, "late")


@pytest.mark.slow
@pytest.mark.parametrize("reads_before", [True, False])
def test_compacted_records_count_neither_as_lost_nor_as_skipped(reads_before: bool) -> None:
    settings = {
        "cleanup.policy": "compact",
        "segment.ms": "1000",
        "min.cleanable.dirty.ratio": "0.0",
        "delete.retention.ms": "1000",
    }
    config = ClusterConfig(topics=[TopicSpec("states", settings=settings)], first_port=9092)
    with World(1) as world:
        cluster = world.cluster(brokers=1, config=config)
        before, after = world.run(_run(cluster, reads_before))
        assert before == reads_before * KEYS * VERSIONS
        assert KEYS <= after < KEYS * VERSIONS, "the cleaner removed some"
        cluster.audit(expect=["once", "no-loss", "order"]).assert_no_violations()
