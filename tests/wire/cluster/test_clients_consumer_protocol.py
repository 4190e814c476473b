"""confluent-kafka with `group.protocol=consumer`: the coordinator assigns, whatever happens."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupType,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from purgatory.cluster import ClusterConfig, GroupConfig, ThreadedCluster
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.wire.cluster.conftest import coordinator_of
from tests.wire.cluster.group_run import WAIT_S, group_run
from tests.wire.cluster.test_clients_group_changes import PARTITIONS, SteadyProducer

CLIENT = "consumer-protocol"
SESSION_MS = 3_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    """Three brokers, and rebalances that take half a second."""
    groups = GroupConfig(consumer_heartbeat_interval_ms=250, consumer_session_timeout_ms=SESSION_MS)
    with ThreadedCluster(ClusterConfig(groups=groups, min_insync_replicas=2)) as running:
        yield running


def group_of(cluster: ThreadedCluster, group: str) -> Any:
    """Return the coordinator's group; it may change any moment."""
    return cluster.running.brokers[coordinator_of(cluster, group)].groups.consumers.groups[group]


@contextmanager
def consuming(cluster: ThreadedCluster, group: str, topic: str, **settings: Any) -> Iterator[Any]:
    """A consumer in this process."""
    own = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group}
    consumer = Consumer(
        {**own, "group.protocol": "consumer", "auto.offset.reset": "earliest", **settings}
    )
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def poll_until(condition: Callable[[], bool], *consumers: Any) -> list[bytes]:
    """Poll consumers until the condition holds; return what they read."""
    values = []
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s, [one.assignment() for one in consumers]
        for consumer in consumers:
            message = consumer.poll(0.02)
            if message is not None and message.error() is None:
                values.append(message.value())
    return values


def topics_of(consumer: Any) -> set[tuple[str, int]]:
    return {(one.topic, one.partition) for one in consumer.assignment()}


def test_group_skips_no_record_under_changing_coordinators(
    cluster: ThreadedCluster, name: str
) -> None:
    cluster.create_topic(name, partitions=PARTITIONS)
    servers = cluster.bootstrap_servers
    with group_run(servers, name, name, SESSION_MS) as group:
        producer = SteadyProducer(servers, name)
        try:
            one = group.start(CLIENT)
            group.wait_for_shares(one, partitions=PARTITIONS)
            two, three = group.start(CLIENT), group.start(CLIENT)
            group.wait_for_shares(one, two, three, partitions=PARTITIONS)

            two.signal(signal.SIGTERM)
            assert two.wait() == 0, two.errors
            group.wait_for_shares(one, three, partitions=PARTITIONS)

            three.signal(signal.SIGKILL)
            assert three.wait() == -signal.SIGKILL
            group.wait_for_shares(one, partitions=PARTITIONS)
            four = group.start(CLIENT)
            group.wait_for_shares(one, four, partitions=PARTITIONS)

            epoch = group_of(cluster, name).epoch
            with cluster.fault.kill(coordinator_of(cluster, name)):
                read_before = len(group.read)
                group.wait_for(lambda: len(group.read) > read_before + 100, "they read on")
                group.wait_for_shares(one, four, partitions=PARTITIONS)
                assert group_of(cluster, name).epoch == epoch, "nobody had to join again"
        finally:
            sent = producer.end()
        group.wait_for(lambda: sent <= group.read, f"all {len(sent)} records are read")
        assert group.read == sent
        assert group.gaps() == []


def test_returning_static_member_keeps_its_partitions_and_epoch(
    cluster: ThreadedCluster, name: str
) -> None:
    cluster.create_topic(name, partitions=2)
    with group_run(cluster.bootstrap_servers, name, name, SESSION_MS) as group:
        first, second = group.start(CLIENT, "first"), group.start(CLIENT, "second")
        group.wait_for_shares(first, second, partitions=2)
        owned, epoch = first.owned, group_of(cluster, name).epoch
        first.signal(signal.SIGTERM)
        assert first.wait() == 0, "\n".join(first.errors)
        again = group.start(CLIENT, "first")
        group.wait_for(lambda: again.owned == owned, "it has its partition again")
        assert group_of(cluster, name).epoch == epoch


def test_expression_subscribes_to_new_topics_and_partitions(
    cluster: ThreadedCluster, name: str
) -> None:
    first, second = f"{name}.a", f"{name}.b"
    cluster.create_topic(first, partitions=1)
    client = ConfluentClient(cluster.bootstrap_servers)
    with consuming(cluster, name, f"^{name}[.][ab]") as consumer:
        poll_until(lambda: topics_of(consumer) == {(first, 0)}, consumer)
        cluster.create_topic(second, partitions=1)
        cluster.create_topic(f"{name}.c", partitions=1)
        poll_until(lambda: topics_of(consumer) == {(first, 0), (second, 0)}, consumer)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_partitions([NewPartitions(first, 2)])[first].result()
        wanted = {(first, 0), (first, 1), (second, 0)}
        poll_until(lambda: topics_of(consumer) == wanted, consumer)
        client.produce(second, [b"read"])
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.value() == b"read"
        admin.delete_topics([second])[second].result()
        poll_until(lambda: topics_of(consumer) == {(first, 0), (first, 1)}, consumer)


@pytest.mark.parametrize("assignor", ["range", "uniform"])
def test_admin_tools_describe_the_group(cluster: ThreadedCluster, name: str, assignor: str) -> None:
    cluster.create_topic(name, partitions=3)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})

    def listed(**wanted: Any) -> set[tuple[str, Any, Any]]:
        groups = admin.list_consumer_groups(**wanted).result().valid
        return {(one.group_id, one.type, one.state) for one in groups if one.group_id == name}

    settings = {"group.remote.assignor": assignor}
    with (
        consuming(cluster, name, name, **settings) as one,
        consuming(cluster, name, name, **settings) as two,
    ):
        poll_until(lambda: {len(topics_of(one)), len(topics_of(two))} == {1, 2}, one, two)
        stable = (name, ConsumerGroupType.CONSUMER, ConsumerGroupState.STABLE)
        poll_until(lambda: listed(types={ConsumerGroupType.CONSUMER}) == {stable}, one, two)
        assert listed(types={ConsumerGroupType.CLASSIC}) == set()
        described = admin.describe_consumer_groups([name])[name].result()
        assert described.state is ConsumerGroupState.STABLE
        assert described.partition_assignor == assignor
        told = {
            (of.topic, of.partition)
            for member in described.members
            for of in member.assignment.topic_partitions
        }
        assert told == {(name, number) for number in range(3)}
    empty = (name, ConsumerGroupType.CONSUMER, ConsumerGroupState.EMPTY)
    assert listed() == {empty}
    admin.delete_consumer_groups([name])[name].result()
    assert listed() == set()


@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_that_assigns_its_partitions_itself_commits(
    cluster: ThreadedCluster, name: str, protocol: str, left: bool, in_transaction: bool
) -> None:
    cluster.create_topic(name)
    own = {"bootstrap.servers": cluster.bootstrap_servers, "group.protocol": protocol}
    if left:  # the group exists, and has no member
        with consuming(cluster, name, name, **{"group.protocol": protocol}) as member:
            poll_until(lambda: topics_of(member) == {(name, 0)}, member)
    consumer = Consumer({**own, "group.id": name, "enable.auto.commit": False})
    offset = TopicPartition(name, 0, 5)
    try:
        consumer.assign([TopicPartition(name, 0, 0)])
        if in_transaction:
            producer = Producer(
                {"bootstrap.servers": own["bootstrap.servers"], "transactional.id": name}
            )
            producer.init_transactions(WAIT_S)
            producer.begin_transaction()
            metadata = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction([offset], metadata, WAIT_S)
            producer.commit_transaction(WAIT_S)
        else:
            consumer.commit(offsets=[offset], asynchronous=False)
    finally:
        consumer.close()
    assert ConfluentClient(cluster.bootstrap_servers).committed(name, name) == 5


def test_unknown_assignor_is_an_error(cluster: ThreadedCluster, name: str) -> None:
    cluster.create_topic(name)
    with consuming(cluster, name, name, **{"group.remote.assignor": "sticky"}) as consumer:
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.error().name() == "_FATAL"
        assert "assignor" in message.error().str()
