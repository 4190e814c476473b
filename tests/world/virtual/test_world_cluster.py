"""A real Kafka client and the cluster, in virtual time."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import aiokafka
import pytest

from purgatory.virtual import World, WorldError
from purgatory.virtual.world import START

ROOT = Path(__file__).parents[3]
_RECORDS = 60


async def _produce_and_consume(servers: str) -> list[int]:
    """Send a record every half second, and read each of them."""
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True)
    consumer = aiokafka.AIOKafkaConsumer(
        "orders", bootstrap_servers=servers, group_id="readers", auto_offset_reset="earliest"
    )
    read: list[int] = []

    async def consume() -> None:
        async for record in consumer:
            read.append(int(record.value))
            if len(read) == _RECORDS:
                return

    async with producer, consumer:
        consuming = asyncio.create_task(consume())
        for number in range(_RECORDS):
            await producer.send_and_wait("orders", b"%d" % number, partition=number % 6)
            await asyncio.sleep(0.5)
        await consuming
    return read


@pytest.mark.parametrize("seed", range(3))
def test_client_survives_the_death_of_a_broker(seed: int) -> None:
    with World(seed) as world:
        cluster = world.cluster(brokers=3, topics={"orders": 6})
        world.at("10s", cluster.kill, 1)
        world.at("20s", cluster.revive, 1)
        read = world.run(_produce_and_consume(cluster.bootstrap_servers))
        assert 30 < world.now_s < 300
    assert sorted(read) == list(range(_RECORDS))
    cluster.audit(expect=["no-loss"]).assert_no_violations()


def test_two_worlds_of_a_seed_are_equal() -> None:
    def digest() -> str:
        with World(4) as world:
            cluster = world.cluster(topics={"orders": 6})
            world.run(_produce_and_consume(cluster.bootstrap_servers))
            return world.digest

    # aiokafka numbers the producers of a process for their names.
    before = aiokafka.AIOKafkaProducer._PRODUCER_CLIENT_ID_SEQUENCE
    assert digest() == digest()
    assert before == aiokafka.AIOKafkaProducer._PRODUCER_CLIENT_ID_SEQUENCE


def test_records_have_the_worlds_time() -> None:
    async def application(servers: str) -> list[int]:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers) as producer:
            times = []
            for _ in range(3):
                sent = await producer.send_and_wait("orders", b"x")
                times.append(sent.timestamp)
                await asyncio.sleep(60)
        return times

    with World() as world:
        cluster = world.cluster(brokers=1, topics=["orders"])
        times = world.run(application(cluster.bootstrap_servers))
    began_ms = round(START.timestamp() * 1_000)
    assert [round((one - began_ms) / 60_000) for one in times] == [0, 1, 2]


@pytest.mark.slow
def test_longest_timeouts_of_kafka_take_no_real_time() -> None:
    async def application(servers: str) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            "orders", bootstrap_servers=servers, group_id="g", session_timeout_ms=45_000
        )
        async with consumer:
            await asyncio.wait_for(_until_assigned(consumer), 60)
            await asyncio.sleep(3_600)
            assert consumer.assignment()

    with World() as world:
        cluster = world.cluster(brokers=1, topics=["orders"])
        world.run(application(cluster.bootstrap_servers))
        assert world.now_s > 3_600


async def _until_assigned(consumer: object) -> None:
    while not consumer.assignment():  # type: ignore[attr-defined]
        await asyncio.sleep(0.1)


def test_client_survives_a_partition_from_a_broker() -> None:
    with World(5) as world:
        cluster = world.cluster(brokers=3, topics={"orders": 6})
        partitions = []
        world.at("5s", lambda: partitions.append(world.network.partition("client", "broker 2")))
        world.at("20s", world.network.heal)
        read = world.run(_produce_and_consume(cluster.bootstrap_servers))
    assert sorted(read) == list(range(_RECORDS))


def test_world_keeps_no_rows_of_operations() -> None:
    """Operations are unused in a world, and an idle consumer would make two a second."""
    with World(1) as world:
        cluster = world.cluster(topics={"orders": 6})
        world.run(_produce_and_consume(cluster.bootstrap_servers))
        kept = {name: len(rows) for name, rows in cluster._rows._rows.items()}
    assert kept["reads"] == _RECORDS
    assert "operations" not in kept


_ONE_RUN = """
import asyncio, json, logging, sys
import aiokafka
from purgatory.virtual import World

logging.disable(logging.CRITICAL)

async def application(servers):
    # The client has sets of topics, partitions and brokers, of which it asks one at random.
    topics = ["orders", "payments", "refunds"]
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers) as producer:
        reader = aiokafka.AIOKafkaConsumer(
            *topics, bootstrap_servers=servers, auto_offset_reset="earliest"
        )
        async with reader:
            for topic in topics:
                sending = asyncio.create_task(producer.send_and_wait(topic, b"x"))
                await asyncio.wait([sending], timeout=1)
            await reader.getmany(timeout_ms=500)

async def run_without_raising(servers):
    await asyncio.wait([asyncio.create_task(application(servers))])

digests = []
for seed in range(int(sys.argv[1])):
    with World(seed) as world:
        cluster = world.cluster(topics={"orders": 3, "payments": 1, "refunds": 1})
        world.at("20ms", cluster.kill, 2)
        world.at("200ms", cluster.revive, 2)
        world.network.loss(0.002)
        world.run(run_without_raising(cluster.bootstrap_servers))
        digests.append(world.digest)
print(json.dumps(digests))
"""


def _digests(seeds: int, hash_seed: int) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", _ONE_RUN, str(seeds)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [30, pytest.param(100, marks=pytest.mark.exhaustive)])
def test_each_seed_has_equal_digests_in_two_processes(seeds: int) -> None:
    one, other = _digests(seeds, 1), _digests(seeds, 2)
    assert one == other
    assert len(set(one)) == seeds


_A_MINUTE_OF_CHAOS = "from tests.chaos.wire_hour import run_wire; print(run_wire(1, 1.0).digest)"


@pytest.mark.slow
def test_pure_core_runs_as_the_native_one() -> None:
    """The two once woke produces of this seed in different orders."""
    found = set()
    for pure in ("", "1"):
        done = subprocess.run(
            [sys.executable, "-c", _A_MINUTE_OF_CHAOS],
            env={**os.environ, "PURGATORY_PURE": pure, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout.splitlines()[-1])
    assert len(found) == 1


def test_cluster_started_in_a_coroutine_is_refused_with_advice() -> None:
    async def application(world: World) -> None:
        world.cluster(topics=["orders"])

    with World(seed=1) as world:
        with pytest.raises(WorldError, match="call it in a fixture that is a plain function"):
            world.run(application(world))
        assert world.cluster(topics=["orders"]).bootstrap_servers
