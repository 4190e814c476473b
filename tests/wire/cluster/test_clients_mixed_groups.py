"""Real clients of both protocols in one group: it migrates there and back, and skips nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from purgatory.cluster import ClusterConfig, GroupConfig, ThreadedCluster
from tests.wire.cluster.conftest import PYTHON_CLIENTS, coordinator_of
from tests.wire.cluster.group_run import group_run
from tests.wire.cluster.test_clients_group_changes import PARTITIONS, SteadyProducer


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    """Three brokers, and rebalances that take half a second."""
    groups = GroupConfig(
        initial_rebalance_delay_ms=300,
        min_session_timeout_ms=100,
        consumer_heartbeat_interval_ms=250,
        consumer_session_timeout_ms=3_000,
    )
    with ThreadedCluster(ClusterConfig(groups=groups, min_insync_replicas=2)) as running:
        yield running


def kinds_of(cluster: ThreadedCluster, group: str) -> list[str]:
    """Return the kind of a group, of its coordinator."""
    groups = cluster.running.brokers[coordinator_of(cluster, group)].groups
    return [
        kind
        for kind, known in (
            ("classic", groups.classic.groups),
            ("consumer", groups.consumers.groups),
        )
        if group in known
    ]


@pytest.mark.parametrize("client_name", PYTHON_CLIENTS)
def test_group_of_clients_migrates_and_returns(
    cluster: ThreadedCluster, name: str, client_name: str
) -> None:
    cluster.create_topic(name, partitions=PARTITIONS)
    servers = cluster.bootstrap_servers
    with group_run(servers, name, name, 10_000) as group:
        producer = SteadyProducer(servers, name)
        try:
            one, two = group.start(client_name), group.start(client_name)
            group.wait_for_shares(one, two, partitions=PARTITIONS)
            assert kinds_of(cluster, name) == ["classic"]

            consumer = group.start("consumer-protocol")
            group.wait_for_shares(one, two, consumer, partitions=PARTITIONS)
            assert kinds_of(cluster, name) == ["consumer"]

            consumer.signal(signal.SIGTERM)
            assert consumer.wait() == 0, consumer.errors
            group.wait_for_shares(one, two, partitions=PARTITIONS)
            assert kinds_of(cluster, name) == ["classic"]
        finally:
            sent = producer.end()
        group.wait_for(lambda: sent <= group.read, f"all {len(sent)} records are read")
        assert group.gaps() == []
