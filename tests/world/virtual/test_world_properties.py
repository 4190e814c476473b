"""Properties of a world, each with clients that keep it and clients that break it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import aiokafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from purgatory.cluster import ClusterConfig
from purgatory.kafka import TopicPartition, faults
from purgatory.pipeline.jobs.audit import ProducerSettings, RunConfiguration
from purgatory.pipeline.jobs.audit.findings import Findings
from purgatory.virtual import World, WorldError
from purgatory.virtual.cluster import WorldCluster
from purgatory.virtual.failure_report import RepeatedTest, world_failure
from tests.wire.cluster.wire_values import record_batch, request_frame

_PRODUCE, _VERSION, _ALL = 0, 8, -1
_CHECKS: list[Callable[[World], Findings]] = [
    World.check_no_loss,
    World.check_order,
    World.check_exactly_once,
]


async def _send(cluster: WorldCluster, count: int, first: int = 0, **settings: Any) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **settings)
    async with producer:
        for number in range(first, first + count):
            await producer.send_and_wait("orders", b"%d" % number)


async def _read(cluster: WorldCluster, until: int) -> list[int]:
    """Read from the beginning to this number."""
    consumer = AIOKafkaConsumer(
        "orders", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
    )
    read = []
    async with consumer, asyncio.timeout(60):
        async for record in consumer:
            read.append(int(record.value))
            if read[-1] == until:
                return read
    raise AssertionError("the consumer ended")


def _leader(cluster: WorldCluster) -> int:
    state = cluster.controller.state_of(TopicPartition("orders", 0))
    assert state is not None
    return state.leader


def test_records_with_acks_1_are_lost_with_their_broker() -> None:
    async def application(cluster: WorldCluster) -> list[int]:
        await _send(cluster, 1)
        leader = _leader(cluster)
        for broker in {1, 2, 3} - {leader}:
            await cluster.fault.begin(faults.StallFollower(broker, for_s=8))
        await _send(cluster, 3, first=1, acks=1)
        await asyncio.sleep(3)  # the responses have certainly arrived by then
        await cluster.kill(leader)
        await _send(cluster, 5, first=4, acks="all")
        return await _read(cluster, until=8)

    with World(1) as world:
        cluster = world.cluster(brokers=3, topics=["orders"])
        read = world.run(application(cluster))
        assert not {1, 2, 3} & set(read)
        with pytest.raises(
            AssertionError, match="check_no_loss: broken: no acknowledged record"
        ) as caught:
            world.check_no_loss()
        message = str(caught.value)
        assert "lost_write in aiokafka-producer-" in message
        assert ": 3 violations (no-loss expected, in spite of acks=1)" in message
        assert "send by aiokafka-producer-" in message
        with pytest.raises(AssertionError, match="check_exactly_once: broken"):
            world.check_exactly_once()
        world.check_order()


def test_lost_response_duplicates_without_idempotence() -> None:
    async def application(cluster: WorldCluster, idempotent: bool) -> list[int]:
        servers = cluster.bootstrap_servers
        async with AIOKafkaProducer(
            bootstrap_servers=servers, acks="all", enable_idempotence=idempotent
        ) as producer:
            for number in range(5):
                if number == 2:
                    await cluster.fault.begin(faults.LoseResponses(_leader(cluster), 1))
                await producer.send_and_wait("orders", b"%d" % number)
        return await _read(cluster, until=4)

    for idempotent in (False, True):
        with World(1) as world:
            cluster = world.cluster(brokers=3, topics=["orders"])
            read = world.run(application(cluster, idempotent))
            assert sorted(set(read)) == list(range(5))
            world.check_no_loss()
            if idempotent:
                world.check_exactly_once()
                continue
            with pytest.raises(AssertionError, match="lost_ack_duplicate in aiokafka-producer-"):
                world.check_exactly_once()


@asynccontextmanager
async def _connection(
    cluster: WorldCluster,
) -> AsyncIterator[tuple[Callable[[bytes], None], Callable[[], Any]]]:
    """A producer of bare frames to the leader, which sends more before the first response."""
    place = cluster.brokers[_leader(cluster)].endpoint(cluster.config.all_listeners[0])
    reader, writer = await asyncio.open_connection(place.host, place.port)
    asked = 0

    def send(value: bytes) -> None:
        nonlocal asked
        asked += 1
        data = [{"index": 0, "records": record_batch([value])}]
        produce = {
            "acks": _ALL,
            "timeout": timedelta(seconds=5),
            "topic_data": [{"name": "orders", "partition_data": data}],
        }
        frame = request_frame(_PRODUCE, _VERSION, asked, produce)
        writer.write(len(frame).to_bytes(4, "big") + frame)

    async def answered() -> None:
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))

    yield send, answered
    writer.close()


def test_later_record_overtakes_a_refused_one() -> None:
    async def application(cluster: WorldCluster, in_flight: int) -> None:
        await cluster.fault.begin(faults.RefuseProduces(_leader(cluster), 1, for_s=60))
        async with _connection(cluster) as (send, answered):
            for _ in range(in_flight):
                for value in (b"a", b"b")[:in_flight]:
                    send(value)
                for _ in range(in_flight):
                    await answered()
            send(b"a")
            await answered()

    for in_flight in (1, 2):
        with World(1) as world:
            cluster = world.cluster(brokers=3, topics=["orders"])
            world.pass_time("1s")
            world.run(application(cluster, in_flight))
            if in_flight == 1:
                world.check_order()
                continue
            with pytest.raises(AssertionError, match="check_order: broken") as caught:
                world.check_order()
            assert "retry_reorder" in str(caught.value)


def test_check_without_evidence_fails() -> None:
    with World() as world:
        cluster = world.cluster(brokers=1, topics=["orders"])
        for check in _CHECKS:
            with pytest.raises(AssertionError, match=r"acknowledged anything \(of 0 attempts"):
                check(world)
        world.run(_send(cluster, 2, acks=0))
        world.pass_time("1s")
        with pytest.raises(AssertionError, match=r"acknowledged anything \(of 2 attempts"):
            world.check_no_loss()
        world.run(_send(cluster, 2, first=2, acks="all"))
        for check in (World.check_no_loss, World.check_exactly_once):
            with pytest.raises(AssertionError, match="2 sends were acknowledged and nothing was"):
                check(world)
        assert world.check_order().count("unseen") == 4


@pytest.mark.slow
def test_unread_records_are_unseen() -> None:
    with World() as world:
        cluster = world.cluster(brokers=1, topics=["orders"])
        world.run(_send(cluster, 3, acks="all"))
        world.run(_read(cluster, until=2))
        assert world.check_no_loss().count("unseen") == 0
        world.run(_send(cluster, 2, first=3, acks="all"))
        assert world.check_no_loss().count("unseen") == 2
        world.pass_time("2s")  # the responses arrive before all connections are cut
    assert world.check_exactly_once(cluster).count("unseen") == 2, "the audit works after the world"


@pytest.mark.slow
def test_check_no_loss_allows_rereads_and_skips() -> None:
    async def application(cluster: WorldCluster) -> None:
        await _send(cluster, 3, acks="all")
        await _read(cluster, until=2)
        await _send(cluster, 3, first=3, acks="all")
        await _read(cluster, until=5)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=cluster.bootstrap_servers, client_id="jumps", fetch_max_bytes=1
        )
        place = aiokafka.TopicPartition("orders", 0)
        consumer.assign([place])
        async with consumer:
            for offset in (0, 4, 1):
                consumer.seek(place, offset)
                await consumer.getone()

    with World() as world:
        cluster = world.cluster(brokers=1, topics=["orders"])
        world.run(application(cluster))
        for check in _CHECKS:
            assert check(world).count("nonmonotonic_poll") > 0


def test_check_covers_one_cluster() -> None:
    with World() as world:
        with pytest.raises(WorldError, match=r"this world has no: world.cluster\(\) starts one"):
            world.check_order()
        one = world.cluster(brokers=1, topics=["orders"])
        elsewhere = ClusterConfig(first_port=19092)
        other = world.cluster(brokers=1, topics=["orders"], config=elsewhere)
        with pytest.raises(WorldError, match="this world has 2: name one"):
            world.check_order()
        world.run(_send(other, 1, acks="all", client_id="me"))
        known = RunConfiguration(producers=[ProducerSettings("me", idempotence=False)])
        world.check_order(other, known)
        with pytest.raises(AssertionError, match="0 attempts"):
            world.check_order(one)


def test_failure_report_names_requests_and_the_tests_own_faults() -> None:
    async def application(cluster: WorldCluster) -> None:
        await cluster.fault.begin(faults.LoseResponses(None, 1, api="Produce"))
        await cluster.fault.begin(faults.StallFollower(2, for_s=900))
        await _send(cluster, 1, acks=1, client_id="me")

    with World(1) as world:
        cluster = world.cluster(topics=["orders"])
        assert (
            "\nfaults: none\n"
            in world_failure(world, RepeatedTest("test_it.py::test_it", 1), None).report
        )
        world.run(application(cluster))
        world.network.partition("broker 1", "broker 3")
        world.network.lose(0.5)
        report = world_failure(world, RepeatedTest("test_it.py::test_it", 1), None).report
    assert (
        "\nfaults in force: stall_follower(broker=2); partition broker 1|broker 3; "
        "50.000% of segments lost\n"
    ) in report
    assert "\nfaults that were over: lose_responses(count=1, api=produce), 1 times\n" in report
    assert re.search(r" client:\d+ > broker \d  Produce v\d+, \d+ bytes\n", report)
    assert re.search(r" broker \d > client:\d+  Produce response, \d+ bytes\n", report)


@pytest.mark.slow
def test_unread_partition_proves_nothing() -> None:
    async def application(cluster: WorldCluster) -> None:
        await _send(cluster, 2, acks="all")
        await _read(cluster, until=1)
        async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            await producer.send_and_wait("dead-letters", b"0")

    with World(1) as world:
        cluster = world.cluster(brokers=1, topics=["orders", "dead-letters"])
        world.run(application(cluster))
        for check in (World.check_no_loss, World.check_exactly_once):
            with pytest.raises(AssertionError, match="undecided whether") as caught:
                check(world)
            assert "dead-letters-0, offset 0, key null, value '0', at " in str(caught.value)
        world.check_order()


@pytest.mark.slow
def test_relayed_copies_are_no_duplicates() -> None:
    async def application(cluster: WorldCluster) -> None:
        servers = cluster.bootstrap_servers
        await _send(cluster, 10, acks="all", enable_idempotence=True)
        async with (
            AIOKafkaConsumer(
                "orders", bootstrap_servers=servers, auto_offset_reset="earliest"
            ) as orders,
            AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer,
        ):
            for _ in range(10):
                await producer.send_and_wait("invoices", (await orders.getone()).value)
        async with AIOKafkaConsumer(
            "invoices", bootstrap_servers=servers, auto_offset_reset="earliest"
        ) as invoices:
            for _ in range(10):
                await invoices.getone()

    with World(1) as world:
        cluster = world.cluster(topics=["orders", "invoices"], min_insync_replicas=2)
        world.run(application(cluster))
        assert world.check_exactly_once().count("duplicate") == 0
        world.check_no_loss()
