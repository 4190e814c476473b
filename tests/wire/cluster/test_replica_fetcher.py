"""Followers begin to follow new partitions, and fetch only changed ones."""

from __future__ import annotations

import time
from functools import partial

import pytest

from purgatory.cluster import ClusterConfig, ThreadedCluster, TopicSpec, replica_fetcher
from purgatory.kafka import FetchParams, ReplicaManager
from purgatory.kafka.replication.delayed_fetch import Reads
from purgatory.kafka.replication.fetch_session import Fetches
from tests.wire.cluster.conftest import leader_of
from tests.wire.cluster.wire_client import WireClient


def test_new_partition_is_fetched_despite_waiting_fetches(
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


def test_followers_fetch_only_changed_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []
    of_all = ReplicaManager._read_for_follower

    def counting(self: ReplicaManager, params: FetchParams, fetches: Fetches, now_ms: int) -> Reads:
        read.append(len(fetches))
        return of_all(self, params, fetches, now_ms)

    monkeypatch.setattr(ReplicaManager, "_read_for_follower", counting)
    topics = [TopicSpec(f"many-{number}", 6) for number in range(100)]
    with ThreadedCluster(ClusterConfig(topics=[TopicSpec("written"), *topics])) as cluster:
        leader = cluster.call(partial(leader_of, cluster.running, "written"))
        with WireClient(cluster.running.brokers[leader].port) as writer:
            deadline_s = time.monotonic() + 90
            while sum(read[-24:]) or len(read) < 24:  # four fetches of each of the six that read
                assert time.monotonic() < deadline_s, read[-24:]
                time.sleep(0.1)
            read.clear()
            for _ in range(50):
                writer.produce("written", b"x")
    # Each record is fetched and acknowledged by two followers; some fetches bring the watermark.
    assert sum(read) < 50 * 2 * 2 + 50, read
