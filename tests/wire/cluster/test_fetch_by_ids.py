"""Fetch and Produce by topic ids, and fetch sessions, over the wire and by real clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any
from uuid import UUID

from kafka import KafkaConsumer

from purgatory.cluster import Cluster, ClusterConfig, ThreadedCluster, TopicSpec
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.wire.cluster.kafka_client import TIMEOUT_S
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import record_batch

_PRODUCE, _FETCH, _METADATA, _CREATE, _DELETE = 0, 1, 3, 19, 20
_NEWEST = 18


def _run(main: Callable[[Cluster, RawClient], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        topics = [TopicSpec("t", 2), TopicSpec("u")]
        async with (
            Cluster(ClusterConfig(brokers=1, topics=topics)) as cluster,
            await RawClient.to(cluster) as client,
        ):
            await main(cluster, client)

    asyncio.run(run())


def _id(cluster: Cluster, topic: str) -> UUID:
    return cluster.controller.topics[topic].topic_id


async def _fetch(
    client: RawClient,
    topic_id: UUID | None,
    partitions: dict[int, int],
    session: tuple[int, int] = (0, 0),
    wait_ms: int = 0,
    version: int = _NEWEST,
) -> Any:
    asked = [
        {"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        for number, offset in partitions.items()
    ]
    topics = [{"topic_id": topic_id, "partitions": asked}] if topic_id else []
    values = {
        "max_wait": timedelta(milliseconds=wait_ms),
        "min_bytes": 1,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": topics,
    }
    return await client.ask(_FETCH, version, values)


async def _produce(client: RawClient, topic_id: UUID, partition: int = 0) -> Any:
    data = [{"index": partition, "records": record_batch([b"x"])}]
    topic = {"topic_id": topic_id, "partition_data": data}
    answer = await client.ask(_PRODUCE, 13, {"acks": 1, "topic_data": [topic]})
    return answer.responses[0]


def _told(answer: Any) -> dict[int, tuple[int, int]]:
    """Return error code and watermark by partition."""
    return {
        one.partition_index: (int(one.error_code), one.high_watermark)
        for topic in answer.responses
        for one in topic.partitions
    }


def test_session_fetch_wakes_for_changes_and_returns_them() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        topic_id = _id(cluster, "t")
        first = await _fetch(client, topic_id, {0: 0, 1: 0})
        assert first.session_id > 0
        assert _told(first) == {0: (0, 0), 1: (0, 0)}
        nothing = await _fetch(client, None, {}, (first.session_id, 1))
        assert (nothing.error_code, nothing.session_id) == (0, first.session_id)
        assert nothing.responses == ()
        waiting = asyncio.create_task(
            _fetch(client, None, {}, (first.session_id, 2), wait_ms=60_000)
        )
        async with await RawClient.to(cluster) as producer:
            produced = await _produce(producer, topic_id, 1)
        assert produced.topic_id == topic_id
        assert produced.partition_responses[0].error_code == 0
        answer = await waiting
        assert _told(answer) == {1: (0, 1)}
        assert answer.responses[0].topic_id == topic_id
        moved = await _fetch(client, topic_id, {1: 1}, (first.session_id, 3))
        assert moved.responses == (), "it stands behind the record now, and knows the watermark"

    _run(main)


def test_unknown_or_outdated_session_is_refused_as_a_whole() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        topic_id = _id(cluster, "t")
        assert (await _fetch(client, topic_id, {0: 0}, (99, 1))).error_code == 70
        session_id = (await _fetch(client, topic_id, {0: 0})).session_id
        assert (await _fetch(client, None, {}, (session_id, 2))).error_code == 71
        assert (await _fetch(client, None, {}, (session_id, 1), version=12)).error_code == 106
        await cluster.kill(1)
        await cluster.revive(1)
        async with await RawClient.to(cluster) as again:
            assert (await _fetch(again, None, {}, (session_id, 1))).error_code == 70

    _run(main)


def test_recreated_topic_is_detected_in_a_session() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        former = _id(cluster, "u")
        session_id = (await _fetch(client, former, {0: 0})).session_id
        deleted = await client.ask(
            _DELETE, 6, {"topics": [{"topic_id": former}], "timeout": timedelta(seconds=5)}
        )
        assert (deleted.responses[0].error_code, deleted.responses[0].name) == (0, "u")
        answer = await _fetch(client, None, {}, (session_id, 1), wait_ms=60_000)
        assert _told(answer) == {0: (3, -1)}
        asked = {"name": "u", "num_partitions": 1, "replication_factor": 1}
        created = await client.ask(_CREATE, 7, {"topics": [asked], "timeout": timedelta(seconds=5)})
        assert created.topics[0].topic_id == _id(cluster, "u") != former
        answer = await _fetch(client, None, {}, (session_id, 2), wait_ms=60_000)
        assert _told(answer) == {0: (103, -1)}, "inconsistent"
        answer = await _fetch(client, former, {0: 0}, wait_ms=60_000)
        assert _told(answer) == {0: (100, -1)}, "unknown"
        produced = await _produce(client, former)
        assert produced.partition_responses[0].error_code == 100
        assert str(former) in produced.partition_responses[0].error_message

    _run(main)


def test_deletion_needs_either_an_id_or_a_name() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        both = {"name": "t", "topic_id": _id(cluster, "t")}
        asked = [both, {"name": None}, {"name": None, "topic_id": UUID(int=9)}, {"name": "no"}]
        answer = await client.ask(_DELETE, 6, {"topics": asked, "timeout": timedelta(seconds=9)})
        assert [one.error_code for one in answer.responses] == [42, 42, 100, 3]
        assert "name it by one of them" in answer.responses[0].error_message
        assert "t" in cluster.controller.topics

    _run(main)


def test_wrong_broker_returns_the_leader() -> None:
    async def main() -> None:
        config = ClusterConfig(brokers=2, topics=[TopicSpec("t", 2, 1)])
        async with Cluster(config) as cluster:
            topic_id = _id(cluster, "t")
            leaders = [state.leader for _, state in cluster.controller.partitions()]
            assert sorted(leaders) == [1, 2]
            for partition, leader in enumerate(leaders):
                async with await RawClient.to(cluster, 3 - leader) as client:
                    data = [{"index": partition, "records": record_batch([b"x"])}]
                    topic = {"name": "t", "partition_data": data}
                    values = {"acks": 1, "topic_data": [topic]}
                    answer = await client.ask(_PRODUCE, 10, values)
                    told = answer.responses[0].partition_responses[0]
                    fetched = await _fetch(client, topic_id, {partition: 0})
                    read = fetched.responses[0].partitions[0]
                    for one, of in ((told, answer), (read, fetched)):
                        assert one.error_code == 6
                        assert one.current_leader.leader_id == leader
                        (endpoint,) = of.node_endpoints
                        assert (endpoint.node_id, endpoint.port) == (
                            leader,
                            cluster.brokers[leader].port,
                        )

    asyncio.run(main())


def test_kafka_python_reads_in_a_session(cluster: ThreadedCluster, name: str) -> None:
    cluster.create_topic(name, partitions=3)
    client = ConfluentClient(cluster.bootstrap_servers)
    consumer = KafkaConsumer(
        name,
        bootstrap_servers=cluster.bootstrap_servers.split(","),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        enable_incremental_fetch_sessions=True,
    )
    try:
        read: list[bytes] = []
        for number in range(3):
            client.produce(name, [b"%d" % number])
            while len(read) <= number:
                found = consumer.poll(timeout_ms=int(1_000 * TIMEOUT_S))
                assert found, "nothing came"
                read += [record.value for records in found.values() for record in records]
        assert read == [b"0", b"1", b"2"]

        def sessions() -> list[int]:
            return [len(broker.fetch_sessions) for broker in cluster.running.brokers.values()]

        assert sum(cluster.call(sessions)) > 0
    finally:
        consumer.close()
