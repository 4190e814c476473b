"""Requests that Kafka refuses, each with the error that Kafka has for it, and nothing done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from purgatory.cluster import (
    Authorization,
    Cluster,
    ClusterConfig,
    ClusterError,
    GroupConfig,
    ThreadedCluster,
)
from purgatory.cluster import TopicSpec as Spec
from purgatory.kafka import TopicPartition
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import record_batch, request_frame

UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_TOPIC = 17
INCONSISTENT_GROUP_PROTOCOL = 23
UNSUPPORTED_VERSION = 35
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_REPLICA_ASSIGNMENT = 39
INVALID_CONFIG = 40
INVALID_REQUEST = 42
POLICY_VIOLATION = 44
INVALID_TRANSACTION_TIMEOUT = 50

_TIMEOUT = timedelta(seconds=10)
Main = Callable[[Cluster, RawClient], Awaitable[None]]


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[Main], None]]:
    """Runs coroutines beside a cluster of two brokers, with a client at the first one."""
    config = ClusterConfig(
        brokers=2,
        topics=[Spec("orders", 1, 1), Spec("latest", settings={"cleanup.policy": "compact"})],
        groups=GroupConfig(initial_rebalance_delay_ms=0),
        offsets_partitions=1,
        transactions_partitions=1,
        auto_create_topics=True,
    )
    with asyncio.Runner() as runner:
        cluster = Cluster(config)
        runner.run(cluster.start())

        async def beside(main: Main) -> None:
            async with await RawClient.to(cluster) as client:
                await main(cluster, client)

        yield lambda main: runner.run(beside(main))
        runner.run(cluster.stop())


def _topic(name: str, **asked: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": 1, "replication_factor": 1, **asked}


def _assigned(*replicas: Sequence[int], **asked: Any) -> dict[str, Any]:
    assignments = [
        {"partition_index": number, "broker_ids": tuple(one)} for number, one in enumerate(replicas)
    ]
    counts = {"num_partitions": -1, "replication_factor": -1}
    return {"name": "assigned", **counts, "assignments": assignments, **asked}


@pytest.mark.parametrize(
    ("topic", "code", "says"),
    [
        (_topic("a/b"), INVALID_TOPIC, "letters, digits, dots, dashes, underscores"),
        (_topic("n" * 250), INVALID_TOPIC, "1 to 249"),
        (_topic(".."), INVALID_TOPIC, "no name of a topic"),
        (_topic("__cluster_metadata"), INVALID_REQUEST, "is no topic of brokers"),
        (_assigned((1,), num_partitions=1), INVALID_REQUEST, "both are -1"),
        (_assigned((1,), replication_factor=1), INVALID_REQUEST, "both are -1"),
        (_assigned((1,), (1, 2)), INVALID_REPLICA_ASSIGNMENT, "as many replicas"),
        (_assigned((1, 1)), INVALID_REPLICA_ASSIGNMENT, "of the brokers"),
        (_assigned((7,)), INVALID_REPLICA_ASSIGNMENT, "of the brokers"),
        (_assigned(()), INVALID_REPLICA_ASSIGNMENT, "of the brokers"),
        (_topic("t", num_partitions=0), INVALID_PARTITIONS, "at least 1"),
        (_topic("t", replication_factor=0), INVALID_REPLICATION_FACTOR, "0 replicas"),
        (
            _topic("t", num_partitions=0, replication_factor=3),
            INVALID_REPLICATION_FACTOR,
            "there are 2 brokers",
        ),
        (
            _topic("t", configs=[{"name": "retention.ms", "value": None}]),
            INVALID_CONFIG,
            "has no value",
        ),
    ],
)
def test_invalid_topic_is_refused(run: Any, topic: Any, code: int, says: str) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        before = set(cluster.controller.topics)
        for validate_only in (True, False):
            asked = {"topics": [topic], "timeout": _TIMEOUT, "validate_only": validate_only}
            [result] = (await client.ask(19, 7, asked)).topics
            assert result.error_code == code, result.error_message
            assert says in result.error_message
        assert set(cluster.controller.topics) == before

    run(main)


@pytest.mark.parametrize(
    "name", ["__consumer_offsets", "__transaction_state", "__share_group_state"]
)
def test_internal_topic_has_its_own_settings_on_creation(name: str) -> None:
    async def main() -> None:
        config = ClusterConfig(
            brokers=1, offsets_partitions=3, transactions_partitions=3, share_state_partitions=3
        )
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            topics = {"topics": [{"name": name, "topic_id": None}]}
            asked = {**topics, "allow_auto_topic_creation": False}
            missing = (await client.ask(3, 12, asked)).topics[0]
            assert (missing.error_code, missing.is_internal) == (UNKNOWN_TOPIC_OR_PARTITION, True)
            asked = {**topics, "allow_auto_topic_creation": True}
            made = (await client.ask(3, 12, asked)).topics[0]
            assert (made.error_code, made.is_internal, len(made.partitions)) == (0, True, 3)
            assert cluster.controller.topics[name].configs["cleanup.policy"] == "compact"
            data = [{"index": 0, "records": record_batch([b"x"])}]
            topic_data = [{"name": name, "partition_data": data}]
            produced = await client.ask(0, 8, {"acks": -1, "topic_data": topic_data})
            assert produced.responses[0].partition_responses[0].error_code == INVALID_TOPIC
            again = {"topics": [_topic(name)], "timeout": _TIMEOUT}
            [created] = (await client.ask(19, 7, again)).topics
            assert created.error_code == TOPIC_ALREADY_EXISTS

    asyncio.run(main())


def test_colliding_topic_name_is_refused(run: Any) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        async def create(*names: str) -> list[int]:
            asked = {"topics": [_topic(name) for name in names], "timeout": _TIMEOUT}
            return [one.error_code for one in (await client.ask(19, 7, asked)).topics]

        assert await create("a.b_c") == [0]
        assert await create("a_b.c", "a.b.c", "a_b_c", "abc") == [INVALID_TOPIC] * 3 + [0]
        # Nor is such a topic made by asking for it; else it is unknown, as before.
        for may_create, code in ((True, INVALID_TOPIC), (False, UNKNOWN_TOPIC_OR_PARTITION)):
            topics = [{"name": "a_b_c", "topic_id": None}]
            asked = {"topics": topics, "allow_auto_topic_creation": may_create}
            assert (await client.ask(3, 12, asked)).topics[0].error_code == code
        assert "a_b_c" not in cluster.controller.topics

    run(main)


def test_confluent_kafka_reports_a_colliding_topic_name() -> None:
    with ThreadedCluster(ClusterConfig(brokers=1, topics=[Spec("a.b")])) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        [made] = admin.create_topics([NewTopic("a_b", 1, 1)]).values()
        with pytest.raises(KafkaException, match=r"collides with topic a\.b") as refused:
            made.result()
        assert refused.value.args[0].name() == "TOPIC_EXCEPTION"
        for name, why in (
            ("a_b", "collides"),
            ("a/b", "no name of a topic"),
            ("__consumer_offsets", "is the cluster's own"),
        ):
            with pytest.raises(ClusterError, match=why):
                cluster.create_topic(name)
        with pytest.raises(ClusterError, match="2 replicas: from 1 to 1"):
            cluster.create_topic("c", replication=2)
        with pytest.raises(ClusterError, match="0 partitions"):
            cluster.create_topic("c", 0)


def test_duplicate_names_in_a_request_are_refused(run: Any) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        names = [{"name": "orders", "topic_id": None}] * 2
        deleted = await client.ask(20, 6, {"topics": names, "timeout": _TIMEOUT})
        assert {one.error_code for one in deleted.responses} == {INVALID_REQUEST}
        more = [{"name": "orders", "count": count, "assignments": None} for count in (2, 3)]
        grown = await client.ask(37, 3, {"topics": more, "timeout": _TIMEOUT})
        assert {one.error_code for one in grown.results} == {INVALID_REQUEST}
        assert len(cluster.controller.topics["orders"].partitions) == 1

    run(main)


def test_new_partitions_on_dead_brokers_alone_are_refused(run: Any) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        await cluster.kill(2)
        asked = {"name": "orders", "count": 2, "assignments": [{"broker_ids": (2,)}]}
        grown = await client.ask(37, 3, {"topics": [asked], "timeout": _TIMEOUT})
        assert grown.results[0].error_code == INVALID_REPLICA_ASSIGNMENT
        await cluster.revive(2)

    run(main)


@pytest.mark.parametrize(
    ("version", "times"),
    [
        (1, (-9, -7, -6, -5, -4, -3)),
        (7, (-9, -6, -5, -4)),
        (8, (-6, -5)),
        (9, (-6,)),
        (11, (-7, -9, -(2**63))),
    ],
)
def test_special_timestamp_of_a_later_version_is_refused(
    run: Any, version: int, times: Sequence[int]
) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        state = cluster.controller.state_of(TopicPartition("orders", 0))
        assert state is not None

        async def told(time: int) -> tuple[int, int]:
            partitions = [{"partition_index": 0, "timestamp": time, "current_leader_epoch": -1}]
            asked = {"replica_id": -1, "topics": [{"name": "orders", "partitions": partitions}]}
            async with await RawClient.to(cluster, state.leader) as leader:
                [one] = (await leader.ask(2, version, asked)).topics[0].partitions
            return one.error_code, one.offset

        for time in times:
            assert await told(time) == (UNSUPPORTED_VERSION, -1), time
        for time in (-1, -2):
            assert await told(time) == (0, 0)

    run(main)


def test_invalid_record_deletions_are_refused(run: Any) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        cluster.offsets_partitions()
        for topic, code in (
            ("latest", POLICY_VIOLATION),
            ("__consumer_offsets", INVALID_TOPIC),
        ):
            state = cluster.controller.state_of(TopicPartition(topic, 0))
            assert state is not None
            partitions = [{"partition_index": 0, "offset": -1}]
            asked = {"topics": [{"name": topic, "partitions": partitions}], "timeout": _TIMEOUT}
            async with await RawClient.to(cluster, state.leader) as leader:
                [one] = (await leader.ask(21, 2, asked)).topics[0].partitions
            assert (one.error_code, one.low_watermark) == (code, -1)

    run(main)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"transactional_id": ""}, INVALID_REQUEST),
        ({"transactional_id": None, "producer_id": 7}, INVALID_REQUEST),
        ({"transactional_id": None, "producer_epoch": 0}, INVALID_REQUEST),
        ({"transactional_id": "t", "producer_id": 7}, INVALID_REQUEST),
        ({"transaction_timeout": timedelta(0)}, INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout": timedelta(days=1)}, INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_invalid_producer_identity_is_refused(run: Any, asked: Any, code: int) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        cluster.transactions_partitions()
        place = cluster.controller.state_of(TopicPartition("__transaction_state", 0))
        assert place is not None
        defaults = {
            "transactional_id": "t",
            "transaction_timeout": _TIMEOUT,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        async with await RawClient.to(cluster, place.leader) as coordinator:
            answer = await coordinator.ask(22, 4, {**defaults, **asked})
        assert (answer.error_code, answer.producer_id) == (code, -1)

    run(main)


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        ("consumer", "range", 0),
        ("consumer", "roundrobin", INCONSISTENT_GROUP_PROTOCOL),
        ("connect", "range", INCONSISTENT_GROUP_PROTOCOL),
        (None, "range", INCONSISTENT_GROUP_PROTOCOL),
        ("consumer", None, INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_sync_with_another_protocol_is_refused(
    run: Any, kind: str | None, name: str | None, code: int
) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        cluster.offsets_partitions()
        place = cluster.controller.state_of(TopicPartition("__consumer_offsets", 0))
        assert place is not None
        group = f"g-{kind}-{name}"
        async with await RawClient.to(cluster, place.leader) as coordinator:
            joining = {
                "group_id": group,
                "session_timeout": _TIMEOUT,
                "rebalance_timeout": _TIMEOUT,
                "member_id": "",
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": b""}],
            }
            given = await coordinator.ask(11, 7, joining)
            joining["member_id"] = given.member_id
            joined = await coordinator.ask(11, 7, joining)
            assert joined.error_code == 0
            syncing = {
                "group_id": group,
                "generation_id": joined.generation_id,
                "member_id": joined.member_id,
                "protocol_type": kind,
                "protocol_name": name,
                "assignments": [{"member_id": joined.member_id, "assignment": b"all"}],
            }
            synced = await coordinator.ask(14, 5, syncing)
            assert synced.error_code == code
            assert synced.assignment == (b"" if code else b"all")

    run(main)


def test_unauthorized_acks_0_produce_closes_its_connection() -> None:
    async def main() -> None:
        config = ClusterConfig(
            brokers=1,
            topics=[Spec("orders")],
            authorization=Authorization(allow_everyone_if_no_acl_found=False),
        )
        async with Cluster(config) as cluster:
            for transactional_id in (None, "t"):
                records = record_batch([b"x"], 7, 0, 0, transactional=transactional_id is not None)
                data = [{"index": 0, "records": records}]
                asked = {
                    "transactional_id": transactional_id,
                    "acks": 0,
                    "timeout": _TIMEOUT,
                    "topic_data": [{"name": "orders", "partition_data": data}],
                }
                async with await RawClient.to(cluster) as client:
                    client.send(request_frame(0, 8, 1, asked))
                    assert await client.wait_closed() == b""

    asyncio.run(main())
