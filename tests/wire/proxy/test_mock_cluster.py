"""In front of another broker: the mock cluster of librdkafka.

kafka-python comes to no mock cluster: it can't read how that refuses ApiVersions 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer

from purgatory.proxy import ThreadedProxy
from tests.wire.cluster.kafka_client import KafkaClient
from tests.wire.proxy.conftest import CLIENTS


@pytest.fixture
def mock_brokers() -> Iterator[str]:
    """The bootstrap servers of three brokers that live in a producer."""
    owner = Producer({"test.mock.num.brokers": 3, "bootstrap.servers": "ignored"})
    yield ",".join(f"{node.host}:{node.port}" for node in owner.list_topics().brokers.values())
    del owner


@pytest.mark.parametrize("name", ["confluent-kafka", "aiokafka"])
def test_clients_reach_the_mock_cluster(
    mock_brokers: str, kafka_proxy: Callable[[str], ThreadedProxy], name: str
) -> None:
    proxy = kafka_proxy(mock_brokers)
    assert len(proxy.state()["brokers"]) == 3
    client: KafkaClient = CLIENTS[name](proxy.bootstrap_servers)
    with proxy.fault.return_error(
        api="Produce", error="NOT_LEADER_OR_FOLLOWER", topic="orders", count=2
    ) as fault:
        client.produce("orders", [b"one", b"two"])
        assert fault.uses == 2
    assert [record.value for record in client.read("orders", 0, 2)] == [b"one", b"two"]


def test_group_reads_despite_faults(
    mock_brokers: str, kafka_proxy: Callable[[str], ThreadedProxy]
) -> None:
    proxy = kafka_proxy(mock_brokers)
    CLIENTS["confluent-kafka"](proxy.bootstrap_servers).produce("orders", [b"one"])
    consumer = Consumer(
        {
            "bootstrap.servers": proxy.bootstrap_servers,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["orders"])
    with proxy.fault.load_coordinator(group_id="readers", count=2) as loading:
        message = consumer.poll(30)
        assert message is not None
        assert message.value() == b"one"
        assert loading.uses == 2
    consumer.close()
