"""The cluster's faults of connections and messages, by a proxy in front of it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition

from purgatory.cluster import ClusterError, ThreadedCluster
from purgatory.proxy import ThreadedProxy
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.wire.cluster.kafka_client import KafkaClient
from tests.wire.cluster.wire_client import METADATA, WireClient


def leader_of(cluster: ThreadedCluster, topic: str) -> int:
    """Return which broker leads partition 0."""
    (found,) = (one for one in cluster.state()["topics"] if one["name"] == topic)
    return int(found["partitions"][0]["leader"])


def values_of(cluster: ThreadedCluster, topic: str, count: int) -> list[bytes]:
    """Return records, read from the cluster itself."""
    client = ConfluentClient(cluster.bootstrap_servers)
    return [record.value for record in client.read(topic, 0, count)]


def test_request_gets_an_error_and_is_not_executed(
    client: KafkaClient, cluster: ThreadedCluster, proxy: ThreadedProxy, topic: str
) -> None:
    other = f"{topic}-other"
    cluster.create_topic(other)
    with proxy.fault.return_error(
        api="Produce", error="NOT_LEADER_OR_FOLLOWER", topic=topic, count=3
    ) as fault:
        client.produce(other, [b"other"])
        assert fault.uses == 0
        client.produce(topic, [b"one"])
        assert (fault.uses, fault.active) == (3, False)
    assert values_of(cluster, topic, 1) == [b"one"]


def test_part_of_a_request_is_executed(
    cluster: ThreadedCluster, proxy: ThreadedProxy, topic: str
) -> None:
    other = f"{topic}-other"
    cluster.create_topic(other)
    outcomes: dict[str, Any] = {}
    producer = Producer(
        {"bootstrap.servers": proxy.bootstrap_servers, "linger.ms": 500, "retries": 0}
    )
    with proxy.fault.return_error(api="Produce", error="INVALID_RECORD", topic=topic):
        for name in (topic, other):
            producer.produce(
                name,
                b"one",
                on_delivery=lambda error, message: outcomes.update({str(message.topic()): error}),
            )
        assert producer.flush(20) == 0
    assert outcomes[other] is None
    assert outcomes[topic].code() == KafkaError.INVALID_RECORD


def test_request_is_executed_and_gets_an_error(
    cluster: ThreadedCluster, proxy: ThreadedProxy, topic: str
) -> None:
    client = ConfluentClient(proxy.bootstrap_servers)
    with proxy.fault.return_error(
        api="Produce", error="REQUEST_TIMED_OUT", after=True, count=1
    ) as fault:
        client.produce(topic, [b"one"])
    assert fault.uses == 1
    assert values_of(cluster, topic, 2) == [b"one", b"one"], "stored twice: not idempotent"


@pytest.mark.parametrize("cut", [True, False])
def test_client_retries_after_a_lost_response(
    cluster: ThreadedCluster, proxy: ThreadedProxy, topic: str, cut: bool
) -> None:
    client = ConfluentClient(proxy.bootstrap_servers)
    settings: dict[str, Any] = {"socket.timeout.ms": 1_000}
    with proxy.fault.lose_responses(api="Produce", count=1, cut=cut) as fault:
        client.produce(topic, [b"one"], **settings)
    assert fault.uses == 1
    assert values_of(cluster, topic, 2) == [b"one", b"one"]


@pytest.mark.parametrize("cut", [True, False])
def test_lost_request_is_retried_and_stored_once(
    cluster: ThreadedCluster, proxy: ThreadedProxy, topic: str, cut: bool
) -> None:
    client = ConfluentClient(proxy.bootstrap_servers)
    settings: dict[str, Any] = {"socket.timeout.ms": 1_000}
    with proxy.fault.lose_requests(api="Produce", skip=1, count=1, cut=cut) as fault:
        for value in (b"one", b"two", b"three"):
            client.produce(topic, [value], **settings)
    assert fault.uses == 1
    assert values_of(cluster, topic, 3) == [b"one", b"two", b"three"]


def test_one_client_is_cut_off_until_the_fault_ends(proxy: ThreadedProxy, topic: str) -> None:
    settings = {"bootstrap.servers": proxy.bootstrap_servers}
    cut_off = AdminClient({**settings, "client.id": "ann"})
    with proxy.fault.lose_responses(client_id="ann"):
        with pytest.raises(KafkaException):
            cut_off.list_topics(topic, timeout=1)
        AdminClient({**settings, "client.id": "bob"}).list_topics(topic, timeout=20)
    assert topic in cut_off.list_topics(topic, timeout=20).topics


def test_response_is_delayed(proxy: ThreadedProxy, topic: str) -> None:
    client = ConfluentClient(proxy.bootstrap_servers)
    client.produce(topic, [b"one"])
    with proxy.fault.delay_responses(api="Produce", by_ms=700) as fault:
        begin_s = time.monotonic()
        client.produce(topic, [b"two"])
        assert time.monotonic() - begin_s >= 0.7
    assert fault.uses == 1


@pytest.mark.parametrize("fault_name", ["truncate_responses", "duplicate_responses"])
def test_client_resumes_after_a_truncated_response(
    proxy: ThreadedProxy, topic: str, fault_name: str
) -> None:
    client = ConfluentClient(proxy.bootstrap_servers)
    with getattr(proxy.fault, fault_name)(api="Produce", count=1) as fault:
        client.produce(topic, [b"one"])
        client.produce(topic, [b"two"])
    assert fault.uses == 1
    assert client.read(topic, 0, 1)[0].value == b"one"


def test_response_is_slow(proxy: ThreadedProxy, topic: str) -> None:
    client = ConfluentClient(proxy.bootstrap_servers)
    client.produce(topic, [bytes(2_000)])
    with proxy.fault.slow_responses(api="Fetch", bytes_per_s=2_000, count=1) as fault:
        begin_s = time.monotonic()
        client.read(topic, 0, 1)
        assert fault.uses == 1
        assert time.monotonic() - begin_s >= 0.9


def test_throttle_time_reaches_the_client(proxy: ThreadedProxy, topic: str) -> None:
    throttled: list[float] = []
    producer = Producer(
        {
            "bootstrap.servers": proxy.bootstrap_servers,
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
        }
    )
    with proxy.fault.throttle(api="Produce", throttle_ms=300, count=1):
        producer.produce(topic, b"one")
        assert producer.flush(20) == 0
        producer.poll(0)
    assert throttled == [0.3]


def test_produces_are_refused(cluster: ThreadedCluster, proxy: ThreadedProxy, topic: str) -> None:
    leader = leader_of(cluster, topic)
    with proxy.fault.refuse_produces(broker=leader, count=2) as fault:
        ConfluentClient(proxy.bootstrap_servers).produce(topic, [b"one"])
        assert fault.uses == 2
    assert values_of(cluster, topic, 1) == [b"one"]


def test_paused_broker_responds_when_the_pause_ends(
    cluster: ThreadedCluster, proxy: ThreadedProxy, topic: str
) -> None:
    producer = Producer({"bootstrap.servers": proxy.bootstrap_servers, "linger.ms": 0})
    producer.produce(topic, b"one")
    assert producer.flush(20) == 0
    with proxy.fault.pause(leader_of(cluster, topic)):
        producer.produce(topic, b"two")
        assert producer.flush(0.5) == 1
    assert producer.flush(20) == 0
    assert values_of(cluster, topic, 2) == [b"one", b"two"]


def test_coordinators_load(proxy: ThreadedProxy, topic: str) -> None:
    client = ConfluentClient(proxy.bootstrap_servers)
    client.produce(topic, [b"one"])
    with proxy.fault.load_coordinator(group_id=topic, count=2) as fault:
        assert client.read_in_group(topic, topic, 1) == [b"one"]
        assert fault.uses == 2


def test_a_fetch_within_a_session_has_an_error(
    cluster: ThreadedCluster, proxy: ThreadedProxy, topic: str
) -> None:
    """kafka-python fetches in sessions: later fetches name no partition that has not changed."""
    ConfluentClient(cluster.bootstrap_servers).produce(topic, [b"one"])
    consumer = KafkaConsumer(
        bootstrap_servers=proxy.bootstrap_servers, fetch_max_wait_ms=50, client_id=topic
    )
    try:
        consumer.assign([KafkaPythonPartition(topic, 0)])
        consumer.seek_to_beginning()
        assert sum(map(len, consumer.poll(20_000).values())) == 1
        consumer.poll(200)
        with proxy.fault.return_error(
            api="Fetch", error="NOT_LEADER_OR_FOLLOWER", topic=topic, client_id=topic, count=2
        ) as fault:
            deadline_s = time.monotonic() + 20
            while fault.active and time.monotonic() < deadline_s:
                consumer.poll(100)
            assert fault.uses == 2
        ConfluentClient(cluster.bootstrap_servers).produce(topic, [b"two"])
        found = [one.value for records in consumer.poll(20_000).values() for one in records]
        assert found == [b"two"]
    finally:
        consumer.close()


def test_metadata_are_stale(cluster: ThreadedCluster, proxy: ThreadedProxy, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": proxy.bootstrap_servers})
    before = set(admin.list_topics(timeout=20).topics)
    with proxy.fault.freeze_metadata() as fault:
        cluster.create_topic(f"{topic}-new")
        assert set(admin.list_topics(timeout=20).topics) == before
        assert fault.uses > 0
    assert set(admin.list_topics(timeout=20).topics) == before | {f"{topic}-new"}


def test_epochs_are_lower(cluster: ThreadedCluster, proxy: ThreadedProxy, topic: str) -> None:
    def epoch(broker: int) -> int:
        listener = proxy.state()["brokers"][broker - 1]["listener"]
        with WireClient(int(listener.rpartition(":")[2])) as client:
            client.send(METADATA, {"topics": [{"name": topic}]})
            (found,) = client.receive()[1].topics
            return int(found.partitions[0].leader_epoch)

    first = leader_of(cluster, topic)
    other = first % 3 + 1
    with cluster.fault.kill(first):  # who leads next does so in the next epoch
        current = epoch(other)
        assert current > 0
        with proxy.fault.lower_leader_epochs(topic=topic, epochs=1):
            assert epoch(other) == current - 1


def test_connections_are_cut(cluster: ThreadedCluster, proxy: ThreadedProxy, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": proxy.bootstrap_servers, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.poll(0.5)
    assert proxy.fault.cut_connections() > 0
    ConfluentClient(cluster.bootstrap_servers).produce(topic, [b"one"])
    message = consumer.poll(20)
    assert message is not None
    assert message.value() == b"one"
    consumer.close()


@pytest.mark.parametrize(
    ("kind", "arguments", "instead"),
    [
        ("stall_follower", {"broker": 1}, "return_error with NOT_ENOUGH_REPLICAS"),
        ("slow_follower", {"broker": 1, "lag_ms": 5}, "delay_responses"),
        ("shrink_isr", {"topic": "a", "partition": 0, "broker": 1}, "return_error"),
        ("cut_link", {"a": 1, "b": 2}, "a firewall"),
        ("kill", {"broker": 1}, "cut_connections"),
        ("jump_clock", {"broker": 1, "jump_ms": 5}, "`purgatory cluster`"),
        ("revive", {"broker": 1}, "`purgatory cluster`"),
    ],
)
def test_unsupported_fault_is_refused_with_an_alternative(
    proxy: ThreadedProxy, kind: str, arguments: dict[str, Any], instead: str
) -> None:
    with pytest.raises(ClusterError, match=f"{kind}: not in a proxy: .*{instead}"):
        getattr(proxy.fault, kind)(**arguments)


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ({"api": "Prodduce", "error": "INVALID_RECORD"}, "the nearest are Produce"),
        ({"api": "Produce", "error": "NOT_LEADER"}, "NOT_LEADER_OR_FOLLOWER"),
        ({"api": "Heartbeat", "error": "UNKNOWN_MEMBER_ID", "topic": "a"}, "names no topic"),
        ({"broker": 9, "error": "INVALID_RECORD"}, "there is no broker 9; there are 1, 2, 3"),
    ],
)
def test_invalid_fault_is_refused(
    proxy: ThreadedProxy, arguments: dict[str, Any], right: str
) -> None:
    with pytest.raises(ClusterError, match=right):
        proxy.fault.return_error(**arguments)
