"""Brokers that were away lead their partitions again."""

from __future__ import annotations

from typing import Any

from purgatory.virtual import World
from purgatory.virtual.cluster import WorldCluster


def _world_cluster(world: World, **settings: Any) -> WorldCluster:
    return world.cluster(brokers=3, topics={"orders": 6}, replica_max_lag_ms=10_000, **settings)


def _misled(cluster: WorldCluster) -> list[str]:
    """Return the partitions that their preferred brokers don't lead."""
    return [
        str(key)
        for key, state in cluster.controller.partitions()
        if state.leader != state.replicas[0]
    ]


def test_returned_broker_leads_again_after_five_minutes() -> None:
    with World() as world:
        cluster = _world_cluster(world)
        world.at("10s", cluster.kill, 1)
        world.at("20s", cluster.revive, 1)
        world.pass_time("299s")
        assert len(_misled(cluster)) == 2
        world.pass_time("2s")
        assert _misled(cluster) == []


def test_returned_broker_leads_again_at_a_set_interval() -> None:
    with World() as world:
        cluster = _world_cluster(world, leader_imbalance_check_s=30)
        world.at("10s", cluster.kill, 1)
        world.at("20s", cluster.revive, 1)
        world.pass_time("29s")
        assert len(_misled(cluster)) == 2
        world.pass_time("2s")
        assert _misled(cluster) == []


def test_returned_broker_leads_nothing_without_rebalance() -> None:
    with World() as world:
        cluster = _world_cluster(world, auto_leader_rebalance=False)
        world.at("10s", cluster.kill, 1)
        world.at("20s", cluster.revive, 1)
        world.pass_time("20min")
        assert len(_misled(cluster)) == 2


def test_dead_broker_is_not_elected() -> None:
    with World() as world:
        cluster = _world_cluster(world, leader_imbalance_check_s=30)
        world.at("10s", cluster.kill, 1)
        world.pass_time("5min")
        assert len(_misled(cluster)) == 2
        assert all(state.leader in (2, 3) for _, state in cluster.controller.partitions())


def test_broker_out_of_sync_is_not_elected() -> None:
    with World() as world:
        cluster = _world_cluster(world, leader_imbalance_check_s=30)
        world.at("10s", cluster.kill, 1)
        world.at("15s", lambda: cluster.fault.stall_follower(1))
        world.at("20s", cluster.revive, 1)
        world.pass_time("5min")
        assert len(_misled(cluster)) == 2
        cluster.fault.end_all()
        world.pass_time("1min")
        assert _misled(cluster) == []


def test_paused_broker_is_not_elected() -> None:
    with World() as world:
        cluster = _world_cluster(world, leader_imbalance_check_s=30)
        world.at("10s", cluster.kill, 1)
        world.at("20s", cluster.revive, 1)
        world.at("28s", lambda: cluster.fault.pause(1))
        world.pass_time("31s")
        assert len(_misled(cluster)) == 2
        cluster.fault.end_all()
        world.pass_time("30s")
        assert _misled(cluster) == []
