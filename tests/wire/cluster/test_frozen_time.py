"""A test that freezes its time, in front of a cluster whose time passes."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer
from freezegun import freeze_time

from purgatory import DelayedOperation, DelayedOperationPurgatory, Outcome
from purgatory.cluster import ClusterConfig, GroupConfig, ThreadedCluster, TopicSpec
from purgatory.proxy import ProxyConfig, ThreadedProxy
from timer import SystemTimer

_LONG_AGO = "2020-01-02"
_WAIT_S = 30


@pytest.fixture
def frozen() -> Iterator[None]:
    with freeze_time(_LONG_AGO):
        assert time.time() == datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC).timestamp()
        yield


def _config() -> ClusterConfig:
    groups = GroupConfig(initial_rebalance_delay_ms=0)
    return ClusterConfig(brokers=1, topics=[TopicSpec("orders")], groups=groups)


def _send(servers: str) -> int:
    """Send a record, and return its time."""
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    times: list[int] = []
    producer.produce(
        "orders", b"x", on_delivery=lambda error, sent: times.append(sent.timestamp()[1])
    )
    assert producer.flush(_WAIT_S) == 0
    return times[0]


def _read(servers: str) -> bytes | None:
    settings = {"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe(["orders"])
    message = consumer.poll(_WAIT_S)
    consumer.close()
    return None if message is None else message.value()


@pytest.mark.usefixtures("frozen")
def test_clients_are_served_in_frozen_time() -> None:
    with ThreadedCluster(_config()) as cluster:
        _send(cluster.bootstrap_servers)
        assert _read(cluster.bootstrap_servers) == b"x"


def test_cluster_goes_on_when_time_is_frozen() -> None:
    with ThreadedCluster(_config()) as cluster, freeze_time(_LONG_AGO):
        with cluster.fault.delay_responses(by_ms=20) as fault:
            _send(cluster.bootstrap_servers)
        assert fault.uses > 0
        assert _read(cluster.bootstrap_servers) == b"x"


@pytest.mark.usefixtures("frozen")
def test_proxy_serves_clients_in_frozen_time() -> None:
    with (
        ThreadedCluster(_config()) as cluster,
        ThreadedProxy(ProxyConfig(to=[cluster.bootstrap_servers])) as proxy,
    ):
        with proxy.fault.delay_responses(by_ms=20):
            _send(proxy.bootstrap_servers)
        assert _read(proxy.bootstrap_servers) == b"x"


def test_broker_reads_the_machines_clock_in_frozen_time() -> None:
    settings = {"message.timestamp.type": "LogAppendTime"}
    before_ms = time.time_ns() // 1_000_000
    with ThreadedCluster(_config()) as cluster, freeze_time(_LONG_AGO):
        cluster.create_topic("stamped", settings=settings)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        times: list[int] = []
        producer.produce(
            "stamped", b"x", on_delivery=lambda error, sent: times.append(sent.timestamp()[1])
        )
        assert producer.flush(_WAIT_S) == 0
    assert before_ms <= times[0] <= time.time_ns() // 1_000_000


@pytest.mark.usefixtures("frozen")
def test_operation_expires_in_frozen_time() -> None:
    class Operation(DelayedOperation):
        def try_complete(self) -> bool:
            return False

    timer = SystemTimer("frozen")
    purgatory = DelayedOperationPurgatory("frozen", timer=timer)
    operation = Operation(10)
    try:
        purgatory.try_complete_else_watch(operation, ["key"])
        assert operation.wait(_WAIT_S) is not None
        assert operation.outcome is Outcome.EXPIRED
    finally:
        purgatory.close(timeout=_WAIT_S)
        timer.close()
