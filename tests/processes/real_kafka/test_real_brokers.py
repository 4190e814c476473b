"""Brokers of a real Kafka behind our proxy: faults, listeners, state, trace."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    AcknowledgeType,
    Consumer,
    KafkaException,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from purgatory.cluster import ClusterConfig, ClusterError, GroupConfig, Listener, Tls, TopicSpec
from purgatory.proxy import ProxyConfig, ThreadedProxy, UpstreamTls
from purgatory.real_kafka import KafkaFiles, OnlyOursError, ThreadedRealKafka, processes
from purgatory.real_kafka.settings import broker_settings
from tests.spark.pipeline.source.certificates import make_certificate
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.wire.cluster.wire_values import record_batch
from tests.wire.proxy.test_addresses import addresses_in, ask

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]

PRODUCE, FETCH, METADATA, SHARE_FETCH, SHARE_ACKNOWLEDGE = 0, 1, 3, 78, 79
_NAMES = itertools.count()
_PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def kafka(kafka_files: KafkaFiles, certificate: Path) -> Iterator[ThreadedRealKafka]:
    """Three brokers with a listener of each kind."""
    config = ClusterConfig(
        brokers=3,
        topics=[TopicSpec("given", 2, settings={"retention.ms": "60000"})],
        listeners=[
            Listener("OPEN"),
            Listener("TLS", tls=Tls(certificate)),
            Listener("LOGIN", sasl=["PLAIN", "SCRAM-SHA-256"]),
            Listener("BOTH", tls=Tls(certificate), sasl=["SCRAM-SHA-512"]),
        ],
        users={"ann": "secret"},
        groups=GroupConfig(initial_rebalance_delay_ms=0, min_session_timeout_ms=100),
    )
    with ThreadedRealKafka(kafka_files, config, recorded=True) as kafka:
        yield kafka


@pytest.fixture(autouse=True)
def _settled(kafka: ThreadedRealKafka) -> Iterator[None]:
    yield
    kafka.settle()


@pytest.fixture
def topic(kafka: ThreadedRealKafka) -> str:
    name = f"topic-{next(_NAMES)}"
    kafka.create_topic(name)
    return name


def partition_of(kafka: ThreadedRealKafka, topic: str) -> Mapping[str, Any]:
    (found,) = (one for one in kafka.state()["topics"] if one["name"] == topic)
    (partition,) = found["partitions"]
    return dict(partition)


def listener_of(kafka: ThreadedRealKafka, broker: int) -> tuple[str, int]:
    (found,) = (one for one in kafka.state()["brokers"] if one["id"] == broker)
    return found["host"], found["port"]


def wait_until(holds: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < ends_s
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("listener", "protocol", "mechanism"),
    [
        ("OPEN", "PLAINTEXT", None),
        ("TLS", "SSL", None),
        ("LOGIN", "SASL_PLAINTEXT", "PLAIN"),
        ("LOGIN", "SASL_PLAINTEXT", "SCRAM-SHA-256"),
        ("BOTH", "SASL_SSL", "SCRAM-SHA-512"),
    ],
)
def test_client_connects_by_each_kind_of_listener(
    kafka: ThreadedRealKafka,
    certificate: Path,
    topic: str,
    listener: str,
    protocol: str,
    mechanism: str | None,
) -> None:
    settings: dict[str, Any] = {"security.protocol": protocol}
    if "SSL" in protocol:
        settings["ssl.ca.location"] = str(certificate)
    if mechanism is not None:
        login = {"sasl.username": "ann", "sasl.password": "secret"}
        settings |= {"sasl.mechanism": mechanism, **login}
    client = ConfluentClient(kafka.bootstrap_servers_of(listener))
    with kafka.fault.return_error(api="Produce", error="NOT_LEADER_OR_FOLLOWER", count=1) as fault:
        client.produce(topic, [b"one"], **settings)
    assert fault.uses == 1
    assert partition_of(kafka, topic)["high_watermark"] == 1


def test_killed_leader_is_followed_by_another(kafka: ThreadedRealKafka, topic: str) -> None:
    leader = partition_of(kafka, topic)["leader"]
    client = ConfluentClient(kafka.bootstrap_servers)
    client.produce(topic, [b"one"])
    with kafka.fault.kill(leader):
        alive = {one["id"]: one["alive"] for one in kafka.state()["brokers"]}
        assert [broker for broker in alive if not alive[broker]] == [leader]
        with pytest.raises(ClusterError, match=f"broker {leader} is dead already"):
            kafka.fault.pause(leader)
        wait_until(lambda: partition_of(kafka, topic)["leader"] not in (leader, -1))
        client.produce(topic, [b"two"])
        assert [one.value for one in client.read(topic, 0, 2)] == [b"one", b"two"]
    wait_until(lambda: leader in partition_of(kafka, topic)["isr"])


def test_dead_broker_is_revived_at_once(kafka: ThreadedRealKafka) -> None:
    kafka.fault.kill(2)
    kafka.fault.revive(2)
    assert [one["alive"] for one in kafka.state()["brokers"]] == [True] * 3
    with pytest.raises(ClusterError, match="broker 2 lives"):
        kafka.fault.revive(2)


def test_paused_broker_answers_after_its_pause(kafka: ThreadedRealKafka, topic: str) -> None:
    leader, began_s = partition_of(kafka, topic)["leader"], time.monotonic()
    kafka.fault.pause(leader, for_s=1)
    ConfluentClient(kafka.bootstrap_servers).produce(topic, [b"one"])
    assert time.monotonic() - began_s > 0.9


def test_connections_are_cut(kafka: ThreadedRealKafka, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.poll(1)
    assert kafka.fault.cut_connections() > 0
    consumer.close()


def test_topics_are_created_by_the_configuration_and_by_calls(kafka: ThreadedRealKafka) -> None:
    kafka.create_topic("created", partitions=2, replication=1, settings={"retention.ms": "5000"})
    topics = {one["name"]: one["partitions"] for one in kafka.state()["topics"]}
    assert [len(topics[name]) for name in ("given", "created")] == [2, 2]
    assert [len(topics[name][0]["replicas"]) for name in ("given", "created")] == [3, 1]
    for wrong, arguments in (
        ("topic created exists", {"name": "created"}),
        ("topic wide: ", {"name": "wide", "replication": 9}),
        ("unknown", {"name": "odd", "settings": {"unknown": "1"}}),
    ):
        with pytest.raises(ClusterError, match=wrong):
            kafka.create_topic(**arguments)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("stall_follower", {"broker": 1}),
        ("slow_follower", {"broker": 1, "lag_ms": 5}),
        ("shrink_isr", {"topic": "given", "partition": 0, "broker": 1}),
        ("cut_link", {"a": 1, "b": 2}),
        ("jump_clock", {"broker": 1, "jump_ms": 5}),
        ("kill", {"broker": 1, "lost_records": 1}),
    ],
)
def test_what_only_ours_can_do_is_refused(
    kafka: ThreadedRealKafka, kind: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(OnlyOursError, match="not with a real Kafka: its brokers"):
        getattr(kafka.fault, kind)(**arguments)


# Requests of clients.


def test_requests_are_seen_answered_and_waited_for(kafka: ThreadedRealKafka, topic: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    hook = kafka.on_request(
        lambda request: request.refusal("NOT_LEADER_OR_FOLLOWER"),
        api="Produce",
        topic=topic,
        count=1,
    )
    producer.produce(topic, b"one")
    kafka.wait_for(requests="Produce", topic=topic, count=2, timeout=_PATIENCE_S)
    assert producer.flush(_PATIENCE_S) == 0
    assert hook.uses == 1
    answers = [seen.answer for seen in kafka.requests(api="Produce", topic=topic)]
    codes = [answer.responses[0].partition_responses[0].error_code.name for answer in answers]
    assert codes == ["not_leader_or_follower", "none"]


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [("group_stable", ["billing"]), ("caught_up", ["billing"]), ("isr", ["given", 0, {1}])],
)
def test_waits_for_what_brokers_know_are_refused(
    kafka: ThreadedRealKafka, kind: str, arguments: list[Any]
) -> None:
    with pytest.raises(OnlyOursError, match=f"{kind}: not with a real Kafka: the brokers tell"):
        getattr(kafka.wait_for, kind)(*arguments)


# Faults that clients feel.


def test_throttle_is_felt_by_a_producer(kafka: ThreadedRealKafka, topic: str) -> None:
    told: list[float] = []
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "throttle_cb": lambda event: told.append(event.throttle_time),
        }
    )
    with kafka.fault.throttle(api="Produce", throttle_ms=700, count=1):
        producer.produce(topic, b"one")
        assert producer.flush(_PATIENCE_S) == 0
    producer.poll(1)
    assert told == [0.7]


def test_slow_responses_are_felt_by_a_consumer(kafka: ThreadedRealKafka, topic: str) -> None:
    client = ConfluentClient(kafka.bootstrap_servers)
    client.produce(topic, [b"x" * 20_000])
    with kafka.fault.slow_responses(api="Fetch", bytes_per_s=20_000):
        began_s = time.monotonic()
        assert len(client.read(topic, 0, 1)) == 1
        assert time.monotonic() - began_s > 0.9


def test_lower_leader_epochs_are_felt_by_a_consumer(kafka: ThreadedRealKafka, topic: str) -> None:
    first = partition_of(kafka, topic)["leader"]
    with kafka.fault.kill(first):
        wait_until(lambda: partition_of(kafka, topic)["leader"] not in (first, -1))
    kafka.settle()

    def epoch() -> int:
        body = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        answer = asyncio.run(ask(listener_of(kafka, first), METADATA, 9, body))
        return int(answer.topics[0].partitions[0].leader_epoch)

    current = epoch()
    assert current > 0
    ConfluentClient(kafka.bootstrap_servers).produce(topic, [b"one"])
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic})
    with kafka.fault.lower_leader_epochs(topic=topic, epochs=1):
        assert epoch() == current - 1
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert consumer.poll(3) is None, "the leader refuses what comes with an earlier epoch"
    message = consumer.poll(_PATIENCE_S)
    assert message is not None
    assert message.value() == b"one"
    consumer.close()


# The proxy beside a real Kafka.


def test_share_consumers_acknowledgements_are_in_the_trace(
    kafka: ThreadedRealKafka, topic: str
) -> None:
    group = f"share-{topic}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    earliest = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[earliest])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result()
    kafka.forget_recorded()
    ConfluentClient(kafka.bootstrap_servers).produce(topic, [b"one", b"two"])
    mode = {"share.acknowledgement.mode": "explicit"}
    servers = {"bootstrap.servers": kafka.bootstrap_servers}
    consumer = ShareConsumer({**servers, "group.id": group, **mode})
    consumer.subscribe([topic])
    values: list[bytes | None] = []
    ends_s = time.monotonic() + _PATIENCE_S
    while len(values) < 3 and time.monotonic() < ends_s:
        for message in consumer.poll(1) or ():
            is_released = message.value() == b"two" and b"two" not in values
            ack = AcknowledgeType.RELEASE if is_released else AcknowledgeType.ACCEPT
            values.append(message.value())
            consumer.acknowledge(message, ack)
        consumer.commit_sync(10)
    consumer.close()
    assert sorted(values, key=str) == [b"one", b"two", b"two"]
    findings = kafka.audit(expect=["once", "no-loss"])
    findings.assert_no_violations()  # what was released may be read again
    assert findings.judged["read"] == 3, findings.basis


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(PRODUCE, 11), (FETCH, 16), (SHARE_FETCH, 1), (SHARE_ACKNOWLEDGE, 1)],
)
def test_hints_to_the_leader_have_the_proxys_address(
    kafka: ThreadedRealKafka, topic: str, api_key: int, version: int
) -> None:
    topic = f"{topic}-alone"  # the other broker is no replica, from which consumers may read
    kafka.create_topic(topic, replication=1)
    leader = partition_of(kafka, topic)["leader"]
    other = leader % 3 + 1
    body = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
    (found,) = asyncio.run(ask(listener_of(kafka, other), METADATA, 12, body)).topics
    produced = [{"index": 0, "records": record_batch([b"one"])}]
    fetched = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000}
    shared = {"partition_index": 0, "partition_max_bytes": 1_000, "acknowledgement_batches": []}
    given: Mapping[int, Mapping[str, Any]] = {
        PRODUCE: {"topic_data": [{"name": topic, "partition_data": produced}]},
        FETCH: {"topics": [{"topic_id": found.topic_id, "partitions": [fetched]}]},
        SHARE_FETCH: {"topics": [{"topic_id": found.topic_id, "partitions": [shared]}]},
        SHARE_ACKNOWLEDGE: {"topics": [{"topic_id": found.topic_id, "partitions": [shared]}]},
    }
    values = {
        "acks": -1,
        "group_id": "share",
        "member_id": str(found.topic_id),
        "share_session_epoch": 0,
        "session_epoch": -1,
        "max_bytes": 1_000,
        "max_records": 10,
        "batch_size": 10,
        "isolation_level": 0,
        "min_bytes": 0,
        **given[api_key],
    }
    answer = asyncio.run(ask(listener_of(kafka, other), api_key, version, values))
    host, port = listener_of(kafka, leader)
    addresses = list(addresses_in(answer))
    if api_key == SHARE_ACKNOWLEDGE:  # without a session there is no partition to tell of
        assert set(addresses) <= {f"{host}:{port}"}
    else:
        assert addresses == [f"{host}:{port}"]


def test_second_proxy_before_a_real_kafka_has_its_logins(
    kafka: ThreadedRealKafka, certificate: Path, topic: str
) -> None:
    config = ProxyConfig(
        to=kafka.bootstrap_servers_of("BOTH").split(","), to_tls=UpstreamTls(certificate)
    )
    login = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "ann", "sasl.password": "secret"}
    with ThreadedProxy(config) as proxy:
        client = ConfluentClient(proxy.bootstrap_servers)
        settings: dict[str, Any] = {"security.protocol": "SASL_PLAINTEXT", **login}
        client.produce(topic, [b"one"], **settings)
        settings |= {"sasl.password": "wrong", "message.timeout.ms": 3_000}
        with pytest.raises((KafkaException, AssertionError)):
            client.produce(topic, [b"two"], **settings)
    assert partition_of(kafka, topic)["high_watermark"] == 1


def test_proxy_reaches_a_brokers_tls_listener(
    kafka_files: KafkaFiles, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A broker's own TLS: what `ThreadedRealKafka` configures has its TLS at the proxy.
    key = certificate.read_text()

    def with_tls(*given: Any) -> dict[str, str]:
        settings = broker_settings(*given)
        protocols = settings["listener.security.protocol.map"]
        prefix = "listener.name.clients1"
        return settings | {
            "listener.security.protocol.map": protocols.replace(
                "CLIENTS1:SASL_PLAINTEXT", "CLIENTS1:SASL_SSL"
            ),
            f"{prefix}.ssl.keystore.type": "PEM",
            f"{prefix}.ssl.keystore.key": key[: key.index("-----BEGIN CERT")],
            f"{prefix}.ssl.keystore.certificate.chain": key[key.index("-----BEGIN CERT") :],
        }

    monkeypatch.setattr(processes, "broker_settings", with_tls)
    config = ClusterConfig(
        brokers=1,
        topics=[TopicSpec("orders")],
        listeners=[Listener("OPEN"), Listener("LOGIN", sasl=["PLAIN"])],
        users={"ann": "secret"},
    )
    with ThreadedRealKafka(kafka_files, config) as kafka:
        brokers = kafka.running._processes
        address = str(brokers.endpoints(1)[1])
        with ThreadedProxy(ProxyConfig(to=[address], to_tls=UpstreamTls(certificate))) as proxy:
            client = ConfluentClient(proxy.bootstrap_servers)
            login = {"sasl.mechanism": "PLAIN", "sasl.username": "ann", "sasl.password": "secret"}
            settings: dict[str, Any] = {"security.protocol": "SASL_PLAINTEXT", **login}
            client.produce("orders", [b"one"], **settings)
            with proxy.fault.lose_responses(api="Produce", count=1) as lost:
                client.produce("orders", [b"two"], **settings)
            assert lost.uses == 1
        assert partition_of(kafka, "orders")["high_watermark"] == 3


def test_taken_port_is_named_before_java_starts(kafka_files: KafkaFiles) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        kafka = ThreadedRealKafka(kafka_files, ClusterConfig(brokers=1, first_port=port))
        with pytest.raises(ClusterError, match=f"127.0.0.1:{port}"):
            kafka.start()
