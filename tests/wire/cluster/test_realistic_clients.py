"""Clients of librdkafka, in front of brokers that are some milliseconds behind."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from purgatory.cluster import ClusterConfig, GroupConfig, ThreadedCluster

_COUNT = 20
_WAIT_S = 30


@pytest.fixture
def kafka_cluster_config() -> ClusterConfig:
    groups = GroupConfig(initial_rebalance_delay_ms=0)
    return ClusterConfig(realistic_delays=True, groups=groups)


def _send(servers: str, topic: str, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 0, **settings})
    for number in range(_COUNT):
        producer.produce(topic, b"%d" % number)
        producer.flush(_WAIT_S)
    assert len(producer) == 0


def _read(servers: str, topic: str, group_id: str) -> list[int]:
    settings = {
        "bootstrap.servers": servers,
        "group.id": group_id,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "max.partition.fetch.bytes": 100,
        "fetch.message.max.bytes": 100,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    read: list[int] = []
    while len(read) < _COUNT:
        message = consumer.poll(_WAIT_S)
        assert message is not None, read
        if message.error() is None:
            read.append(int(message.value() or b""))
    consumer.close()
    return read


def test_librdkafka_reads_what_it_sent(kafka_cluster: ThreadedCluster) -> None:
    servers = kafka_cluster.bootstrap_servers
    _send(servers, "automatic", **{"enable.idempotence": True})
    assert _read(servers, "automatic", "g") == list(range(_COUNT))
    kafka_cluster.audit(expect=["no-loss", "once"]).assert_no_violations()


def test_librdkafka_sends_to_a_created_topic(kafka_cluster: ThreadedCluster) -> None:
    servers = kafka_cluster.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("created", 3, 3)])["created"].result(_WAIT_S)
    _send(servers, "created")
    assert sorted(_read(servers, "created", "g")) == list(range(_COUNT))


def test_librdkafka_commits_transactions(kafka_cluster: ThreadedCluster) -> None:
    servers = kafka_cluster.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "t"})
    producer.init_transactions(_WAIT_S)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "passing"})
    for number in range(_COUNT):
        producer.begin_transaction()
        producer.produce("out", b"%d" % number)
        offsets = [TopicPartition("out", 0, number)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), _WAIT_S)
        producer.commit_transaction(_WAIT_S)
    consumer.close()
    assert _read(servers, "out", "g") == list(range(_COUNT))
