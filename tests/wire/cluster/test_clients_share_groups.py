"""confluent-kafka's share consumers: no record is lost or processed twice, even if brokers die."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import KafkaException

from purgatory.cluster import ClusterConfig, GroupConfig, ThreadedCluster
from tests.wire.cluster.conftest import coordinator_of
from tests.wire.cluster.group_run import WAIT_S
from tests.wire.cluster.test_clients_group_changes import PARTITIONS, SteadyProducer

PATIENCE_S = 120.0
"""While brokers die, a commit of librdkafka's may take its 10 s more than once."""

LOCK_MS = 2_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    """Three brokers; locks that hold for two seconds."""
    groups = GroupConfig(
        share_heartbeat_interval_ms=250,
        share_session_timeout_ms=3_000,
        share_record_lock_duration_ms=LOCK_MS,
        share_delivery_count_limit=3,
    )
    with ThreadedCluster(ClusterConfig(groups=groups, min_insync_replicas=2)) as running:
        yield running


def read_from_the_start(cluster: ThreadedCluster, group: str) -> None:
    """Have a group read the records from before it."""
    change = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(WAIT_S)


@contextmanager
def sharing(cluster: ThreadedCluster, group: str, topic: str) -> Iterator[ShareConsumer]:
    """A share consumer that acknowledges each record explicitly."""
    consumer = ShareConsumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": 20,
        }
    )
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


class Processing:
    """The records that share consumers have read, and those that they have acknowledged."""

    def __init__(self) -> None:
        self.read: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self.refused: set[str] = set()

    def turn(self, *consumers: ShareConsumer) -> None:
        """Have each of them read and accept all records."""
        for consumer in consumers:
            values: dict[tuple[str, int], list[str]] = {}
            for message in consumer.poll(0.1):
                if message.error() is None:
                    consumer.acknowledge(message, AcknowledgeType.ACCEPT)
                    place = message.topic() or "", message.partition() or 0
                    values.setdefault(place, []).append((message.value() or b"").decode())
            self.read.update(value for those in values.values() for value in those)
            if values:
                self._commit(consumer, values)

    def _commit(self, consumer: ShareConsumer, values: dict[tuple[str, int], list[str]]) -> None:
        try:
            results = consumer.commit_sync(10.0)
        except KafkaException:
            results = {}
        told = {(place.topic, place.partition): error for place, error in results.items()}
        for place, those in values.items():
            if place in told and told[place] is None:
                self.accepted.update(those)
            else:
                self.refused.update(those)

    def until(self, condition: Callable[[], Any], *consumers: ShareConsumer) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end_s, (len(self.accepted), len(self.read))
            self.turn(*consumers)


@pytest.mark.timeout(600)
def test_share_group_survives_dying_brokers(cluster: ThreadedCluster, name: str) -> None:
    cluster.create_topic(name, partitions=PARTITIONS)
    read_from_the_start(cluster, name)
    done = Processing()
    with sharing(cluster, name, name) as one, sharing(cluster, name, name) as two:
        producer = SteadyProducer(cluster.bootstrap_servers, name)
        try:
            done.until(lambda: len(done.accepted) > 200, one, two)
            for broker in (coordinator_of(cluster, name), 1, 2, 3):
                with cluster.fault.kill(broker):
                    enough = len(done.accepted) + 100
                    done.until(lambda: len(done.accepted) > enough, one, two)  # noqa: B023
        finally:
            sent = producer.end()
        done.until(lambda: sent <= done.accepted.keys() | done.refused, one, two)
        # Each refused record is known to be kept, or comes again.
        with sharing(cluster, name, name) as three:
            quiet_s = time.monotonic() + 2 * LOCK_MS / 1_000
            while time.monotonic() < quiet_s:
                done.turn(one, two, three)
    assert done.read.keys() == sent
    assert max(done.accepted.values()) == 1, "acknowledged, and delivered again"
    assert max(done.read.values()) <= 3


def test_released_record_is_redelivered_up_to_the_limit(
    cluster: ThreadedCluster, name: str
) -> None:
    cluster.create_topic(name, partitions=1)
    read_from_the_start(cluster, name)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for value in ("accept", "reject", "release"):
        producer.produce(name, value)
    assert producer.flush(WAIT_S) == 0
    types = {
        "accept": AcknowledgeType.ACCEPT,
        "reject": AcknowledgeType.REJECT,
        "release": AcknowledgeType.RELEASE,
    }
    counts: Counter[str] = Counter()
    end_s = time.monotonic() + WAIT_S
    expected = Counter(accept=1, reject=1, release=3)
    while counts != expected:
        assert time.monotonic() < end_s, counts
        with sharing(cluster, name, name) as consumer:
            for message in consumer.poll(0.5):
                value = (message.value() or b"").decode()
                counts[value] += 1
                consumer.acknowledge(message, types[value])
            consumer.commit_sync(10.0)
    with sharing(cluster, name, name) as consumer:
        assert not list(consumer.poll(1.0))
