"""Waits for requests, groups, offsets, in-sync replicas and uses of faults, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from purgatory.cluster import ClusterError
from purgatory.virtual import World
from purgatory.virtual.cluster import WorldCluster


def _world_cluster(world: World, **settings: Any) -> WorldCluster:
    return world.cluster(brokers=3, topics={"orders": 2}, replica_max_lag_ms=10_000, **settings)


async def _send(cluster: WorldCluster, count: int) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, client_id="seller", acks="all"
    ) as producer:
        for number in range(count):
            await producer.send_and_wait("orders", b"%d" % number, partition=number % 2)


def _consumer(cluster: WorldCluster, **settings: Any) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        "orders",
        bootstrap_servers=cluster.bootstrap_servers,
        group_id="billing",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **settings,
    )


async def _missing(waiting: Awaitable[None]) -> str:
    with pytest.raises(TimeoutError) as caught:
        await waiting
    return str(caught.value)


def test_wait_ends_with_the_last_request_of_a_kind() -> None:
    async def run(cluster: WorldCluster) -> None:
        sending = asyncio.create_task(_send(cluster, 3))
        await cluster.wait_for(requests="Produce", count=3, client_id="seller", topic="orders")
        seen = cluster.requests(api="produce")
        assert [one.answer is None for one in seen] == [False, False, True]
        await sending
        await cluster.wait_for(requests="Produce", count=3, timeout=0)  # they came before
        cluster.clear_requests()
        text = await _missing(cluster.wait_for(requests="Produce", topic="orders", timeout=1))
        assert text.endswith(
            "not within 1 s: Produce requests with topic='orders': 0 came; of all APIs: none"
        )

    with World() as world:
        world.run(run(_world_cluster(world)))


def test_wait_counts_requests_of_the_filter_alone() -> None:
    async def run(cluster: WorldCluster) -> None:
        await _send(cluster, 2)
        for other in ({"client_id": "other"}, {"topic": "other"}, {"broker": 4}):
            text = await _missing(cluster.wait_for(requests="Produce", **other, timeout=1))
            assert ": 0 came; of all APIs: " in text
            assert "2 Produce" in text

    with World() as world:
        world.run(run(_world_cluster(world)))


def test_wait_ends_when_a_group_is_stable() -> None:
    async def run(cluster: WorldCluster) -> None:
        text = await _missing(cluster.wait_for.group_stable("billing", timeout=1))
        assert "there is no group billing; groups are none" in text
        first, second = _consumer(cluster), _consumer(cluster)
        await first.start()
        await cluster.wait_for.group_stable("billing", members=1)
        joining = asyncio.create_task(second.start())
        await cluster.wait_for.group_stable("billing", members=2)
        await joining
        text = await _missing(cluster.wait_for.group_stable("billing", members=3, timeout=1))
        assert "it is Stable with 2: aiokafka-" in text
        await asyncio.gather(first.stop(), second.stop())

    with World() as world:
        world.run(run(_world_cluster(world)))


def test_wait_ends_when_a_group_has_caught_up() -> None:
    async def run(cluster: WorldCluster) -> None:
        await _send(cluster, 4)
        text = await _missing(cluster.wait_for.caught_up("billing", timeout=1))
        assert "there is no group billing" in text
        async with _consumer(cluster) as consumer:
            for _ in range(3):
                await consumer.getone()
            await consumer.commit()
            text = await _missing(cluster.wait_for.caught_up("billing", timeout=1))
            assert "at 1 of 2" in text
            waiting = asyncio.create_task(cluster.wait_for.caught_up("billing"))
            await consumer.getone()
            assert not waiting.done()
            await consumer.commit()
            await waiting

    with World() as world:
        world.run(run(_world_cluster(world)))


def test_group_has_caught_up_before_the_marker_of_a_transaction() -> None:
    async def run(cluster: WorldCluster) -> None:
        async with (
            AIOKafkaProducer(
                bootstrap_servers=cluster.bootstrap_servers, transactional_id="sales"
            ) as producer,
            producer.transaction(),
        ):
            await producer.send_and_wait("orders", b"one", partition=0)
        async with _consumer(cluster) as consumer:
            await consumer.getone()
            await consumer.commit()
            await cluster.wait_for.caught_up("billing", timeout=1)

    with World() as world:
        world.run(run(_world_cluster(world)))


def test_wait_ends_when_the_isr_is_as_wanted() -> None:
    async def run(cluster: WorldCluster) -> None:
        leader = cluster.controller.topics["orders"].partitions[0].leader
        follower, other = {1, 2, 3} - {leader}
        await cluster.wait_for.isr("orders", 0, {1, 2, 3})
        with cluster.fault.stall_follower(follower):
            await _send(cluster, 2)
            await cluster.wait_for.isr("orders", 0, [leader, other], timeout=30)
            text = await _missing(cluster.wait_for.isr("orders", 0, {1, 2, 3}, timeout=1))
            assert f"the ISR is {sorted({leader, other})}, and broker {leader} leads" in text
        await cluster.wait_for.isr("orders", 0, {1, 2, 3})

    with World() as world:
        world.run(run(_world_cluster(world)))


def test_wait_ends_with_a_use_of_a_fault() -> None:
    async def run(cluster: WorldCluster) -> None:
        fault = cluster.fault.delay_responses(api="Produce", by_ms=5)
        sending = asyncio.create_task(_send(cluster, 2))
        await cluster.wait_for.uses(fault, 2)
        await sending
        fault.end()
        text = await _missing(cluster.wait_for.uses(fault, 3, timeout=1))
        assert "delay_responses was injected 2 times, and has ended" in text

    with World() as world:
        world.run(run(_world_cluster(world)))


def test_invalid_waits_are_refused_at_once() -> None:
    async def run(cluster: WorldCluster) -> None:
        waits = cluster.wait_for
        for waiting, text in (
            (waits(requests="Produse"), "the nearest are Produce"),
            (waits(requests="Produce", count=0), "count=0"),
            (waits.isr("orders", 0, {4}), "some of 1, 2, 3"),
            (waits.group_stable("billing", members=0), "members=0"),
        ):
            with pytest.raises(ClusterError, match=text):
                await waiting

    with World() as world:
        world.run(run(_world_cluster(world)))


def test_stopped_cluster_ends_waits() -> None:
    async def run(cluster: WorldCluster) -> None:
        waiting = asyncio.create_task(cluster.wait_for(requests="Fetch", timeout=None))
        await asyncio.sleep(1)
        await cluster.stop()
        with pytest.raises(ClusterError, match="the cluster was stopped"):
            await waiting

    with World() as world:
        world.run(run(_world_cluster(world)))
