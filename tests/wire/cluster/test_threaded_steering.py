"""A test that blocks sees, answers, waits and moves: the same as on an event loop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from purgatory.cluster import ClusterConfig, GroupConfig, SeenRequest, ThreadedCluster, TopicSpec

_SETTINGS = GroupConfig(initial_rebalance_delay_ms=0, min_session_timeout_ms=100)


@pytest.fixture
def cluster() -> Iterator[ThreadedCluster]:
    config = ClusterConfig(brokers=2, topics=[TopicSpec("orders")], groups=_SETTINGS)
    with ThreadedCluster(config) as running:
        yield running


def _send(cluster: ThreadedCluster, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
    for value in values:
        producer.produce("orders", value)
        assert producer.flush(20) == 0


def test_blocking_test_sees_and_answers_requests(cluster: ThreadedCluster) -> None:
    def refuse(request: SeenRequest) -> object:
        return request.refusal("NOT_LEADER_OR_FOLLOWER")

    with cluster.on_request(refuse, api="Produce", topic="orders", count=2) as hook:
        _send(cluster, b"one")
        cluster.wait_for(requests="Produce", count=3)
    assert (hook.uses, hook.active) == (2, False)
    assert repr(hook).startswith("<ThreadedHook of <RequestHook of Produce requests with topic=")
    codes = [
        seen.answer.responses[0].partition_responses[0].error_code
        for seen in cluster.requests(api="Produce")
    ]
    assert [code.name for code in codes] == ["not_leader_or_follower"] * 2 + ["none"]
    cluster.clear_requests()
    assert cluster.requests(api="Produce") == []


def test_blocking_test_waits_for_groups_and_partitions(cluster: ThreadedCluster) -> None:
    _send(cluster, b"one", b"two")
    cluster.wait_for.isr("orders", 0, {1, 2})
    settings = {"group.id": "billing", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, **settings})
    consumer.subscribe(["orders"])
    read = [consumer.poll(20), consumer.poll(20)]
    assert [message and message.value() for message in read] == [b"one", b"two"]
    cluster.wait_for.group_stable("billing", members=1)
    consumer.close()
    cluster.wait_for.caught_up("billing")
    with pytest.raises(TimeoutError, match="it is Empty with 0: no member"):
        cluster.wait_for.group_stable("billing", timeout=0.01)


def test_blocking_test_moves_roles_and_changes_brokers(cluster: ThreadedCluster) -> None:
    for broker in (1, 2, 1):
        cluster.move.leader("orders", 0, to=broker)
        _send(cluster, b"%d" % broker)
    assert cluster.add_broker() == 3
    cluster.remove_broker(1)
    _send(cluster, b"one more")
    assert {broker["id"] for broker in cluster.state()["brokers"]} == {2, 3}
    partition = cluster.state()["topics"][0]["partitions"][0]
    assert (set(partition["replicas"]), partition["high_watermark"]) == ({2, 3}, 4)


def test_wait_for_a_fault_ends_with_its_use(cluster: ThreadedCluster) -> None:
    with cluster.fault.delay_responses(api="Produce", by_ms=1) as fault:
        _send(cluster, b"one")
        cluster.wait_for.uses(fault)
