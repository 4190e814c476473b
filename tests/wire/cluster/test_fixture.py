"""The fixture that is installed with the package."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Message, Producer

from purgatory.cluster import ClusterError, ThreadedCluster


def test_producer_retries_after_a_lost_response(kafka_cluster: ThreadedCluster) -> None:
    kafka_cluster.create_topic("orders", partitions=1)
    leader = kafka_cluster.state()["topics"][0]["partitions"][0]["leader"]
    delivered: list[Message] = []
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers, "acks": "all"})
    with kafka_cluster.fault.lose_responses(broker=leader, count=1, api="produce") as lost:
        producer.produce("orders", b"one", on_delivery=lambda _, message: delivered.append(message))
        assert producer.flush(10) == 0
    assert lost.uses == 1
    assert [message.offset() for message in delivered] == [1], "stored twice: not idempotent"


def test_cluster_is_recorded_by_default(
    kafka_cluster: ThreadedCluster,
) -> None:
    kafka_cluster.audit().assert_no_violations(allow_empty=True)


class TestThatFloods:
    """A class with a fixture of its own, as a user's may have it."""

    @pytest.fixture
    def kafka_cluster_recorded(self) -> bool:
        return False

    def test_cluster_without_recording_has_no_audit(self, kafka_cluster: ThreadedCluster) -> None:
        with pytest.raises(ClusterError, match="nothing was recorded"):
            kafka_cluster.audit()


class TestsOfASession:
    """Tests that share a cluster: each has its own names, and audits what it did itself."""

    def test_producer_sends_twice(
        self, kafka_session_cluster: ThreadedCluster, kafka_name: Callable[[str], str]
    ) -> None:
        send_twice(kafka_session_cluster, kafka_name("orders"))
        kafka_session_cluster.fault.kill(1)
        kafka_session_cluster.fault.pause(2)

    def test_next_test_has_brokers_and_an_audit_of_its_own(
        self, kafka_session_cluster: ThreadedCluster, kafka_name: Callable[[str], str]
    ) -> None:
        state = kafka_session_cluster.state()
        assert [broker["alive"] for broker in state["brokers"]] == [True] * 3
        assert [fault for fault in state["faults"] if fault["ended_s"] is None] == []
        kafka_session_cluster.audit().assert_no_violations(allow_empty=True)
        assert kafka_session_cluster.audit(expect=["once"]).count("duplicate") == 0
        send_twice(kafka_session_cluster, kafka_name("orders"))

    def test_names_are_the_tests_own(self, kafka_name: Callable[[str], str]) -> None:
        assert kafka_name("orders") == kafka_name("orders") != kafka_name("bills")
        assert kafka_name("orders").startswith("orders-test_names_are_the_tests_own-")


def send_twice(cluster: ThreadedCluster, topic: str) -> None:
    """Lose the response to a record, which is sent again."""
    cluster.create_topic(topic)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    with cluster.fault.lose_responses(api="Produce", count=1):
        producer.produce(topic, b"one")
        assert producer.flush(20) == 0
    assert cluster.audit(expect=["once"]).count("duplicate") == 1
