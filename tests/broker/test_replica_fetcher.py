"""How followers come to follow."""

from __future__ import annotations

from functools import partial

import pytest

from purgatory.broker import ClusterConfig, ThreadedCluster, TopicSpec, replica_fetcher
from tests.broker.conftest import leader_of
from tests.broker.wire_client import WireClient


def test_a_new_partition_is_followed_at_once_while_fetches_of_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_fetcher, "_MAX_WAIT_MS", 3_600_000)
    with ThreadedCluster(ClusterConfig(topics=[TopicSpec("waited-for", 3)])) as cluster:
        for number in range(3):
            topic = f"new-{number}"
            cluster.create_topic(topic)
            leader = cluster.call(partial(leader_of, cluster.running, topic))
            with WireClient(cluster.running.brokers[leader].port) as writer:
                writer.produce(topic, b"copied to all before the fetch of the old ones is answered")
