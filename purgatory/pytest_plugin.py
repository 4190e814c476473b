"""The pytest fixture ``kafka_cluster``: a cluster for the tests of Kafka clients.

    def test_my_producer(kafka_cluster):
        with kafka_cluster.fault.lose_answers(broker=1, count=1):
            ...

    def test_nothing_is_lost(kafka_cluster):
        ...
        kafka_cluster.audit(expect=["no-loss"]).assert_no_violations()

Three brokers on ports that the system chooses, one cluster for each test. A test, class or module
that wants another kind overrides ``kafka_cluster_config``; one that floods its cluster, and audits
nothing, has ``kafka_cluster_recorded`` return False.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from purgatory.cluster import ClusterConfig, ThreadedCluster


@pytest.fixture
def kafka_cluster_config() -> ClusterConfig:
    """What the cluster of a test is to be: groups come together without delay."""
    with _said_clearly():
        from purgatory.cluster import ClusterConfig, GroupConfig

    groups = GroupConfig(
        initial_rebalance_delay_ms=0,
        min_session_timeout_ms=100,
        consumer_heartbeat_interval_ms=200,
        share_heartbeat_interval_ms=200,
    )
    return ClusterConfig(groups=groups)


@pytest.fixture
def kafka_cluster_recorded() -> bool:
    """Whether the cluster of a test keeps what happens, so that the test may audit it."""
    return True


@pytest.fixture
def kafka_cluster(
    kafka_cluster_config: ClusterConfig, kafka_cluster_recorded: bool
) -> Iterator[ThreadedCluster]:
    """A cluster that runs while the test does."""
    with _said_clearly():
        from purgatory.cluster import ThreadedCluster
    with ThreadedCluster(kafka_cluster_config, recorded=kafka_cluster_recorded) as cluster:
        yield cluster


@contextmanager
def _said_clearly() -> Iterator[None]:
    """Have a test fail by one line where the extra is missing, or the package is not ours."""
    from purgatory.cli.extras import missing_extra
    from purgatory.import_names import check_purgatory

    try:
        check_purgatory()
        yield
    except ImportError as error:
        advice = missing_extra("cluster", error.name, "the fixture kafka_cluster")
        if advice is None and isinstance(error, ModuleNotFoundError):
            raise
        pytest.fail(advice or str(error), pytrace=False)
