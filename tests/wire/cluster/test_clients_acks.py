"""Responses to producers, and their times, when followers lag: those of Kafka."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer

from purgatory.cluster import ClusterConfig, ThreadedCluster
from purgatory.kafka import OFFSETS_TOPIC, TopicPartition
from tests.wire.cluster.conftest import CLIENTS, leader_of, require_client
from tests.wire.cluster.kafka_client import KafkaClient
from tests.wire.cluster.wire_client import WireClient

REQUEST_TIMED_OUT = 7
NOT_ENOUGH_REPLICAS = 19
TIMEOUT_MS = 400
LATE_S = 0.020

_LIBRDKAFKA = {"request.timeout.ms": TIMEOUT_MS, "retries": 0, "linger.ms": 0}
ONE_TRY: Mapping[str, Mapping[str, Any]] = {
    "confluent-kafka": _LIBRDKAFKA,
    "kcat": _LIBRDKAFKA,
    # Its only bound on how often it tries is the request's timeout.
    "aiokafka": {"request_timeout_ms": TIMEOUT_MS},
    "kafka-python": {
        "request_timeout_ms": TIMEOUT_MS,
        "delivery_timeout_ms": 3 * TIMEOUT_MS,
        "retries": 0,
    },
}
"""Each client's settings to wait ``TIMEOUT_MS`` for a response, and to try once."""


class Replicas(NamedTuple):
    """The replicas of partition 0 of a topic."""

    topic: str
    leader: int
    followers: tuple[int, ...]


@pytest.fixture
def replicas(cluster: ThreadedCluster, name: str) -> Replicas:
    """A topic of which 2 of 3 replicas must be in sync."""
    cluster.create_topic(name)
    leader = cluster.call(lambda: leader_of(cluster.running, name))
    return Replicas(name, leader, tuple(b for b in cluster.running.brokers if b != leader))


@pytest.fixture
def writer(cluster: ThreadedCluster, replicas: Replicas) -> Iterator[WireClient]:
    with WireClient(cluster.running.brokers[replicas.leader].port) as writer:
        writer.produce(replicas.topic, b"first")
        yield writer


@contextmanager
def all_followers(fault: Callable[..., Any], *settings: Any, replicas: Replicas) -> Iterator[None]:
    """Put a fault on every follower."""
    with ExitStack() as faults:
        for follower in replicas.followers:
            faults.enter_context(fault(*settings, follower))
        yield


# ---- exactly, with bare frames


def test_stalled_follower_in_sync_times_out_acks_all(
    cluster: ThreadedCluster, replicas: Replicas, writer: WireClient
) -> None:
    late_s = []
    with cluster.fault.stall_follower(replicas.followers[0]):
        for timeout_ms in (30, 100, 250):
            sent_s = writer.send_produce(replicas.topic, b"x", acks=-1, timeout_ms=timeout_ms)
            came_s, code = writer.receive_produced()
            assert code == REQUEST_TIMED_OUT
            late_s.append(came_s - sent_s - timeout_ms / 1_000)
    assert min(late_s) >= 0, f"gave up early: {late_s}"
    assert min(late_s) < LATE_S, f"gave up late: {late_s}"


def test_acks_all_completes_when_the_follower_has_the_records(
    cluster: ThreadedCluster, replicas: Replicas, writer: WireClient
) -> None:
    with (
        cluster.fault.stall_follower(replicas.followers[0]),
        WireClient(cluster.running.brokers[replicas.leader].port) as other,
    ):
        writer.send_produce(replicas.topic, b"x", acks=-1, timeout_ms=20_000)
        other.round_trip()
        assert not writer.has_answer
        went_on_s = time.monotonic()
    came_s, code = writer.receive_produced()
    assert code == 0
    assert went_on_s < came_s < went_on_s + 20, "not by its timeout"


def test_acks_1_and_acks_0_do_not_wait_for_followers(
    cluster: ThreadedCluster, replicas: Replicas, writer: WireClient
) -> None:
    with all_followers(cluster.fault.stall_follower, replicas=replicas):
        writer.send_produce(replicas.topic, b"x", acks=1, timeout_ms=20_000)
        sent_s = time.monotonic()
        came_s, code = writer.receive_produced()
        assert code == 0
        assert came_s - sent_s < 20, "not by its timeout"
        writer.send_fetch(replicas.topic, 0, min_bytes=0, max_wait_ms=0)
        writer.receive_fetched()


def test_acks_all_below_min_insync_is_refused_at_once(
    cluster: ThreadedCluster, replicas: Replicas, writer: WireClient
) -> None:
    with all_followers(cluster.fault.shrink_isr, replicas.topic, 0, replicas=replicas):
        sent_s = writer.send_produce(replicas.topic, b"x", acks=-1, timeout_ms=20_000)
        came_s, code = writer.receive_produced()
        assert code == NOT_ENOUGH_REPLICAS
        assert came_s - sent_s < 20, "not by its timeout"
        writer.send_produce(replicas.topic, b"y", acks=1, timeout_ms=20_000)
        assert writer.receive_produced()[1] == 0, "acks=1 asks for nobody"
    writer.send_fetch(replicas.topic, 1, min_bytes=1, max_wait_ms=20_000)
    records = writer.receive_fetched()[1]
    assert records.endswith(b"\x02y\x00"), "the refused one is not there"
    assert len(records) == 61 + 7 + 1, "one record"


def test_isr_below_the_minimum_commits_no_appended_record(
    cluster: ThreadedCluster, replicas: Replicas, writer: WireClient
) -> None:
    with all_followers(cluster.fault.shrink_isr, replicas.topic, 0, replicas=replicas):
        writer.send_produce(replicas.topic, b"x", acks=1, timeout_ms=20_000)
        assert writer.receive_produced()[1] == 0
        writer.send_fetch(replicas.topic, 1, min_bytes=1, max_wait_ms=50)
        assert writer.receive_fetched()[1] == b""
    writer.send_fetch(replicas.topic, 1, min_bytes=1, max_wait_ms=20_000)
    assert writer.receive_fetched()[1].endswith(b"\x02x\x00")


def test_produce_waits_on_while_the_isr_is_below_the_minimum(
    cluster: ThreadedCluster, replicas: Replicas, writer: WireClient
) -> None:
    with all_followers(cluster.fault.stall_follower, replicas=replicas):
        writer.send_produce(replicas.topic, b"x", acks=-1, timeout_ms=30)
        with all_followers(cluster.fault.shrink_isr, replicas.topic, 0, replicas=replicas):
            assert writer.receive_produced()[1] == REQUEST_TIMED_OUT
            writer.send_produce(replicas.topic, b"y", acks=-1, timeout_ms=20_000)
            assert writer.receive_produced()[1] == NOT_ENOUGH_REPLICAS


def test_acks_0_that_succeeds_keeps_its_connection(replicas: Replicas, writer: WireClient) -> None:
    writer.send_without_answer(replicas.topic, b"x")
    writer.round_trip()


@pytest.mark.parametrize("why", ["unknown", "internal", "not led", "too large", "refused"])
def test_an_error_to_acks_0_closes_the_connection(
    cluster: ThreadedCluster, replicas: Replicas, why: str
) -> None:
    topic, value, broker = replicas.topic, b"x", replicas.leader
    with ExitStack() as stack:
        match why:
            case "unknown":
                topic = "nobody-made-it"
            case "internal":
                topic = OFFSETS_TOPIC
                cluster.call(cluster.running.offsets_partitions)
            case "not led":
                broker = replicas.followers[0]
            case "too large":
                value = bytes(2 << 20)
            case "refused":
                stack.enter_context(cluster.fault.refuse_produces())
        client = stack.enter_context(WireClient(cluster.running.brokers[broker].port))
        client.send_without_answer(topic, value)
        with pytest.raises(ConnectionError):
            client.round_trip()


# ---- as the clients tell it


Sender = AbstractContextManager[Callable[[str], object]]


@contextmanager
def _confluent_sender(servers: str) -> Iterator[Callable[[str], object]]:
    producer = Producer({"bootstrap.servers": servers, "acks": 0, "linger.ms": 0})

    def send(topic: str) -> None:
        producer.produce(topic, b"x", partition=0)
        producer.flush(20)

    yield send


@contextmanager
def _kafka_python_sender(servers: str) -> Iterator[Callable[[str], object]]:
    producer = KafkaProducer(bootstrap_servers=servers.split(","), acks=0)
    try:
        yield lambda topic: producer.send(topic, b"x", partition=0).get(20)
    finally:
        producer.close()


@pytest.mark.parametrize("new_sender", [_confluent_sender, _kafka_python_sender])
def test_acks_0_producer_follows_a_moved_leader(
    cluster: ThreadedCluster, name: str, new_sender: Callable[[str], Sender]
) -> None:
    """No broker dies, so its connection alone can tell the client of lost sends."""
    cluster.create_topic(name, replication=1)
    partition, running = TopicPartition(name, 0), cluster.running
    former = cluster.call(lambda: leader_of(running, name))
    with new_sender(cluster.bootstrap_servers) as send:
        send(name)
        to = next(broker for broker in running.brokers if broker != former)

        cluster.call(lambda: running.controller.reassign(partition, (to,)))
        deadline_s = time.monotonic() + 60
        while cluster.call(lambda: leader_of(running, name)) != to:
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
        led = running.brokers[to].manager.partition(partition)
        assert led is not None
        before = led.log_end_offset
        while cluster.call(lambda: led.log_end_offset) == before:
            assert time.monotonic() < deadline_s, "its records went nowhere"
            send(name)


def failure(client: KafkaClient, topic: str, settings: Mapping[str, Any]) -> str:
    """Return a client's error when a produce fails."""
    try:
        client.produce(topic, [b"x"], **settings)
    except Exception as error:  # each client has its own
        return repr(error)
    pytest.fail("it was acknowledged")


@pytest.mark.parametrize("client_name", CLIENTS)
def test_client_times_out_on_a_stalled_follower(
    cluster: ThreadedCluster, replicas: Replicas, client_name: str
) -> None:
    require_client(client_name)
    client = CLIENTS[client_name](cluster.bootstrap_servers)
    client.produce(replicas.topic, [b"before"])
    with cluster.fault.stall_follower(replicas.followers[0]):
        began_s = time.monotonic()
        told = failure(client, replicas.topic, ONE_TRY[client_name])
        took_s = time.monotonic() - began_s
    assert re.search("REQUEST_TIMED_OUT|RequestTimedOut|Request timed out", told), told
    assert took_s >= TIMEOUT_MS / 1_000, "gave up early"
    assert took_s < 60
    client.produce(replicas.topic, [b"after"])


@pytest.mark.parametrize("client_name", CLIENTS)
def test_client_gets_not_enough_replicas(
    cluster: ThreadedCluster, replicas: Replicas, client_name: str
) -> None:
    require_client(client_name)
    client = CLIENTS[client_name](cluster.bootstrap_servers)
    with all_followers(cluster.fault.shrink_isr, replicas.topic, 0, replicas=replicas):
        told = failure(client, replicas.topic, ONE_TRY[client_name])
        assert re.search("NOT_ENOUGH_REPLICAS|NotEnoughReplicas|Not enough in-sync", told), told
        client.produce(replicas.topic, [b"y"], acks="1")
    client.produce(replicas.topic, [b"z"])


def test_acks_all_resumes_without_the_stalled_follower() -> None:
    config = ClusterConfig(min_insync_replicas=2, replica_max_lag_ms=400)
    with ThreadedCluster(config) as cluster:
        cluster.create_topic("orders")
        leader = cluster.call(lambda: leader_of(cluster.running, "orders"))
        follower = next(broker for broker in cluster.running.brokers if broker != leader)
        partition = TopicPartition("orders", 0)

        def isr() -> tuple[int, ...]:
            state = cluster.running.controller.state_of(partition)
            assert state is not None
            return state.isr

        with WireClient(cluster.running.brokers[leader].port) as writer:
            writer.produce("orders", b"first")
            with cluster.fault.stall_follower(follower):
                writer.send_produce("orders", b"x", acks=-1, timeout_ms=20_000)
                assert writer.receive_produced()[1] == 0
                assert follower not in cluster.call(isr)
            deadline_s = time.monotonic() + 20
            while follower not in cluster.call(isr):
                assert time.monotonic() < deadline_s, "it doesn't come back into the ISR"
                writer.round_trip()
