"""Offsets of consumers that left expire in virtual time, whatever happens to their coordinator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import aiokafka
import pytest
from aiokafka.structs import TopicPartition as Place

from purgatory.cluster import GroupConfig
from purgatory.kafka import GroupState
from purgatory.kafka.errors import GroupRefusal
from purgatory.kafka.faults import Pause
from purgatory.virtual import World
from purgatory.virtual.cluster import WorldCluster

_ORDERS = Place("orders", 0)
_GROUPS = GroupConfig(
    offsets_retention_ms=timedelta(hours=1),
    offsets_retention_check_interval_ms=timedelta(minutes=1),
)


async def _consume(servers: str) -> None:
    """Join, commit and leave."""
    async with aiokafka.AIOKafkaConsumer(
        "orders", bootstrap_servers=servers, group_id="g", enable_auto_commit=False
    ) as consumer:
        await consumer.commit({_ORDERS: 7})


def _coordinator(cluster: WorldCluster) -> int:
    for broker_id, broker in cluster.brokers.items():
        with suppress(GroupRefusal):
            if broker.alive:
                broker.groups.describe("g")
                return broker_id
    raise AssertionError("no broker coordinates it")


def _state(cluster: WorldCluster) -> tuple[GroupState, bool]:
    """Return the state of the group, and whether it has offsets."""
    groups = cluster.brokers[_coordinator(cluster)].groups
    return groups.describe("g").state, bool(groups.offset_metadata.committed("g"))


def _kill(world: World, cluster: WorldCluster) -> None:
    world.at("10min", cluster.kill, _coordinator(cluster))


def _restart(world: World, cluster: WorldCluster) -> None:
    for broker_id in cluster.brokers:
        world.at("10min", cluster.kill, broker_id)
        world.at("11min", cluster.revive, broker_id)


@pytest.mark.parametrize("happens", [lambda world, cluster: None, _kill, _restart])
def test_offsets_expire_an_hour_after_members_left(
    happens: Callable[[World, WorldCluster], None],
) -> None:
    with World() as world:
        cluster = world.cluster(brokers=3, topics={"orders": 1}, groups=_GROUPS)
        world.run(_consume(cluster.bootstrap_servers))
        happens(world, cluster)
        world.pass_time("59min")
        assert _state(cluster) == (GroupState.EMPTY, True)
        world.pass_time("3min")
        assert _state(cluster) == (GroupState.DEAD, False)


def test_paused_coordinator_expires_offsets_once_it_goes_on() -> None:
    with World() as world:
        cluster = world.cluster(brokers=1, topics={"orders": 1}, groups=_GROUPS)
        world.run(_consume(cluster.bootstrap_servers))
        world.pass_time("50min")
        pause = world.run(cluster.fault.begin(Pause(1)))
        world.pass_time("14min")
        assert _state(cluster) == (GroupState.EMPTY, True)
        pause.end()
        world.pass_time("1s")
        assert _state(cluster) == (GroupState.DEAD, False)


def test_settings_of_offsets_retention_are_told() -> None:
    with World() as world:
        cluster = world.cluster(brokers=1, groups=_GROUPS)
        told = cluster.broker_settings()
        assert told["offsets.retention.minutes"] == "60"
        assert told["offsets.retention.check.interval.ms"] == "60000"
