"""Static members and committed offsets, as the clients see them."""

from __future__ import annotations

import signal

import pytest

from purgatory.cluster import ThreadedCluster
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.wire.cluster.conftest import PYTHON_CLIENTS, coordinator_of
from tests.wire.cluster.group_run import group_run
from tests.wire.cluster.group_worker import FENCED
from tests.wire.cluster.kafka_client import KafkaClient

VALUES = [b"value-%03d" % number for number in range(60)]
LONG_SESSION_MS = 30_000


def generation_of(cluster: ThreadedCluster, group: str) -> int:
    """Return how often a group has rebalanced."""
    broker = cluster.running.brokers[coordinator_of(cluster, group)]
    return int(cluster.call(lambda: broker.groups.classic.groups[group].generation))


@pytest.mark.parametrize("client_name", PYTHON_CLIENTS)
def test_static_member_rejoins_without_rebalance(
    cluster: ThreadedCluster, name: str, client_name: str
) -> None:
    cluster.create_topic(name, partitions=2)
    with group_run(cluster.bootstrap_servers, name, name, LONG_SESSION_MS) as group:
        first = group.start(client_name, "first")
        second = group.start(client_name, "second")
        group.wait_for_shares(first, second, partitions=2)
        generation, assignments = generation_of(cluster, name), second.assignments
        first.signal(signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
        again = group.start(client_name, "first")
        group.wait_for(lambda: again.owned == first.owned, "it has its partition again")
        assert generation_of(cluster, name) == generation
        assert second.assignments == assignments


def test_replaced_static_member_is_fenced(cluster: ThreadedCluster, name: str) -> None:
    # aiokafka doesn't know the error; kafka-python 3.0 notes it and doesn't wake its poll.
    client_name = "confluent-kafka"
    cluster.create_topic(name)
    with group_run(cluster.bootstrap_servers, name, name, session_ms=2_000) as group:
        old = group.start(client_name, "the-one")
        group.wait_for_shares(old, partitions=1)
        new = group.start(client_name, "the-one")
        group.wait_for_shares(new, partitions=1)
        assert old.wait() == FENCED, old.errors
        ConfluentClient(cluster.bootstrap_servers).produce(name, [b"one"])
        group.wait_for(lambda: (0, 0) in new.reads, "the new one reads")


def test_committed_offsets_survive_the_death_of_the_coordinator(
    cluster: ThreadedCluster, client: KafkaClient, name: str
) -> None:
    cluster.create_topic(name)
    client.produce(name, VALUES)
    assert client.read_in_group(name, name, 20) == VALUES[:20]
    for start in (20, 40):
        with cluster.fault.kill(coordinator_of(cluster, name)):
            assert client.read_in_group(name, name, 20) == VALUES[start : start + 20]
