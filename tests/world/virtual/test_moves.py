"""Leaders, coordinators and the controller that move, and brokers that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from purgatory.cluster import ClusterError
from purgatory.kafka import OFFSETS_TOPIC
from purgatory.virtual import World
from purgatory.virtual.cluster import WorldCluster
from tests.world.security import security_of
from tests.world.wire_client import GROUP, METADATA, TRANSACTION, WireClient


def _run(
    main: Callable[[WorldCluster], Coroutine[Any, Any, None]], brokers: int = 3, **settings: Any
) -> None:
    with World(1) as world:
        world.run(main(world.cluster(brokers, {"orders": 3}, **settings)))


def _producer(cluster: WorldCluster) -> AIOKafkaProducer:
    return AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, acks="all", enable_idempotence=True
    )


async def _read(cluster: WorldCluster, count: int) -> list[int]:
    async with AIOKafkaConsumer(
        "orders",
        bootstrap_servers=cluster.bootstrap_servers,
        group_id="billing",
        auto_offset_reset="earliest",
    ) as consumer:
        return [int((await consumer.getone()).value) for _ in range(count)]


def test_leader_moves_while_a_producer_sends() -> None:
    async def main(cluster: WorldCluster) -> None:
        partition = cluster.controller.topics["orders"].partitions[0]
        leaders, epochs = [], []
        async with _producer(cluster) as producer:
            for number in range(9):
                to = number % 3 + 1
                sending = [
                    asyncio.create_task(producer.send_and_wait("orders", b"%d" % one, partition=0))
                    for one in (2 * number, 2 * number + 1)
                ]
                cluster.move.leader("orders", 0, to=to)
                leaders.append(partition.leader == to)
                epochs.append(partition.leader_epoch)
                await asyncio.gather(*sending)
        assert all(leaders) and epochs == sorted(epochs)
        assert await _read(cluster, 18) == list(range(18))
        assert all(broker.alive for broker in cluster.brokers.values())

    _run(main)


def test_coordinator_moves_with_its_offsets() -> None:
    async def main(cluster: WorldCluster) -> None:
        client = WireClient(cluster, "test", True, security_of("none"))
        async with _producer(cluster) as producer:
            for to in (1, 2, 3):
                await producer.send_and_wait("orders", b"%d" % to, partition=0)
                cluster.move.coordinator(group_id="billing", to=to)
                client.forget()
                assert await client.coordinator("billing", GROUP) == to
                assert await _read(cluster, 1) == [to]
        cluster.move.coordinator(transactional_id="sales", to=2)
        assert await client.coordinator("sales", TRANSACTION) == 2
        client.cut()

    _run(main)


def test_controller_moves_until_its_death() -> None:
    async def main(cluster: WorldCluster) -> None:
        client = WireClient(cluster, "test", True, security_of("none"))

        async def controller() -> int:
            return int((await client.ask(2, METADATA, {"topics": []})).controller_id)

        assert await controller() == 1
        cluster.move.controller(to=3)
        assert await controller() == 3
        await cluster.fault.kill(3)
        assert await controller() == 1
        client.cut()

    _run(main)


def test_impossible_moves_are_refused() -> None:
    async def main(cluster: WorldCluster) -> None:
        move = cluster.move
        await cluster.fault.kill(3)
        with pytest.raises(ClusterError, match="a live broker, of 1, 2"):
            move.controller(to=3)
        with pytest.raises(ClusterError, match="there is no partition orders-9"):
            move.leader("orders", 9, to=1)
        with pytest.raises(ClusterError, match="one of them"):
            move.coordinator(to=1)
        follower = 3 - cluster.controller.topics["orders"].partitions[0].leader
        cluster.fault.shrink_isr("orders", 0, follower)
        with pytest.raises(ClusterError, match="in sync are"):
            move.leader("orders", 0, to=follower)

    _run(main)


def test_added_broker_takes_new_topics() -> None:
    async def main(cluster: WorldCluster) -> None:
        assert await cluster.add_broker() == 4
        cluster.controller.create_topic("new", 4, 3)
        leaders = {partition.leader for partition in cluster.controller.topics["new"].partitions}
        assert leaders == {1, 2, 3, 4}
        async with _producer(cluster) as producer:
            for partition in range(4):
                await producer.send_and_wait("new", b"0", partition=partition)
        assert "9095" in cluster.bootstrap_servers

    _run(main, realistic_delays=True)


@pytest.mark.parametrize("removed", [1, 2])
def test_removed_broker_leaves_its_records_to_others(removed: int) -> None:
    async def main(cluster: WorldCluster) -> None:
        async with _producer(cluster) as producer:
            for number in range(4):
                await producer.send_and_wait("orders", b"%d" % number, partition=0)
            assert await _read(cluster, 4) == list(range(4))
            await cluster.add_broker()
            await cluster.remove_broker(removed)
            for number in range(4, 8):
                await producer.send_and_wait("orders", b"%d" % number, partition=0)
        left = {1, 2, 3, 4} - {removed}
        assert set(cluster.brokers) == left
        for topic in ("orders", OFFSETS_TOPIC):
            for partition in cluster.controller.topics[topic].partitions:
                assert set(partition.replicas) == left
        await cluster.wait_for.isr("orders", 0, left)
        assert await _read(cluster, 4) == list(range(4, 8)), "the group's offsets have moved, too"
        assert await cluster.add_broker() == 5

    _run(main)


def test_last_brokers_are_not_removed() -> None:
    async def main(cluster: WorldCluster) -> None:
        await cluster.remove_broker(2)
        assert cluster.controller.topics["orders"].partitions[0].replicas == (1,)
        with pytest.raises(ClusterError, match="the last one that lives"):
            await cluster.remove_broker(1)
        with pytest.raises(ClusterError, match="there is no broker 2"):
            await cluster.remove_broker(2)

    _run(main, brokers=2)


def test_brokers_on_disk_are_those_of_the_configuration() -> None:
    async def main(cluster: WorldCluster) -> None:
        with pytest.raises(ClusterError, match="data folder"):
            await cluster.add_broker()

    _run(main, disk=True)
