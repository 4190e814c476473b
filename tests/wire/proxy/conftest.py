"""A cluster, and a proxy in front of it, for the tests of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import purgatory.pytest_plugin
from purgatory.cluster import ClusterConfig, GroupConfig, ThreadedCluster
from purgatory.proxy import ProxyConfig, ThreadedProxy
from tests.wire.cluster.aiokafka_client import AiokafkaClient
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.wire.cluster.kafka_client import KafkaClient
from tests.wire.cluster.kafka_python_client import KafkaPythonClient

CLIENTS: dict[str, Callable[[str], KafkaClient]] = {
    "confluent-kafka": ConfluentClient,
    "aiokafka": AiokafkaClient,
    "kafka-python": KafkaPythonClient,
}


def pytest_configure(config: pytest.Config) -> None:
    """Have the fixtures of the plugin where the package is not installed with its entry points."""
    plugin = purgatory.pytest_plugin
    if not config.pluginmanager.is_registered(plugin):
        config.pluginmanager.register(plugin, "purgatory")


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    """Three brokers for all tests of a module: each uses topics and groups of its own."""
    groups = GroupConfig(initial_rebalance_delay_ms=0, min_session_timeout_ms=100)
    with ThreadedCluster(ClusterConfig(groups=groups)) as running:
        yield running


@pytest.fixture(scope="module")
def proxy_of_module(cluster: ThreadedCluster) -> Iterator[ThreadedProxy]:
    """A proxy in front of it, which is given one broker."""
    first = cluster.bootstrap_servers.split(",")[0]
    with ThreadedProxy(ProxyConfig(to=[first])) as running:
        yield running


@pytest.fixture
def proxy(proxy_of_module: ThreadedProxy) -> Iterator[ThreadedProxy]:
    """The module's proxy, without faults from other tests."""
    yield proxy_of_module
    proxy_of_module.fault.end_all()


@pytest.fixture
def topic(request: pytest.FixtureRequest, cluster: ThreadedCluster) -> str:
    """A topic with one partition that no other test uses."""
    name = "".join(one if one.isalnum() else "-" for one in request.node.name)[:200]
    cluster.create_topic(name)
    return name


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, proxy: ThreadedProxy) -> KafkaClient:
    """Each of the clients in turn, which come to the proxy."""
    return CLIENTS[request.param](proxy.bootstrap_servers)
