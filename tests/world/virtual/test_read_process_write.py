"""The audit of a loop that reads, processes and writes in transactions, and of its twin whose
instances take new transactional ids, so that a stalled instance is not fenced."""

from __future__ import annotations

import contextlib

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced

from purgatory.virtual import World
from purgatory.virtual.cluster import WorldCluster

ORDERS = 4
GROUP = "billing"


class Instance:
    """An instance of the service."""

    def __init__(self, cluster: WorldCluster, transactional_id: str) -> None:
        self.orders = AIOKafkaConsumer(
            "orders",
            bootstrap_servers=cluster.bootstrap_servers,
            group_id=GROUP,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        self.producer = AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers,
            transactional_id=transactional_id,
            transaction_timeout_ms=60_000,
        )

    async def start(self) -> None:
        await self.orders.start()
        await self.producer.start()

    async def begin(self) -> dict[TopicPartition, int]:
        """Begin a transaction with the next order's invoice; return the offset after the order."""
        order = await self.orders.getone()
        await self.producer.begin_transaction()
        await self.producer.send_and_wait("invoices", b"of " + order.value)
        return {TopicPartition(order.topic, order.partition): order.offset + 1}

    async def end(self, offsets: dict[TopicPartition, int]) -> None:
        await self.producer.send_offsets_to_transaction(offsets, GROUP)
        await self.producer.commit_transaction()

    async def stop(self) -> None:
        await self.orders.stop()
        await self.producer.stop()


async def bill(cluster: WorldCluster, transactional_ids: tuple[str, str]) -> None:
    """An instance stalls in a transaction, another one takes over, and the first one resumes."""
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, enable_idempotence=True
    ) as shop:
        for number in range(ORDERS):
            await shop.send_and_wait("orders", b"order %d" % number)
    stalled, successor = (Instance(cluster, one) for one in transactional_ids)
    await stalled.start()
    offsets = await stalled.begin()
    await stalled.orders.stop()
    await successor.start()
    for _ in range(ORDERS):
        await successor.end(await successor.begin())
    await successor.stop()
    with contextlib.suppress(ProducerFenced, KafkaError):  # as intended
        await stalled.end(offsets)
    await stalled.stop()
    async with AIOKafkaConsumer(
        "invoices",
        bootstrap_servers=cluster.bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    ) as invoices:
        while await invoices.getmany(timeout_ms=5_000):
            pass


@pytest.mark.parametrize("has_fixed_id", [True, False])
def test_loop_is_exactly_once_only_with_a_fixed_transactional_id(has_fixed_id: bool) -> None:
    with World(1) as world:
        cluster = world.cluster(brokers=1, topics=["orders", "invoices"])
        world.run(bill(cluster, ("billing", "billing" if has_fixed_id else "billing 2")))
        findings = cluster.audit(expect=["once", "no-loss", "order"])
        assert findings.violations == []
        if has_fixed_id:
            findings.assert_no_violations()
        else:
            [equal] = cluster.audit(expect=["once"]).undecided
            assert (equal.anomaly, equal.count) == ("duplicate", 1)
            assert "effects" in (equal.setting or "")
