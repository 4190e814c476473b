"""Clusters for the tests, and the clients that they run against them."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
from collections.abc import Callable, Iterator

import pytest

import purgatory.pytest_plugin
from purgatory.cluster import Cluster, ClusterConfig, GroupConfig, ThreadedCluster
from purgatory.kafka import OFFSETS_TOPIC, TopicPartition, group_partition
from tests.wire.cluster.aiokafka_client import AiokafkaClient
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.wire.cluster.kafka_client import KafkaClient
from tests.wire.cluster.kafka_python_client import KafkaPythonClient
from tests.wire.cluster.kcat_client import KcatClient

NewClient = Callable[[str], KafkaClient]
"""Makes a client from the bootstrap servers."""

PYTHON_CLIENTS: dict[str, NewClient] = {
    "confluent-kafka": ConfluentClient,
    "aiokafka": AiokafkaClient,
    "kafka-python": KafkaPythonClient,
}

CLIENTS: dict[str, NewClient] = {**PYTHON_CLIENTS, "kcat": KcatClient}

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Have the fixtures of the plugin where the package is not installed with its entry points."""
    plugin = purgatory.pytest_plugin
    if not config.pluginmanager.is_registered(plugin):
        config.pluginmanager.register(plugin, "purgatory")


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    """Three brokers for all tests of a module: each uses topics and groups of its own.

    A test that breaks something in it repairs that before its end.
    """
    groups = GroupConfig(initial_rebalance_delay_ms=0, min_session_timeout_ms=100)
    with ThreadedCluster(ClusterConfig(groups=groups, min_insync_replicas=2)) as running:
        yield running


@pytest.fixture
def name() -> str:
    """A name that no other test uses, for a topic or a group."""
    return f"test-{next(_numbers)}"


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, cluster: ThreadedCluster) -> KafkaClient:
    """Each of the four clients in turn."""
    require_client(request.param)
    return CLIENTS[request.param](cluster.bootstrap_servers)


@pytest.fixture(params=PYTHON_CLIENTS)
def python_client(request: pytest.FixtureRequest, cluster: ThreadedCluster) -> KafkaClient:
    """Each of the clients that are Python packages in turn."""
    return CLIENTS[request.param](cluster.bootstrap_servers)


def require_client(client_name: str) -> None:
    """Skip the test if a client is not there; under CI it must be."""
    if client_name != "kcat" or shutil.which("kcat"):
        return
    if os.environ.get("CI") == "true":
        pytest.fail("kcat is missing: install the package kcat")
    pytest.skip("kcat is not installed")


def leader_of(cluster: Cluster, topic: str) -> int:
    """Return the leader of partition 0; to be called on the cluster's thread."""
    state = cluster.controller.state_of(TopicPartition(topic, 0))
    assert state is not None
    return state.leader


def isr_of(cluster: Cluster, topic: str) -> set[int]:
    """Return the ISR of partition 0; to be called on the cluster's thread."""
    state = cluster.controller.state_of(TopicPartition(topic, 0))
    assert state is not None
    return set(state.isr)


async def eventually(condition: Callable[[], bool]) -> None:
    """Return once the condition holds; a minute is for a machine with much else to do."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


def coordinator_of(cluster: ThreadedCluster, group: str) -> int:
    """Return which broker coordinates a group."""

    def find() -> int:
        partition = group_partition(group, cluster.running.offsets_partitions())
        state = cluster.running.controller.state_of(TopicPartition(OFFSETS_TOPIC, partition))
        assert state is not None
        return state.leader

    return int(cluster.call(find))
