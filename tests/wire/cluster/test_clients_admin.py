"""Administration with real clients: topics, partitions, records, groups, the cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AiokafkaPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewPartitions as AiokafkaPartitions
from aiokafka.admin import NewTopic as AiokafkaTopic
from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from kafka import KafkaAdminClient, KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition
from kafka.admin import NewTopic as KafkaPythonTopic
from kafka.errors import NonEmptyGroupError, TopicAlreadyExistsError

from purgatory.cluster import ThreadedCluster
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.wire.cluster.conftest import CLIENTS, require_client
from tests.wire.cluster.kafka_client import TIMEOUT_S
from tests.wire.cluster.kcat_client import KcatClient

BROKERS = [1, 2, 3]
VALUES = [b"value-%d" % number for number in range(10)]


def only(futures: dict[Any, Future[Any]]) -> Any:
    """Return the result of the one future that confluent-kafka returned."""
    (future,) = futures.values()
    return future.result(TIMEOUT_S)


# ---- confluent-kafka


@pytest.fixture
def confluent_admin(cluster: ThreadedCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers})


@contextmanager
def confluent_member(cluster: ThreadedCluster, group: str, topic: str) -> Iterator[None]:
    """Be a member of a group that has read and committed something."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        message = consumer.poll(TIMEOUT_S)
        assert message is not None and message.error() is None
        consumer.commit(message=message, asynchronous=False)
        yield
    finally:
        consumer.close()


def test_confluent_kafka_administers_a_topic(confluent_admin: AdminClient, name: str) -> None:
    admin = confluent_admin
    only(admin.create_topics([NewTopic(name, 2, 3, config={"min.insync.replicas": "1"})]))
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        only(admin.create_topics([NewTopic(name, 2, 3)]))
    only(admin.create_partitions([NewPartitions(name, 5)]))
    with pytest.raises(KafkaException, match="INVALID_PARTITIONS"):
        only(admin.create_partitions([NewPartitions(name, 5)]))
    described = only(admin.describe_topics(TopicCollection([name])))
    assert [partition.id for partition in described.partitions] == [0, 1, 2, 3, 4]
    for partition in described.partitions:
        assert sorted(node.id for node in partition.replicas) == BROKERS
        assert sorted(node.id for node in partition.isr) == BROKERS
    only(admin.delete_topics([name]))
    assert name not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_confluent_kafka_describes_the_cluster(confluent_admin: AdminClient) -> None:
    described = confluent_admin.describe_cluster().result(TIMEOUT_S)
    assert described.cluster_id == "purgatory"
    assert sorted(node.id for node in described.nodes) == BROKERS


def test_confluent_kafka_deletes_records(
    cluster: ThreadedCluster, confluent_admin: AdminClient, name: str
) -> None:
    cluster.create_topic(name)
    client = ConfluentClient(cluster.bootstrap_servers)
    client.produce(name, VALUES)
    assert only(confluent_admin.delete_records([TopicPartition(name, 0, 4)])).low_watermark == 4
    assert [record.value for record in client.read(name, 4, 6)] == VALUES[4:]
    with pytest.raises(KafkaException, match="OFFSET_OUT_OF_RANGE"):
        only(confluent_admin.delete_records([TopicPartition(name, 0, 11)]))


def test_confluent_kafka_administers_a_group(
    cluster: ThreadedCluster, confluent_admin: AdminClient, name: str
) -> None:
    admin = confluent_admin
    cluster.create_topic(name)
    ConfluentClient(cluster.bootstrap_servers).produce(name, VALUES)

    def listed() -> dict[str, str]:
        found = admin.list_consumer_groups().result(TIMEOUT_S)
        return {group.group_id: group.state.name for group in found.valid}

    with confluent_member(cluster, name, name):
        assert listed()[name] == "STABLE"
        described = only(admin.describe_consumer_groups([name]))
        (member,) = described.members
        assert [p.topic for p in member.assignment.topic_partitions] == [name]
        with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
            only(admin.delete_consumer_groups([name]))
    assert listed()[name] == "EMPTY"
    only(admin.delete_consumer_groups([name]))
    assert name not in listed()


# ---- kafka-python


@pytest.fixture
def kafka_python_admin(cluster: ThreadedCluster) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(","))
    yield admin
    admin.close()


def test_kafka_python_administers_a_topic(kafka_python_admin: KafkaAdminClient, name: str) -> None:
    admin = kafka_python_admin
    admin.create_topics([KafkaPythonTopic(name, 2, 3)])
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([KafkaPythonTopic(name, 2, 3)])
    admin.create_partitions({name: 5})
    (described,) = admin.describe_topics([name])
    assert [one["partition_index"] for one in described["partitions"]] == [0, 1, 2, 3, 4]
    assert all(sorted(one["isr_nodes"]) == BROKERS for one in described["partitions"])
    admin.delete_topics([name])
    assert name not in admin.list_topics()


def test_kafka_python_describes_the_cluster(kafka_python_admin: KafkaAdminClient) -> None:
    described = kafka_python_admin.describe_cluster()
    assert described["cluster_id"] == "purgatory"
    assert sorted(broker["broker_id"] for broker in described["brokers"]) == BROKERS


def test_kafka_python_deletes_records(
    cluster: ThreadedCluster, kafka_python_admin: KafkaAdminClient, name: str
) -> None:
    cluster.create_topic(name)
    client = ConfluentClient(cluster.bootstrap_servers)
    client.produce(name, VALUES)
    partition = KafkaPythonPartition(name, 0)
    deleted = kafka_python_admin.delete_records({partition: 4})
    assert deleted[partition]["low_watermark"] == 4
    assert [record.value for record in client.read(name, 4, 6)] == VALUES[4:]


def test_kafka_python_administers_a_group(
    cluster: ThreadedCluster, kafka_python_admin: KafkaAdminClient, name: str
) -> None:
    admin = kafka_python_admin
    cluster.create_topic(name)
    ConfluentClient(cluster.bootstrap_servers).produce(name, VALUES)

    def listed() -> dict[str, str]:
        return {group["group_id"]: group["group_state"] for group in admin.list_groups()}

    consumer = KafkaConsumer(
        name,
        bootstrap_servers=cluster.bootstrap_servers.split(","),
        group_id=name,
        auto_offset_reset="earliest",
    )
    try:
        assert consumer.poll(timeout_ms=int(1_000 * TIMEOUT_S))
        assert listed()[name] == "Stable"
        (member,) = admin.describe_groups([name])[name]["members"]
        (assigned,) = member["member_assignment"]["assigned_partitions"]
        assert assigned == {"topic": name, "partitions": [0]}
        assert admin.delete_groups([name])[name] == NonEmptyGroupError.__name__
    finally:
        consumer.close()
    assert listed()[name] == "Empty"
    assert admin.delete_groups([name]) == {name: "OK"}
    assert name not in listed()


# ---- aiokafka, which has no call to delete a group


def with_aiokafka(cluster: ThreadedCluster, work: Callable[[AIOKafkaAdminClient], Any]) -> Any:
    """Run a coroutine function with an admin client."""

    async def run() -> Any:
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
        await admin.start()
        try:
            return await work(admin)
        finally:
            await admin.close()

    return asyncio.run(run())


def test_aiokafka_administers_a_topic(cluster: ThreadedCluster, name: str) -> None:
    async def work(admin: AIOKafkaAdminClient) -> None:
        await admin.create_topics([AiokafkaTopic(name, 2, 3)])
        again = await admin.create_topics([AiokafkaTopic(name, 2, 3)])
        assert again.topic_errors[0][1] == TopicAlreadyExistsError.errno
        await admin.create_partitions({name: AiokafkaPartitions(5)})
        (described,) = await admin.describe_topics([name])
        assert [one["partition"] for one in described["partitions"]] == [0, 1, 2, 3, 4]
        assert all(sorted(one["isr"]) == BROKERS for one in described["partitions"])
        await admin.delete_topics([name])
        assert name not in await admin.list_topics()

    with_aiokafka(cluster, work)


def test_aiokafka_describes_the_cluster(cluster: ThreadedCluster) -> None:
    async def work(admin: AIOKafkaAdminClient) -> Any:
        return await admin.describe_cluster()

    described = with_aiokafka(cluster, work)
    assert described["cluster_id"] == "purgatory"
    assert sorted(broker["node_id"] for broker in described["brokers"]) == BROKERS


def test_aiokafka_deletes_records(cluster: ThreadedCluster, name: str) -> None:
    cluster.create_topic(name)
    client = ConfluentClient(cluster.bootstrap_servers)
    client.produce(name, VALUES)
    partition = AiokafkaPartition(name, 0)

    async def work(admin: AIOKafkaAdminClient) -> Any:
        return await admin.delete_records({partition: RecordsToDelete(before_offset=4)})

    assert with_aiokafka(cluster, work) == {partition: 4}
    assert [record.value for record in client.read(name, 4, 6)] == VALUES[4:]


def test_aiokafka_lists_and_describes_a_group(cluster: ThreadedCluster, name: str) -> None:
    cluster.create_topic(name)
    ConfluentClient(cluster.bootstrap_servers).produce(name, VALUES)

    async def work(admin: AIOKafkaAdminClient) -> None:
        consumer = AIOKafkaConsumer(
            name,
            bootstrap_servers=cluster.bootstrap_servers,
            group_id=name,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        try:
            await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
            assert (name, "consumer") in await admin.list_consumer_groups()
            (answer,) = await admin.describe_consumer_groups([name])
            (described,) = answer.groups
            assert described[2] == "Stable"
            assert len(described[5]) == 1, "members"
        finally:
            await consumer.stop()
        (answer,) = await admin.describe_consumer_groups([name])
        assert answer.groups[0][2] == "Empty"

    with_aiokafka(cluster, work)


# ---- kcat


def test_kcat_lists_brokers_and_partitions(cluster: ThreadedCluster, name: str) -> None:
    require_client("kcat")
    cluster.create_topic(name, partitions=3)
    listed = json.loads(KcatClient(cluster.bootstrap_servers).run("-L", "-J", "-t", name))
    assert [broker["id"] for broker in listed["brokers"]] == BROKERS
    (topic,) = listed["topics"]
    assert topic["topic"] == name
    assert [one["partition"] for one in topic["partitions"]] == [0, 1, 2]
    assert all(sorted(isr["id"] for isr in one["isrs"]) == BROKERS for one in topic["partitions"])


def test_kcat_lists_offsets(cluster: ThreadedCluster, name: str) -> None:
    require_client("kcat")
    cluster.create_topic(name)
    CLIENTS["kcat"](cluster.bootstrap_servers).produce(name, VALUES)
    client = KcatClient(cluster.bootstrap_servers)
    assert client.run("-Q", "-t", f"{name}:0:-1").strip() == f"{name} [0] offset 10".encode()
    assert client.run("-Q", "-t", f"{name}:0:-2").strip() == f"{name} [0] offset 0".encode()
