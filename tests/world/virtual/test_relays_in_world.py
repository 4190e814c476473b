"""A world's checks of interrupted relays, which send the records that they read to a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from purgatory.virtual import World
from purgatory.virtual.cluster import WorldCluster

_COUNT, _BATCH = 12, 4
_PLACE = TopicPartition("orders", 0)


class _Interrupted(Exception):
    """The end of a relay in the middle of a batch."""


def _consumer(cluster: WorldCluster, topic: str, **settings: Any) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **settings,
    )


def _producer(cluster: WorldCluster, **settings: Any) -> AIOKafkaProducer:
    return AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, enable_idempotence=True, **settings
    )


async def _batch(orders: AIOKafkaConsumer) -> list[Any]:
    return [await orders.getone() for _ in range(_BATCH)]


async def _relay_in_transactions(cluster: WorldCluster, fails_at: int | None) -> None:
    """Send orders on, each batch with its offset in a transaction."""
    async with (
        _consumer(cluster, "orders", group_id="relay") as orders,
        _producer(cluster, transactional_id="relay") as producer,
    ):
        while await orders.committed(_PLACE) != _COUNT:
            async with producer.transaction():
                for order in await _batch(orders):
                    await producer.send_and_wait("invoices", order.value)
                    if order.offset == fails_at:
                        raise _Interrupted
                offsets = {_PLACE: order.offset + 1}
                await producer.send_offsets_to_transaction(offsets, "relay")


async def _relay_without(cluster: WorldCluster, fails_at: int | None) -> None:
    """Send orders on, and commit after each batch."""
    async with (
        _consumer(cluster, "orders", group_id="relay") as orders,
        _producer(cluster) as producer,
    ):
        while await orders.committed(_PLACE) != _COUNT:
            for order in await _batch(orders):
                await producer.send_and_wait("invoices", order.value)
                if order.offset == fails_at:
                    raise _Interrupted
            await orders.commit()


_Relay = Callable[[WorldCluster, int | None], Any]


async def _application(cluster: WorldCluster, relay: _Relay, isolation: str) -> list[int]:
    """Run a relay with an interruption; return the invoices that a reader gets."""
    async with _producer(cluster) as producer:
        for number in range(_COUNT):
            await producer.send_and_wait("orders", b"%d" % number)
    with suppress(_Interrupted):
        await relay(cluster, 5)
    await relay(cluster, None)
    invoices: list[int] = []
    async with _consumer(cluster, "invoices", isolation_level=isolation) as reader:
        with suppress(TimeoutError):
            async with asyncio.timeout(10):
                async for invoice in reader:
                    invoices.append(int(invoice.value))
    return invoices


def _world_of(relay: _Relay, isolation: str) -> tuple[World, list[int]]:
    with World(3) as world:
        cluster = world.cluster(topics=["orders", "invoices"], min_insync_replicas=2)
        invoices = world.run(_application(cluster, relay, isolation))
    return world, invoices


def test_repeated_batch_after_an_abort_is_read_once_in_order() -> None:
    world, invoices = _world_of(_relay_in_transactions, "read_committed")
    assert invoices == [*range(_COUNT)]
    for check in (World.check_no_loss, World.check_order, World.check_exactly_once):
        assert check(world).count("unseen") == 0


@pytest.mark.slow
def test_reader_of_aborted_records_fails_exactly_once() -> None:
    world, invoices = _world_of(_relay_in_transactions, "read_uncommitted")
    assert invoices == [*range(_BATCH), 4, 5, *range(_BATCH, _COUNT)]
    world.check_no_loss()
    world.check_order()
    with pytest.raises(AssertionError, match="check_exactly_once: broken") as caught:
        world.check_exactly_once()
    assert "aborted_read" in str(caught.value)


@pytest.mark.slow
def test_interrupted_batch_without_transactions_is_duplicated() -> None:
    world, invoices = _world_of(_relay_without, "read_committed")
    assert invoices == [*range(_BATCH), 4, 5, *range(_BATCH, _COUNT)]
    world.check_no_loss()
    world.check_order()
    # Two producers sent equal records: brokers can't see that one is a repetition of the other.
    with pytest.raises(AssertionError, match="equal records: on purpose, or one") as caught:
        world.check_exactly_once()
    assert "invoices-0, offset 6, key null, value '4'" in str(caught.value)
    assert "orders" not in str(caught.value)
