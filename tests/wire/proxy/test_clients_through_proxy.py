"""Clients that come to a cluster through a proxy, and go past it nowhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from purgatory.cluster import ClusterConfig, ThreadedCluster
from purgatory.proxy import ThreadedProxy
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.wire.cluster.kafka_client import KafkaClient


def past_the_proxy(cluster: ThreadedCluster, proxy: ThreadedProxy) -> int:
    """Return how many connections the brokers have beside those of the proxy."""

    def connections() -> int:
        total = 0
        for broker in cluster.running.brokers.values():
            total += broker.connection_count
        return total

    relayed = int(sum(broker["connections"] for broker in proxy.state()["brokers"]))
    return int(cluster.call(connections)) - relayed


def test_proxy_has_a_listener_for_each_broker(
    cluster: ThreadedCluster, proxy: ThreadedProxy
) -> None:
    brokers = proxy.state()["brokers"]
    addresses = {broker["id"]: broker["address"] for broker in brokers}
    assert addresses == dict(enumerate(cluster.bootstrap_servers.split(","), 1))
    assert len({broker["listener"] for broker in brokers} - set(addresses.values())) == 3


def test_records_are_sent_and_read(client: KafkaClient, topic: str) -> None:
    values = [b"%d" % number for number in range(500)]
    client.produce(topic, values, idempotent=True)
    assert [record.value for record in client.read(topic, 0, 500)] == values
    assert client.read_in_group(f"group-{topic}", topic, 500) == values


@pytest.mark.parametrize("acks", ["0", "1"])
def test_acks_decide_whether_a_response_is_expected(
    client: KafkaClient, topic: str, acks: str
) -> None:
    client.produce(topic, [b"one", b"two"], acks=acks)
    client.produce(topic, [b"three"])
    assert [record.value for record in client.read(topic, 0, 3)] == [b"one", b"two", b"three"]


def test_large_records_pass_in_pieces(client: KafkaClient, topic: str) -> None:
    values = [bytes([number]) * 700_000 for number in range(5)]
    client.produce(topic, values)
    assert [record.value for record in client.read(topic, 0, 5)] == values


def test_clients_get_only_addresses_of_the_proxy(
    cluster: ThreadedCluster, proxy: ThreadedProxy, topic: str
) -> None:
    admin = AdminClient({"bootstrap.servers": proxy.bootstrap_servers})
    told = {f"{node.host}:{node.port}" for node in admin.list_topics(topic).brokers.values()}
    described: Any = admin.describe_cluster(request_timeout=20).result()
    told |= {f"{node.host}:{node.port}" for node in described.nodes}
    assert told == {broker["listener"] for broker in proxy.state()["brokers"]}

    ConfluentClient(proxy.bootstrap_servers).produce(topic, [b"one"])
    consumer = Consumer(
        {"bootstrap.servers": proxy.bootstrap_servers, "group.id": topic, "client.id": topic}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(20)
    assert message is not None
    consumer.commit(message=message, asynchronous=False)
    assert past_the_proxy(cluster, proxy) == 0, "it went to its coordinator by itself"
    consumer.close()


def test_a_transaction_is_committed(proxy: ThreadedProxy, topic: str) -> None:
    settings = {"bootstrap.servers": proxy.bootstrap_servers, "transactional.id": topic}
    producer = Producer(settings)
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"one", partition=0)
    producer.commit_transaction(20)
    client = ConfluentClient(proxy.bootstrap_servers)
    assert [record.value for record in client.read(topic, 0, 1)] == [b"one"]


def test_dead_broker_disconnects_only_its_own_clients(
    kafka_cluster: ThreadedCluster, kafka_proxy: Callable[[str], ThreadedProxy]
) -> None:
    kafka_cluster.create_topic("orders", partitions=1)
    proxy = kafka_proxy(kafka_cluster.bootstrap_servers)
    client = ConfluentClient(proxy.bootstrap_servers)
    client.produce("orders", [b"one"])
    leader = kafka_cluster.state()["topics"][0]["partitions"][0]["leader"]
    with kafka_cluster.fault.kill(leader):
        client.produce("orders", [b"two"])
        assert [record.value for record in client.read("orders", 0, 2)] == [b"one", b"two"]


@pytest.fixture
def kafka_cluster_config() -> ClusterConfig:
    return ClusterConfig()
