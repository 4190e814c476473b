"""Clients of today against clusters that are older Kafkas."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from purgatory.cluster import ClusterConfig, GroupConfig, ThreadedCluster, TopicSpec
from purgatory.kafka.kafka_versions import KAFKA_VERSIONS
from tests.wire.cluster.conftest import PYTHON_CLIENTS

_VALUES = [b"one", b"two", b"three"]


@pytest.fixture(scope="module", params=KAFKA_VERSIONS)
def older_kafka(request: pytest.FixtureRequest) -> Iterator[ThreadedCluster]:
    groups = GroupConfig(initial_rebalance_delay_ms=0, min_session_timeout_ms=100)
    topics = [TopicSpec(client, 1) for client in PYTHON_CLIENTS]
    config = ClusterConfig(brokers=1, kafka_version=request.param, groups=groups, topics=topics)
    with ThreadedCluster(config) as cluster:
        yield cluster


@pytest.mark.parametrize("name", PYTHON_CLIENTS)
def test_client_writes_and_reads_in_a_group(older_kafka: ThreadedCluster, name: str) -> None:
    client = PYTHON_CLIENTS[name](older_kafka.bootstrap_servers)
    client.produce(name, _VALUES)
    assert client.read_in_group(name, name, len(_VALUES)) == _VALUES
    apis = older_kafka.running.apis
    used = {(seen.api, seen.version) for seen in older_kafka.requests()}
    keys = {"Produce": 0, "Fetch": 1, "Metadata": 3, "JoinGroup": 11}
    for api, version in used:
        if api in keys:
            assert version <= apis[keys[api]].versions[1]
