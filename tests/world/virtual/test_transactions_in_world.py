"""aiokafka's transactions in virtual time: committed, aborted, fenced, and left alone."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced

from purgatory.virtual import World
from purgatory.virtual.cluster import WorldCluster

_PAID = TopicPartition("payments", 0)


@pytest.fixture
def cluster(world: World) -> WorldCluster:
    return world.cluster(brokers=3, topics=["payments", "orders"])


def _producer(cluster: WorldCluster) -> AIOKafkaProducer:
    return AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        transactional_id="billing",
        transaction_timeout_ms=60_000,
    )


async def _read(cluster: WorldCluster, isolation_level: str = "read_committed") -> list[bytes]:
    """All records that a consumer gets from the beginning."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers,
        isolation_level=isolation_level,
        auto_offset_reset="earliest",
    )
    async with consumer:
        consumer.assign([_PAID])
        await consumer.seek_to_beginning(_PAID)
        values: list[bytes] = []
        while found := await consumer.getmany(timeout_ms=5_000):
            values += [record.value for record in found[_PAID]]
        return values


@pytest.mark.virtual(seeds=5)
async def test_consumers_read_committed_records_and_no_aborted_ones(
    world: World, cluster: WorldCluster
) -> None:
    async with _producer(cluster) as producer:
        async with producer.transaction():
            await producer.send_and_wait("payments", b"one")
            assert await _read(cluster) == []
        await producer.begin_transaction()
        await producer.send_and_wait("payments", b"aborted")
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_and_wait("payments", b"two")
    assert await _read(cluster) == [b"one", b"two"]
    assert await _read(cluster, "read_uncommitted") == [b"one", b"aborted", b"two"]


@pytest.mark.virtual(seeds=5)
async def test_a_zombie_is_fenced_when_its_successor_begins(
    world: World, cluster: WorldCluster
) -> None:
    zombie, successor = _producer(cluster), _producer(cluster)
    await zombie.start()
    await zombie.begin_transaction()
    await zombie.send_and_wait("payments", b"of the zombie")
    async with successor:
        async with successor.transaction():
            await successor.send_and_wait("payments", b"of its successor")
        with pytest.raises(ProducerFenced):
            await zombie.commit_transaction()
        async with successor.transaction():
            await successor.send_and_wait("payments", b"and more")
    await zombie.stop()
    assert await _read(cluster) == [b"of its successor", b"and more"]


@pytest.mark.virtual(seeds=5)
async def test_abandoned_transaction_is_aborted_after_its_timeout(
    world: World, cluster: WorldCluster
) -> None:
    producer = _producer(cluster)
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait("payments", b"never committed")
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as other:
        await other.send_and_wait("payments", b"behind it")
    assert await _read(cluster) == []
    await asyncio.sleep(90)
    assert await _read(cluster) == [b"behind it"]
    with pytest.raises(KafkaError):
        await producer.commit_transaction()
    await producer.stop()


@pytest.mark.virtual(seeds=5)
async def test_offsets_are_committed_with_the_transaction_or_never(
    world: World, cluster: WorldCluster
) -> None:
    ordered = TopicPartition("orders", 0)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers, group_id="billing", enable_auto_commit=False
    )
    async with consumer, _producer(cluster) as producer:
        consumer.assign([ordered])
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({ordered: 1}, "billing")
        await producer.abort_transaction()
        assert await consumer.committed(ordered) is None
        async with producer.transaction():
            await producer.send_offsets_to_transaction({ordered: 2}, "billing")
        assert await consumer.committed(ordered) == 2
