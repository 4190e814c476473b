"""One cluster for all tests of the capture, each of which has a database and a topic."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from purgatory.cluster import ClusterConfig, ThreadedCluster
from tests.databases.cdc.capture.capturing import Capturing
from tests.databases.cdc.mariadb import MariaDb

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[ThreadedCluster]:
    """Three brokers."""
    with ThreadedCluster(ClusterConfig(min_insync_replicas=2)) as running:
        yield running


@pytest.fixture
def capturing(mariadb: MariaDb, cluster: ThreadedCluster) -> Capturing:
    """An empty database, and a topic that has its changes from here on."""
    return Capturing(mariadb, cluster, f"shop{next(_numbers)}")
