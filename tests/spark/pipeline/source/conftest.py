"""One Spark session and one cluster for all tests here; each uses topics of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from purgatory.cluster import ClusterConfig, ThreadedCluster
from purgatory.kafka import LogConfig

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[ThreadedCluster]:
    """Three brokers. A test that breaks something in the cluster repairs it before its end.

    Records are kept for ever: their times are long ago, and tests here last for minutes.
    """
    kept = LogConfig(retention_ms=None)
    with ThreadedCluster(ClusterConfig(auto_create_topics=False, log_config=kept)) as running:
        yield running


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"topic-{next(_numbers)}"
