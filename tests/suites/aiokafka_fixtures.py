"""Replaces the `conftest.py` of aiokafka's own tests: a cluster in virtual time.

`aiokafka_in_world` copies this file there. Each class of tests has its own world and cluster.
"""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from purgatory.cluster import ClusterConfig, GroupConfig
from purgatory.virtual import World
from purgatory.virtual.cluster import WorldCluster

_VERSION = "2.8.1"
"""Kafka's version, by which the tests skip cases of older and newer ones."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--docker-image", default=f"aiokafka:2.13_{_VERSION}")


@pytest.fixture(scope="class")
def world() -> Iterator[World]:
    # One of their tests calls the client from another thread.
    with World(1, allow=["threads"], on_unhandled="record") as world:
        yield world


@pytest.fixture(scope="class")
def loop(world: World) -> Iterator[asyncio.AbstractEventLoop]:
    asyncio.set_event_loop(world.loop)
    yield world.loop
    asyncio.set_event_loop(None)


@dataclass
class KafkaServer:
    """The attributes of a server that the tests use."""

    host: str
    port: int

    @property
    def hosts(self) -> list[str]:
        return [f"{self.host}:{self.port}"]


@pytest.fixture(scope="class")
def kafka_server(world: World) -> KafkaServer:
    groups = GroupConfig(initial_rebalance_delay_ms=0)
    config = ClusterConfig(first_broker_id=0, default_partitions=2, groups=groups)
    cluster: WorldCluster = world.cluster(brokers=1, config=config)
    host, port = cluster.bootstrap_servers.split(":")
    return KafkaServer(host, int(port))


@pytest.fixture(scope="class")
def setup_test_class_serverless(request: Any, loop: asyncio.AbstractEventLoop) -> None:
    request.cls.loop = loop


@pytest.fixture(scope="class")
def setup_test_class(
    request: Any, loop: asyncio.AbstractEventLoop, kafka_server: KafkaServer
) -> None:
    of_server = {"kafka_host": kafka_server.host, "kafka_port": kafka_server.port}
    nothing = SimpleNamespace()  # what starts containers
    for name, what in {
        **of_server,
        "loop": loop,
        "hosts": kafka_server.hosts,
        "kafka_version": _VERSION,
        "kafka_ssl_port": 1,
        "kafka_sasl_plain_port": 2,
        "kafka_sasl_ssl_port": 3,
        "ssl_folder": pathlib.Path("ssl_cert"),
        "acl_manager": nothing,
        "kerberos_utils": nothing,
        "kafka_config": nothing,
    }.items():
        setattr(request.cls, name, what)
