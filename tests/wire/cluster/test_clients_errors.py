"""Real clients that get errors, or truncated responses: they send again, report, and lose
nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer, ThrottleEvent

from purgatory.cluster import ThreadedCluster, ThreadedFault
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.wire.cluster.conftest import leader_of
from tests.wire.cluster.kafka_client import KafkaClient, Record

_ALL = [b"a", b"b", b"c"]


def _values(cluster: ThreadedCluster, topic: str, count: int) -> list[bytes]:
    """Read all values of partition 0, of which there are to be so many."""
    end = cluster.call(lambda: _end_offset(cluster, topic))
    assert end == count, f"{end} records"
    records = ConfluentClient(cluster.bootstrap_servers).read(topic, 0, count)
    assert [record.offset for record in records] == list(range(count))
    return [record.value for record in records]


def _end_offset(cluster: ThreadedCluster, topic: str) -> int:
    running = cluster.running
    [partition] = [
        one
        for one in running.brokers[leader_of(running, topic)].manager.partitions()
        if one.topic_partition.topic == topic
    ]
    return partition.log_end_offset


def test_client_retries_refused_sends(
    cluster: ThreadedCluster, python_client: KafkaClient, name: str
) -> None:
    cluster.create_topic(name)
    with cluster.fault.return_error(
        api="Produce", error="NOT_LEADER_OR_FOLLOWER", topic=name, count=3
    ) as refused:
        python_client.produce(name, _ALL)
    assert refused.uses == 3
    assert _values(cluster, name, 3) == _ALL, "refused requests were not processed"


@pytest.mark.parametrize("idempotent", [False, True])
def test_error_after_the_append_duplicates_records(
    cluster: ThreadedCluster, python_client: KafkaClient, name: str, idempotent: bool
) -> None:
    cluster.create_topic(name)
    with cluster.fault.return_error(
        api="Produce", error="REQUEST_TIMED_OUT", topic=name, count=1, after=True
    ) as untrue:
        python_client.produce(name, [b"a"], idempotent=idempotent)
    assert untrue.uses == 1
    assert _values(cluster, name, 1 if idempotent else 2) == [b"a"] * (1 if idempotent else 2)


def test_fatal_error_is_reported(
    cluster: ThreadedCluster, python_client: KafkaClient, name: str
) -> None:
    cluster.create_topic(name)
    with (
        cluster.fault.return_error(api="Produce", error="TOPIC_AUTHORIZATION_FAILED", topic=name),
        pytest.raises(Exception, match=r"(?i)topic.?authorization"),
    ):
        python_client.produce(name, [b"a"])
    assert cluster.call(lambda: _end_offset(cluster, name)) == 0


def _named(client_id: str) -> dict[str, Any]:
    return {"client.id": client_id}


def test_fault_of_one_client_id_spares_other_clients(cluster: ThreadedCluster, name: str) -> None:
    cluster.create_topic(name)
    client = ConfluentClient(cluster.bootstrap_servers)
    with cluster.fault.return_error(
        api="Produce", error="TOPIC_AUTHORIZATION_FAILED", client_id="bad"
    ) as fault:
        client.produce(name, [b"good"], **_named("good"))
        with pytest.raises(KafkaException, match="authorization"):
            client.produce(name, [b"bad"], **_named("bad"))
    assert fault.uses == 1
    assert _values(cluster, name, 1) == [b"good"]


def test_members_wait_while_the_coordinator_loads(
    cluster: ThreadedCluster, python_client: KafkaClient, name: str
) -> None:
    cluster.create_topic(name)
    python_client.produce(name, _ALL)
    with cluster.fault.load_coordinator(group_id=name, count=3) as loading:
        assert python_client.read_in_group(name, name, 3) == _ALL
    assert loading.uses == 3


def test_consumer_resumes_after_fetch_errors(
    cluster: ThreadedCluster, python_client: KafkaClient, name: str
) -> None:
    cluster.create_topic(name)
    python_client.produce(name, _ALL)
    with cluster.fault.return_error(
        api="Fetch", error="NOT_LEADER_OR_FOLLOWER", topic=name, partition=0, count=2
    ) as fault:
        read = python_client.read(name, 0, 3)
    assert read == [Record(offset, value) for offset, value in enumerate(_ALL)]
    assert fault.uses == 2


def _torn(cluster: ThreadedCluster) -> ThreadedFault:
    return cluster.fault.truncate_responses(api="Produce", count=1)


def _torn_in_the_length(cluster: ThreadedCluster) -> ThreadedFault:
    return cluster.fault.truncate_responses(api="Produce", count=1, keep_bytes=3)


def _slow(cluster: ThreadedCluster) -> ThreadedFault:
    return cluster.fault.slow_responses(bytes_per_s=20_000)


def _late(cluster: ThreadedCluster) -> ThreadedFault:
    return cluster.fault.delay_responses(by_ms=5, distribution="exponential", seed=3)


def _older_epochs(cluster: ThreadedCluster) -> ThreadedFault:
    return cluster.fault.lower_leader_epochs(epochs=2)


@pytest.mark.parametrize("begin", [_torn, _torn_in_the_length, _slow, _late, _older_epochs])
def test_idempotent_client_has_no_duplicates_despite_faults(
    cluster: ThreadedCluster,
    python_client: KafkaClient,
    name: str,
    begin: Callable[[ThreadedCluster], AbstractContextManager[Any]],
) -> None:
    cluster.create_topic(name)
    with begin(cluster):
        python_client.produce(name, _ALL, idempotent=True)
        assert python_client.read(name, 0, 3) == [
            Record(offset, value) for offset, value in enumerate(_ALL)
        ]
    assert _values(cluster, name, 3) == _ALL


def test_client_with_stale_metadata_finds_the_new_leader(
    cluster: ThreadedCluster, python_client: KafkaClient, name: str
) -> None:
    cluster.create_topic(name)
    leader = cluster.call(lambda: leader_of(cluster.running, name))
    with (
        cluster.fault.freeze_metadata(for_s=0.5) as frozen,
        cluster.fault.return_error(
            leader, api="Produce", error="NOT_LEADER_OR_FOLLOWER", for_s=0.5
        ),
    ):
        python_client.produce(name, _ALL)
    assert frozen.uses > 0
    assert _values(cluster, name, 3) == _ALL


def test_throttle_times_reach_the_client(cluster: ThreadedCluster, name: str) -> None:
    cluster.create_topic(name)
    told: list[ThrottleEvent] = []
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "throttle_cb": told.append}
    producer = Producer(settings)
    with cluster.fault.throttle(api="Produce", throttle_ms=70, count=1) as fault:
        producer.produce(name, b"a", partition=0)
        assert producer.flush(20) == 0
    assert fault.uses == 1
    assert [event.throttle_time for event in told] == [0.07]


def test_transaction_survives_coordinator_errors(cluster: ThreadedCluster, name: str) -> None:
    cluster.create_topic(name)
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": name}
    producer = Producer(settings)
    with cluster.fault.load_coordinator(transactional_id=name, count=2) as loading:
        producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(name, b"a", partition=0)
    with cluster.fault.return_error(
        api="EndTxn",
        error="COORDINATOR_NOT_AVAILABLE",
        transactional_id=name,
        count=2,
        after=True,
    ) as untrue:
        producer.commit_transaction(20)
    assert (loading.uses, untrue.uses) == (2, 2)
    producer.begin_transaction()
    with cluster.fault.return_error(
        api="AddPartitionsToTxn", error="INVALID_PRODUCER_EPOCH", transactional_id=name
    ) as fenced:
        producer.produce(name, b"b", partition=0)
        with pytest.raises(KafkaException, match="fenced"):
            producer.commit_transaction(20)
    assert fenced.uses == 1
    [record] = ConfluentClient(cluster.bootstrap_servers).read(name, 0, 1)
    assert record.value == b"a"
