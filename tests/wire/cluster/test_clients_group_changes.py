"""A group of all Python clients through whatever happens to its members, and to its coordinator."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
from confluent_kafka import Producer

from purgatory.cluster import ThreadedCluster
from tests.wire.cluster.conftest import coordinator_of
from tests.wire.cluster.group_run import group_run

PARTITIONS = 6
SESSION_MS = 1_500


class SteadyProducer:
    """Sends a record to each partition in turn, every few milliseconds, until it is told to end."""

    def __init__(self, servers: str, topic: str) -> None:
        self.acknowledged: set[str] = set()
        self.errors: list[Any] = []
        self._producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5}
        )
        self._topic = topic
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        number = 0
        while not self._ending.wait(0.004):
            self._producer.produce(
                self._topic,
                str(number),
                partition=number % PARTITIONS,
                on_delivery=self._delivered,
            )
            self._producer.poll(0)
            number += 1

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.add(message.value().decode())
        else:
            self.errors.append(error)

    def end(self) -> set[str]:
        """End, and return what was acknowledged: all of it."""
        self._ending.set()
        self._thread.join()
        assert self._producer.flush(30) == 0
        assert not self.errors
        return self.acknowledged


def test_group_skips_no_record_under_changing_members(cluster: ThreadedCluster, name: str) -> None:
    cluster.create_topic(name, partitions=PARTITIONS)
    servers = cluster.bootstrap_servers
    with group_run(servers, name, name, SESSION_MS) as group:
        producer = SteadyProducer(servers, name)
        try:
            confluent = group.start("confluent-kafka")
            group.wait_for_shares(confluent, partitions=PARTITIONS)
            aiokafka = group.start("aiokafka")
            kafka_python = group.start("kafka-python")
            group.wait_for_shares(confluent, aiokafka, kafka_python, partitions=PARTITIONS)

            kafka_python.signal(signal.SIGTERM)
            assert kafka_python.wait() == 0, kafka_python.errors
            group.wait_for_shares(confluent, aiokafka, partitions=PARTITIONS)
            kafka_python = group.start("kafka-python")
            group.wait_for_shares(confluent, aiokafka, kafka_python, partitions=PARTITIONS)

            aiokafka.signal(signal.SIGKILL)
            assert aiokafka.wait() == -signal.SIGKILL
            group.wait_for_shares(confluent, kafka_python, partitions=PARTITIONS)
            aiokafka = group.start("aiokafka")
            group.wait_for_shares(confluent, aiokafka, kafka_python, partitions=PARTITIONS)

            confluent.signal(signal.SIGSTOP)
            group.wait_for_shares(aiokafka, kafka_python, partitions=PARTITIONS)
            confluent.signal(signal.SIGCONT)
            group.wait_for_shares(confluent, aiokafka, kafka_python, partitions=PARTITIONS)

            with cluster.fault.kill(coordinator_of(cluster, name)):
                read_before = len(group.read)
                group.wait_for(lambda: len(group.read) > read_before + 100, "they read on")
                group.wait_for_shares(confluent, aiokafka, kafka_python, partitions=PARTITIONS)
        finally:
            sent = producer.end()
        group.wait_for(lambda: sent <= group.read, f"all {len(sent)} records are read")
        assert group.read == sent
        assert group.gaps() == []


# kafka-python 3.0 may ask a coordinator on that is gone, which raises UnknownBrokerIdError.
@pytest.mark.parametrize("client_name", ["confluent-kafka", "aiokafka"])
def test_members_notice_no_death_of_their_coordinator(
    cluster: ThreadedCluster, name: str, client_name: str
) -> None:
    cluster.create_topic(name, partitions=PARTITIONS)
    servers = cluster.bootstrap_servers
    with group_run(servers, name, name, 10_000) as group:
        producer = SteadyProducer(servers, name)
        try:
            members = [group.start(client_name), group.start(client_name)]
            group.wait_for_shares(*members, partitions=PARTITIONS)
            owned = [(member.owned, member.assignments) for member in members]
            with cluster.fault.kill(coordinator_of(cluster, name)):
                read_before = len(group.read)
                group.wait_for(lambda: len(group.read) > read_before + 300, "they read on")
        finally:
            sent = producer.end()
        group.wait_for(lambda: sent <= group.read, f"all {len(sent)} records are read")
        assert [(member.owned, member.assignments) for member in members] == owned
        # Before that, while the group formed, a partition may have moved between read and commit.
        reads = []
        for member in members:
            reads += member.reads[len(member.reads) - member.reads[::-1].index(None) :]
        assert len(reads) == len(set(reads)) >= 300, "a record was read twice"
        assert group.gaps() == []
