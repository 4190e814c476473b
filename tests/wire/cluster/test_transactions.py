"""Transactions of real clients: visibility, fencing, brokers that die in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import ProducerFenced
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Endpoint

from purgatory.cluster import ThreadedCluster
from tests.wire.cluster.kafka_client import TIMEOUT_S


def _producer(cluster: ThreadedCluster, transactional_id: str, **settings: Any) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            "retry.backoff.ms": 20,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
            **settings,
        }
    )
    made.init_transactions(TIMEOUT_S)
    return made


@contextmanager
def _consumer(cluster: ThreadedCluster, group: str, **settings: Any) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
            **settings,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _seen(cluster: ThreadedCluster, topic: str, partitions: int) -> list[bytes]:
    """Return the records that a read_committed consumer sees up to the end of each partition."""
    values: list[bytes] = []
    left = partitions
    settings = {"enable.partition.eof": True}
    with _consumer(cluster, "reader", **settings) as consumer:
        consumer.assign([Endpoint(topic, number, 0) for number in range(partitions)])
        while left:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"{left} partitions come to no end"
            error = message.error()
            if error is None:
                value = message.value()
                assert value is not None
                values.append(value)
            else:
                assert error.name() == "_PARTITION_EOF", error
                left -= 1
    return sorted(values)


def _do(producer: Producer, topic: str, value: bytes, commit: bool = True) -> None:
    producer.begin_transaction()
    for partition in (0, 1):
        producer.produce(topic, value, partition=partition)
    if commit:
        producer.commit_transaction(TIMEOUT_S)
    else:
        producer.flush(TIMEOUT_S)
        producer.abort_transaction(TIMEOUT_S)


def test_only_committed_transactions_are_visible(cluster: ThreadedCluster, name: str) -> None:
    cluster.create_topic(name, 2)
    producer = _producer(cluster, name)
    for number in range(6):
        _do(producer, name, b"%d" % number, commit=number % 2 == 0)
    assert _seen(cluster, name, 2) == [b"0", b"0", b"2", b"2", b"4", b"4"]


def test_offsets_are_committed_with_the_transformed_records(
    cluster: ThreadedCluster, name: str
) -> None:
    source, target = f"{name}-in", f"{name}-out"
    cluster.create_topic(source, 1)
    cluster.create_topic(target, 2)
    producer = _producer(cluster, name)
    plain = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for number in range(3):
        plain.produce(source, b"%d" % number)
    plain.flush(TIMEOUT_S)
    with _consumer(cluster, name) as consumer:
        consumer.subscribe([source])
        for commit in (True, False, True):
            message = consumer.poll(TIMEOUT_S)
            assert message is not None and message.error() is None
            producer.begin_transaction()
            producer.produce(target, message.value(), partition=0)
            at = [Endpoint(source, 0, (message.offset() or 0) + 1)]
            group = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction(at, group, TIMEOUT_S)
            if commit:
                producer.commit_transaction(TIMEOUT_S)
                committed = at[0].offset
            else:
                producer.abort_transaction(TIMEOUT_S)
            [found] = consumer.committed([Endpoint(source, 0)], TIMEOUT_S)
            assert found.offset == committed
    assert _seen(cluster, target, 1) == [b"0", b"2"]


def test_second_producer_of_an_id_fences_the_first(cluster: ThreadedCluster, name: str) -> None:
    cluster.create_topic(name, 2)
    zombie = _producer(cluster, name)
    zombie.begin_transaction()
    zombie.produce(name, b"zombie", partition=0)
    zombie.flush(TIMEOUT_S)
    later = _producer(cluster, name)
    with pytest.raises(KafkaException) as refused:
        zombie.commit_transaction(TIMEOUT_S)
    assert refused.value.args[0].name() == "_FENCED"
    assert refused.value.args[0].fatal()
    _do(later, name, b"later")
    assert _seen(cluster, name, 2) == [b"later", b"later"]


@pytest.mark.parametrize("broker", [1, 2, 3])
def test_transaction_survives_the_death_of_a_broker(
    cluster: ThreadedCluster, name: str, broker: int
) -> None:
    """One of them coordinates, and each leads something: the producer is told of no failure."""
    cluster.create_topic(name, 2)
    producer = _producer(cluster, name)
    _do(producer, name, b"before")
    producer.begin_transaction()
    producer.produce(name, b"amid", partition=0)
    producer.flush(TIMEOUT_S)
    with cluster.fault.kill(broker):
        producer.produce(name, b"amid", partition=1)
        producer.commit_transaction(TIMEOUT_S)
        _do(producer, name, b"aborted", commit=False)
    _do(producer, name, b"after")
    assert _seen(cluster, name, 2) == sorted([b"before", b"amid", b"after"] * 2)


def test_aiokafka_commits_and_aborts_and_is_fenced(cluster: ThreadedCluster, name: str) -> None:
    cluster.create_topic(name, 1)

    async def main() -> None:
        servers = cluster.bootstrap_servers
        # A fenced producer leaves tasks whose errors are never retrieved.
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=name)
        await producer.start()
        try:
            async with producer.transaction():
                await producer.send_and_wait(name, b"kept")
                await producer.send_offsets_to_transaction({TopicPartition(name, 0): 1}, name)
            await producer.begin_transaction()
            await producer.send_and_wait(name, b"dropped")
            await producer.abort_transaction()
            later = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=name)
            await later.start()
            await producer.begin_transaction()
            with pytest.raises(ProducerFenced):
                await producer.send_and_wait(name, b"zombie")
            async with later.transaction():
                await later.send_and_wait(name, b"last")
            await later.stop()
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer(
            name,
            bootstrap_servers=servers,
            group_id=name,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await consumer.start()
        try:
            assert await consumer.committed(TopicPartition(name, 0)) == 1
            await consumer.seek_to_beginning()
            values = [(await consumer.getone()).value for _ in range(2)]
            assert values == [b"kept", b"last"]
        finally:
            await consumer.stop()

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))
