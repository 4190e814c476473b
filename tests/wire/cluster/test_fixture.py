"""The fixture that is installed with the package."""

from __future__ import annotations

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
