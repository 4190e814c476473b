"""Responses with injected faults, byte by byte, by a client that hides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import uvloop

from purgatory.cluster import Cluster, ClusterConfig, TopicSpec
from purgatory.kafka import TopicPartition
from tests.wire.cluster.conftest import eventually, leader_of
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import RECORD_TIME_MS, record_batch, request_frame

_DAY_MS = 24 * 3_600_000
_TOPICS = [TopicSpec("orders"), TopicSpec("other")]


def _run(main: Callable[[Cluster], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        config = ClusterConfig(**{"brokers": 2, "topics": _TOPICS, **options})
        async with Cluster(config) as cluster:
            await main(cluster)

    uvloop.run(run())


def _produce(*topics: str, acks: int = 1) -> dict[str, Any]:
    data = [{"index": 0, "records": record_batch([b"x"])}]
    return {
        "acks": acks,
        "timeout": timedelta(seconds=20),
        "topic_data": [{"name": topic, "partition_data": data} for topic in topics],
    }


async def _appended(client: RawClient, *topics: str) -> dict[str, tuple[int, int]]:
    """Return errors and offsets by topic."""
    answer = await client.ask(0, 9, _produce(*topics))
    return {
        topic.name: (int(one.error_code), one.base_offset)
        for topic in answer.responses
        for one in topic.partition_responses
    }


def _end(cluster: Cluster, topic: str) -> int:
    broker = cluster.brokers[leader_of(cluster, topic)]
    partition = broker.manager.partition(TopicPartition(topic, 0))
    assert partition is not None
    return partition.log_end_offset


def test_part_of_a_request_is_refused_and_the_rest_executed() -> None:
    async def main(cluster: Cluster) -> None:
        async with await RawClient.to(cluster, 1) as client:
            with cluster.fault.return_error(error="NOT_ENOUGH_REPLICAS", topic="orders") as fault:
                assert await _appended(client, "orders", "other") == {
                    "other": (0, 0),
                    "orders": (19, -1),
                }
                assert (_end(cluster, "orders"), _end(cluster, "other")) == (0, 1)
            assert fault.uses == 1
            with cluster.fault.return_error(api="Produce", error="NOT_ENOUGH_REPLICAS", after=True):
                assert await _appended(client, "orders") == {"orders": (19, -1)}
            assert _end(cluster, "orders") == 1
            assert await _appended(client, "orders") == {"orders": (0, 1)}

    _run(main, brokers=1)


def test_two_faults_target_parts_of_one_request() -> None:
    async def main(cluster: Cluster) -> None:
        fault = cluster.fault
        async with await RawClient.to(cluster) as client:
            first = fault.return_error(error="REQUEST_TIMED_OUT", topic="orders", after=True)
            second = fault.return_error(error="NOT_ENOUGH_REPLICAS", topic="other")
            third = fault.return_error(error="KAFKA_STORAGE_ERROR", topic="other")
            told = await _appended(client, "orders", "other")
            assert told == {"orders": (7, -1), "other": (19, -1)}
            assert [first.uses, second.uses, third.uses] == [1, 1, 0]
            assert (_end(cluster, "orders"), _end(cluster, "other")) == (1, 0)

    _run(main, brokers=1)


def test_error_for_acks_0_cuts_the_connection() -> None:
    async def main(cluster: Cluster) -> None:
        leader = leader_of(cluster, "orders")
        async with await RawClient.to(cluster, leader) as client:
            with cluster.fault.return_error(api="Produce", error="NOT_LEADER_OR_FOLLOWER") as fault:
                client.send(request_frame(0, 9, 1, _produce("orders", acks=0)))
                assert await client.wait_closed() == b""
            assert fault.uses == 1 and _end(cluster, "orders") == 0

    _run(main)


def test_response_is_truncated_and_the_connection_closed() -> None:
    async def main(cluster: Cluster) -> None:
        for kept, left in ((None, None), (0, 0), (2, 2), (10**6, -1)):
            async with await RawClient.to(cluster) as client:
                client.send(request_frame(18, 0, 1))
                whole = await client.receive()
                size = 4 + len(whole)
                with cluster.fault.truncate_responses(count=1, keep_bytes=kept):
                    client.send(request_frame(18, 0, 1))
                    came = await client.wait_closed()
                assert len(came) == (size // 2 if left is None else left % size)
                assert (len(whole).to_bytes(4, "big") + whole).startswith(came)

    _run(main)


def test_slow_response_arrives_whole() -> None:
    async def main(cluster: Cluster) -> None:
        async with await RawClient.to(cluster) as client:
            client.send(request_frame(18, 0, 1))
            whole = await client.receive()
            loop = asyncio.get_running_loop()
            with cluster.fault.slow_responses(bytes_per_s=2_000) as fault:
                began_s = loop.time()
                client.send(request_frame(18, 0, 1))
                assert await client.receive() == whole
            assert loop.time() - began_s >= 0.9 * len(whole) / 2_000
            assert fault.uses == 1

    _run(main)


def test_throttle_time_is_added_to_responses_that_have_one() -> None:
    async def main(cluster: Cluster) -> None:
        async with await RawClient.to(cluster) as client:
            with cluster.fault.throttle(throttle_ms=1_500) as fault:
                assert (await client.ask(18, 0)).api_keys, "version 0 has no throttle time"
                assert fault.uses == 0
                assert (await client.ask(18, 3)).throttle_time == timedelta(seconds=1.5)
                answer = await client.ask(3, 8, {"topics": []})
                assert answer.throttle_time == timedelta(seconds=1.5)
                assert fault.uses == 2

    _run(main)


async def _led(client: RawClient, topic: str) -> tuple[int, int]:
    """Return a topic's leader and its epoch by a broker's metadata."""
    answer = await client.ask(3, 8, {"topics": [{"name": topic}]})
    [one] = answer.topics[0].partitions
    return one.leader_id, one.leader_epoch


def test_frozen_metadata_repeat_the_last_responses() -> None:
    async def main(cluster: Cluster) -> None:
        leader = leader_of(cluster, "orders")
        other = 3 - leader
        creating = {"topics": [{"name": "new"}], "allow_auto_topic_creation": False}
        async with (
            await RawClient.to(cluster, leader) as leaders_client,
            await RawClient.to(cluster, other) as client,
        ):
            before = await _led(leaders_client, "orders")
            await client.ask(3, 8, {"topics": None})
            assert (await client.ask(3, 8, creating)).topics[0].error_code == 3
            with cluster.fault.freeze_metadata(other) as frozen:
                await cluster.fault.kill(leader)
                await eventually(lambda: leader_of(cluster, "orders") == other)
                assert await _led(client, "orders") == before == (leader, 0)
                cluster.controller.create_topic("new", 1, 1)
                answer = await client.ask(3, 8, {"topics": None})
                assert [one.name for one in answer.topics] == ["orders", "other"]
                assert len(answer.brokers) == 2, "it takes the dead one for alive"
                assert (await client.ask(3, 8, creating)).topics[0].error_code == 3
                assert await _led(client, "other") is not None, "the first such request"
                cluster.controller.delete_topic("new")
                assert frozen.uses == 4
            assert await _led(client, "orders") == (other, 1)
            with cluster.fault.lower_leader_epochs(topic="orders"):
                assert await _led(client, "orders") == (other, 0)
            with cluster.fault.lower_leader_epochs(topic="other", epochs=5):
                assert await _led(client, "orders") == (other, 1)

    _run(main)


def test_jumped_clock_expires_records() -> None:
    async def main(cluster: Cluster) -> None:
        leader = leader_of(cluster, "orders")
        broker, other = cluster.brokers[leader], cluster.brokers[3 - leader]
        back_ms = RECORD_TIME_MS - broker.now_ms()
        then = cluster.fault.jump_clock(leader, jump_ms=back_ms)
        assert broker.now_ms() - RECORD_TIME_MS < other.now_ms() - RECORD_TIME_MS + back_ms / 2
        async with await RawClient.to(cluster, leader) as client:
            await _appended(client, "orders")
        log = broker.manager.partition(TopicPartition("orders", 0)).log  # type: ignore[union-attr]
        await eventually(lambda: log.high_watermark == 1)
        broker.apply_retention(broker.now_ms())
        assert log.start_offset == 0
        cluster.fault.jump_clock(leader, jump_ms=2 * _DAY_MS)
        broker.apply_retention(broker.now_ms())
        assert log.start_offset == 1, "records kept for a day are older"
        then.end()

    _run(main, retention_ms=_DAY_MS)


def test_jumped_clock_sets_append_times() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.controller.create_topic("own", 1, 1, {"message.timestamp.type": "LogAppendTime"})
        now_s = cluster.brokers[1].now_ms() / 1_000
        async with await RawClient.to(cluster, leader_of(cluster, "own")) as client:
            with cluster.fault.jump_clock(1, jump_ms=-10 * _DAY_MS):
                answer = await client.ask(0, 9, _produce("own"))
        [one] = answer.responses[0].partition_responses
        ahead_s = one.log_append_time.timestamp() - now_s
        assert -10 * 86_400 - 1 <= ahead_s < -9 * 86_400

    _run(main, brokers=1)


def test_transactional_id_is_targeted() -> None:
    async def main(cluster: Cluster) -> None:
        values = {"transaction_timeout": timedelta(seconds=60), "producer_id": -1}
        async with await RawClient.to(cluster) as client:
            with cluster.fault.return_error(
                api="InitProducerId", error="CONCURRENT_TRANSACTIONS", transactional_id="mine"
            ) as fault:
                told = [
                    int((await client.ask(22, 4, {**values, "transactional_id": one})).error_code)
                    for one in ("mine", None)
                ]
            assert (told, fault.uses) == ([51, 0], 1)

    _run(main)


def _fetch(session_id: int, epoch: int, *topics: str) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000_000}
    partition |= {"current_leader_epoch": -1, "last_fetched_epoch": -1, "log_start_offset": -1}
    return {
        "max_wait": timedelta(milliseconds=1),
        "min_bytes": 1,
        "max_bytes": 1_000_000,
        "session_id": session_id,
        "session_epoch": epoch,
        "topics": [{"topic": topic, "partitions": [partition]} for topic in topics],
    }


def test_session_fetch_without_topics_gets_errors() -> None:
    async def main(cluster: Cluster) -> None:
        leader = leader_of(cluster, "orders")
        async with await RawClient.to(cluster, leader) as client:
            with cluster.fault.return_error(
                api="Fetch", error="OFFSET_OUT_OF_RANGE", topic="orders"
            ):
                begun = await client.ask(1, 12, _fetch(0, 0, "orders", "other"))
                assert _told(begun) == {"orders": 1, "other": 0}
                asked = _fetch(begun.session_id, 1)
                assert _told(await client.ask(1, 12, asked)) == {"orders": 1}
            await _appended(client, "orders")
            answer = await client.ask(1, 12, _fetch(begun.session_id, 2))
            assert _told(answer) == {"orders": 0}, "it is in the session still"
            with cluster.fault.return_error(error="FETCH_SESSION_ID_NOT_FOUND", api="Fetch"):
                answer = await client.ask(1, 12, _fetch(begun.session_id, 3))
                assert (int(answer.error_code), _told(answer)) == (70, {})

    _run(main, brokers=1)


def _told(answer: Any) -> dict[str, int]:
    return {one.topic: int(one.partitions[0].error_code) for one in answer.responses}
