"""Kafka Connect writes into the cluster, and its topic is applied."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from purgatory.cdc import open_target
from purgatory.cdc.apply.local_engine import apply_topics
from purgatory.cdc.apply.options import ApplyOptions, TopicSettings
from purgatory.cluster import ClusterConfig, ThreadedCluster
from tests.databases.cdc.debezium.connect import (
    TOPIC,
    connector_settings,
    require_connect,
    running_worker,
)
from tests.databases.cdc.debezium.sources import MARIADB
from tests.databases.cdc.mariadb import MariaDb
from tests.databases.cdc.same_rows import difference

_WITHIN_S = 240.0


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("exactly_once", [False, True])
def test_topic_of_a_killed_connect_is_applied(tmp_path: Path, exactly_once: bool) -> None:
    jars = require_connect(tmp_path / "jars")
    worker_settings = {"exactly.once.source.support": "enabled"} if exactly_once else {}
    with MariaDb() as source, ThreadedCluster(ClusterConfig(brokers=1)) as cluster:
        source.run(*MARIADB.begin)
        connector = connector_settings(source, cluster.bootstrap_servers)
        connector |= {"exactly.once.support": "required"} if exactly_once else {}
        with running_worker(jars, tmp_path, cluster.bootstrap_servers, worker_settings) as worker:
            worker.create("shop", connector)
            check_applied(source, cluster, tmp_path)
            source.run(*MARIADB.before, *MARIADB.changes)
            worker.kill()
        source.run(*MARIADB.lost)
        with running_worker(jars, tmp_path, cluster.bootstrap_servers, worker_settings) as worker:
            # It finds its connector and its offsets in the cluster's topics.
            check_applied(source, cluster, tmp_path)
            source.run(*MARIADB.again)
            check_applied(source, cluster, tmp_path)


def check_applied(source: MariaDb, cluster: ThreadedCluster, folder: Path) -> None:
    """Apply until the copy has the source's rows."""
    settings = TopicSettings(
        (TOPIC,),
        f"sqlite:///{folder / 'copy.db'}",
        {"kafka.bootstrap.servers": cluster.bootstrap_servers},
        options=ApplyOptions(log_format="debezium"),
        by_transaction=True,
        once=True,
    )
    give_up_s = time.monotonic() + _WITHIN_S
    while True:
        if TOPIC in {topic["name"] for topic in cluster.state()["topics"]}:
            apply_topics(settings)
            target = open_target(settings.target_url)
            found = difference(source, "shop", target)
            quarantined = target.select_own("purgatory_quarantine")
            target.close()
            assert quarantined == []
            if not found:
                return
            assert time.monotonic() < give_up_s, found
        assert time.monotonic() < give_up_s
        time.sleep(0.5)
