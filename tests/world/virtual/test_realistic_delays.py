"""Brokers that are some milliseconds behind, as those of a real Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

import aiokafka
import pytest

from purgatory.kafka.errors import ErrorCode
from purgatory.virtual import World
from purgatory.virtual.cluster import WorldCluster
from tests.wire.cluster.wire_values import record_batch
from tests.world.security import security_of
from tests.world.wire_client import (
    ADD_PARTITIONS,
    ALTER_CONFIGS,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    TRANSACTION,
    WireClient,
)

_RECORD = b"x" * 100
_TRANSACTIONAL_ID = "payments"


def _world_cluster(world: World) -> WorldCluster:
    return world.cluster(brokers=3, topics=["there"], realistic_delays=True)


def _client(cluster: WorldCluster, newest: bool = True) -> WireClient:
    return WireClient(cluster, "test", newest, security_of("none"))


async def _until_changed(ask: Callable[[], Awaitable[object]]) -> tuple[object, object, float]:
    """Ask each half millisecond until the answer changes.

    Returns:
        The first answer, the next one, and the milliseconds until then.
    """
    loop = asyncio.get_running_loop()
    first, began_s = await ask(), loop.time()
    while (following := await ask()) == first:
        assert loop.time() < began_s + 1
        await asyncio.sleep(0.000_5)
    return first, following, (loop.time() - began_s) * 1_000


async def _metadata(client: WireClient, topic: str, broker: int = 1) -> tuple[int, int]:
    """Return a topic's error, and its number of partitions."""
    asked = {"topics": [{"name": topic, "topic_id": None}], "allow_auto_topic_creation": True}
    answer = await client.ask(broker, METADATA, asked)
    return answer.topics[0].error_code, len(answer.topics[0].partitions)


async def _listed(client: WireClient, broker: int = 1) -> set[str]:
    answer = await client.ask(broker, METADATA, {"topics": None})
    return {topic.name for topic in answer.topics}


_UNKNOWN, _KNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0), (0, 1)


@pytest.mark.parametrize("newest", [False, True])
def test_automatic_topic_is_unknown_at_first(newest: bool) -> None:
    with World(1) as world:
        client = _client(_world_cluster(world), newest)
        first, then, after_ms = world.run(_until_changed(lambda: _metadata(client, "orders")))
        assert (first, then) == (_UNKNOWN, _KNOWN)
        assert 5 < after_ms < 105
        client.cut()


def test_created_topic_is_unknown_for_a_moment() -> None:
    async def create(client: WireClient) -> list[object]:
        topic = {"name": "orders", "num_partitions": 1, "replication_factor": 3}
        answer = await client.ask(1, CREATE_TOPICS, {"topics": [topic], "timeout": timedelta(1)})
        assert answer.topics[0].error_code == 0
        return [
            (await _until_changed(partial(_metadata, client, "orders", broker)))[:2]
            for broker in (1, 2, 3)
            if (await _metadata(client, "orders", broker)) != _KNOWN
        ]

    with World(1) as world:
        client = _client(_world_cluster(world))
        seen = world.run(create(client))
        assert seen and all(one == (_UNKNOWN, _KNOWN) for one in seen)
        client.cut()


def test_hidden_topic_is_in_no_list() -> None:
    async def create(client: WireClient) -> None:
        assert await _metadata(client, "orders") == _UNKNOWN
        assert await _listed(client) == {"there"}
        await asyncio.sleep(0.1)
        for broker in (1, 2, 3):
            assert await _listed(client, broker) == {"there", "orders"}

    with World(1) as world:
        client = _client(_world_cluster(world))
        world.run(create(client))
        client.cut()


async def _find(client: WireClient, key: str, kind: int) -> int:
    asked = {"key": key, "key_type": kind, "coordinator_keys": [key]}
    answer = await client.ask(1, FIND_COORDINATOR, asked)
    return int(answer.coordinators[0].error_code)


async def _described(client: WireClient) -> int:
    answer = await client.ask_coordinator("readers", 0, DESCRIBE_GROUPS, {"groups": ["readers"]})
    return int(answer.groups[0].error_code)


def test_first_coordinator_is_not_available_and_then_loads() -> None:
    async def use(client: WireClient) -> None:
        first, then, _ = await _until_changed(lambda: _find(client, "readers", 0))
        assert (first, then) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, 0)
        codes = []
        while (code := await _described(client)) != ErrorCode.GROUP_ID_NOT_FOUND:
            if code not in codes:
                codes.append(code)
            await asyncio.sleep(0.000_5)
        loading = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
        assert codes in (loading, [ErrorCode.NOT_COORDINATOR, *loading])

    with World(1) as world:
        client = _client(_world_cluster(world))
        world.run(use(client))
        client.cut()


def test_coordinator_loads_after_the_death_of_another() -> None:
    async def use(cluster: WorldCluster, client: WireClient) -> None:
        while await _find(client, "readers", 0):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert await _described(client) == ErrorCode.GROUP_ID_NOT_FOUND
        await cluster.kill(client._coordinators["readers", 0])
        client.forget()
        first, then, after_ms = await _until_changed(lambda: _described(client))
        assert first == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert then == ErrorCode.GROUP_ID_NOT_FOUND
        assert after_ms < 55

    with World(1) as world:
        cluster = _world_cluster(world)
        client = _client(cluster)
        world.run(use(cluster, client))
        client.cut()


async def _initialized(client: WireClient) -> int:
    asked = {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}
    return int((await client.ask(1, INIT_PRODUCER_ID, asked)).error_code)


def test_first_producer_id_is_loaded() -> None:
    with World(1) as world:
        client = _client(_world_cluster(world))
        first, then, after_ms = world.run(_until_changed(lambda: _initialized(client)))
        assert (first, then) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0)
        assert 2 < after_ms < 55
        client.cut()


async def _transactional(client: WireClient) -> tuple[int, int]:
    """Return the id and epoch of a transactional producer."""
    while await _find(client, _TRANSACTIONAL_ID, TRANSACTION):
        await asyncio.sleep(0.01)
    asked = {
        "transactional_id": _TRANSACTIONAL_ID,
        "transaction_timeout": timedelta(minutes=1),
        "producer_id": -1,
        "producer_epoch": -1,
    }
    while True:
        ask = client.ask_coordinator
        answer = await ask(_TRANSACTIONAL_ID, TRANSACTION, INIT_PRODUCER_ID, asked)
        if not answer.error_code:
            return answer.producer_id, answer.producer_epoch
        await asyncio.sleep(0.01)


def test_partitions_are_refused_right_after_a_transactions_end() -> None:
    async def use(newest: WireClient, oldest: WireClient) -> None:
        producer_id, epoch = await _transactional(newest)

        async def add() -> int:
            asked = {
                "v3_and_below_transactional_id": _TRANSACTIONAL_ID,
                "v3_and_below_producer_id": producer_id,
                "v3_and_below_producer_epoch": epoch,
                "v3_and_below_topics": [{"name": "there", "partitions": [0]}],
            }
            answer = await oldest.ask(coordinator, ADD_PARTITIONS, asked)
            partition = answer.results_by_topic_v3_and_below[0].results_by_partition[0]
            return int(partition.partition_error_code)

        coordinator = newest._coordinators[_TRANSACTIONAL_ID, TRANSACTION]
        assert await add() == 0
        ended = {
            "transactional_id": _TRANSACTIONAL_ID,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "committed": True,
        }
        assert (await oldest.ask(coordinator, END_TXN, ended)).error_code == 0
        first, then, after_ms = await _until_changed(add)
        assert (first, then) == (ErrorCode.CONCURRENT_TRANSACTIONS, 0)
        assert after_ms < 15

    with World(1) as world:
        cluster = _world_cluster(world)
        newest, oldest = _client(cluster), _client(cluster, newest=False)
        world.run(use(newest, oldest))
        newest.cut()
        oldest.cut()


async def _produce(client: WireClient, leader: int, count: int) -> int:
    """Send batches of one record, and return the bytes of one."""
    records = record_batch([_RECORD])
    for _ in range(count):
        data = [{"name": "there", "partition_data": [{"index": 0, "records": records}]}]
        asked = {"acks": -1, "timeout": timedelta(seconds=9), "topic_data": data}
        answer = await client.ask(leader, PRODUCE, asked)
        assert answer.responses[0].partition_responses[0].error_code == 0
    return len(records)


async def _fetched(client: WireClient, leader: int, most: int, request_most: int) -> int:
    """Return how many bytes of records a fetch returns."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": most}
    asked = {
        "replica_id": -1,
        "max_wait": timedelta(0),
        "max_bytes": request_most,
        "topics": [{"topic": "there", "partitions": [partition]}],
    }
    answer = await client.ask(leader, FETCH, asked)
    return len(answer.responses[0].partitions[0].records or b"")


def test_last_batch_of_a_full_fetch_is_cut() -> None:
    async def use(client: WireClient) -> None:
        leader = await client.leader("there", 0)
        size = await _produce(client, leader, 4)
        whole = 1 << 20
        assert await _fetched(client, leader, 2 * size + 30, whole) == 2 * size + 30
        assert await _fetched(client, leader, whole, 2 * size + 30) == 2 * size + 30
        assert await _fetched(client, leader, 2 * size, whole) == 2 * size
        assert await _fetched(client, leader, size // 2, whole) == size, "the first one is whole"
        assert await _fetched(client, leader, whole, whole) == 4 * size

    with World(1) as world:
        client = _client(_world_cluster(world), newest=False)
        world.run(use(client))
        client.cut()


def test_altered_config_is_old_for_a_moment() -> None:
    async def use(client: WireClient) -> None:
        async def retention(broker: int) -> str:
            resource = {"resource_type": 2, "resource_name": "there", "configuration_keys": None}
            answer = await client.ask(broker, DESCRIBE_CONFIGS, {"resources": [resource]})
            configs = {one.name: one.value for one in answer.results[0].configs}
            return str(configs["retention.ms"])

        before = await retention(1)
        config = {"name": "retention.ms", "config_operation": 0, "value": "1000"}
        resource = {"resource_type": 2, "resource_name": "there", "configs": [config]}
        answer = await client.ask(1, ALTER_CONFIGS, {"resources": [resource]})
        assert answer.responses[0].error_code == 0
        first, then, after_ms = await _until_changed(lambda: retention(1))
        assert (first, then) == (before, "1000")
        assert after_ms < 55
        await asyncio.sleep(0.05)
        assert [await retention(broker) for broker in (1, 2, 3)] == ["1000"] * 3

    with World(1) as world:
        client = _client(_world_cluster(world))
        world.run(use(client))
        client.cut()


def test_nothing_is_delayed_by_default() -> None:
    async def use(client: WireClient, oldest: WireClient) -> None:
        assert await _metadata(client, "orders") == _KNOWN
        assert await _find(client, "readers", 0) == 0
        assert await _described(client) == ErrorCode.GROUP_ID_NOT_FOUND
        assert await _initialized(client) == 0
        leader = await oldest.leader("there", 0)
        size = await _produce(oldest, leader, 2)
        assert await _fetched(oldest, leader, size + 9, 1 << 20) == size

    with World(1) as world:
        cluster = world.cluster(brokers=3, topics=["there"])
        client, oldest = _client(cluster), _client(cluster, newest=False)
        world.run(use(client, oldest))
        client.cut()
        oldest.cut()


async def _consume_transform_produce(servers: str) -> list[int]:
    """Send numbers, and pass them on in transactions; return what is read in the end."""
    numbers = range(30)
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers) as producer:
        for number in numbers:
            await producer.send_and_wait("in", b"%d" % number)
    consumer = aiokafka.AIOKafkaConsumer(
        "in",
        bootstrap_servers=servers,
        group_id="g",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=100,
    )
    passing = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, transactional_id="t")
    passed = 0
    async with consumer, passing:
        while passed < len(numbers):
            message = await consumer.getone()
            async with passing.transaction():
                await passing.send("out", message.value)
                offsets = {aiokafka.TopicPartition("in", 0): message.offset + 1}
                await passing.send_offsets_to_transaction(offsets, "g")
            passed += 1
    reader = aiokafka.AIOKafkaConsumer(
        "out",
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    async with reader:
        return [int((await reader.getone()).value) for _ in numbers]


@pytest.mark.parametrize("seed", range(2))
def test_aiokafka_works_with_realistic_delays(seed: int) -> None:
    with World(seed) as world:
        cluster = _world_cluster(world)
        read = world.run(_consume_transform_produce(cluster.bootstrap_servers), "10min")
    assert read == list(range(30))
    cluster.audit(expect=["no-loss", "once"]).assert_no_violations()


def test_delays_are_the_same_in_two_worlds_of_a_seed() -> None:
    def delay_ms(seed: int) -> float:
        with World(seed) as world:
            client = _client(_world_cluster(world))
            found = world.run(_until_changed(lambda: _metadata(client, "orders")))[2]
            client.cut()
            return found

    assert delay_ms(4) == delay_ms(4)
    assert len({delay_ms(seed) for seed in range(3)}) > 1
