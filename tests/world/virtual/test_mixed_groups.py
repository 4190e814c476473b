"""Members of both protocols share a group of the cluster, in a virtual world."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

import pytest

from purgatory.virtual import World
from purgatory.virtual.cluster import WorldCluster
from tests.world import acts
from tests.world.security import Security, security_of
from tests.world.wire_client import (
    CONSUMER_DESCRIBE,
    GROUP,
    LIST_GROUPS,
    WireClient,
)
from tests.world.wire_members import (
    GROUP_ID,
    TOPIC,
    ClassicMember,
    ConsumerMember,
    PositionedMember,
)

_PARTITIONS = 6
_SETTLED_S = 30


async def _share(*members: PositionedMember) -> None:
    """Wait until members have had the time for a rebalance; they share all partitions then."""
    await asyncio.sleep(_SETTLED_S)
    held = [sorted(member.positions) for member in members]
    assert sorted(chain.from_iterable(held)) == list(range(_PARTITIONS)), held
    assert {len(one) for one in held} == {_PARTITIONS // len(members)}, held


class _Clients:
    """Clients of one cluster, which are cut at the end."""

    def __init__(self, cluster: WorldCluster) -> None:
        self._cluster = cluster
        self._clients: list[WireClient] = []

    def new(self, name: str) -> WireClient:
        security: Security = security_of("none")
        client = WireClient(self._cluster, name, True, security)
        self._clients.append(client)
        return client

    def pair(self, name: str) -> tuple[WireClient, WireClient]:
        return self.new(name), self.new(name)

    def cut(self) -> None:
        for client in self._clients:
            client.cut()


async def _type_of(client: WireClient) -> Sequence[str]:
    types = []
    for broker in client.cluster.brokers:
        answer = await client.ask(broker, LIST_GROUPS, {"states_filter": [], "types_filter": []})
        types += [one.group_type for one in answer.groups if one.group_id == GROUP_ID]
    return types


async def _migrate(cluster: WorldCluster, clients: _Clients, kills: bool) -> None:
    admin = clients.new("admin")
    await acts.create_topics(admin, {TOPIC: _PARTITIONS})
    one = ClassicMember(*clients.pair("one"))
    two = ClassicMember(*clients.pair("two"), instance_id="two")
    for member in (one, two):
        member.start()
    await _share(one, two)
    assert await _type_of(admin) == ["classic"]

    three = ConsumerMember(*clients.pair("three"))
    three.start()
    await _share(one, two, three)
    assert await _type_of(admin) == ["consumer"]
    asked = {"group_ids": [GROUP_ID], "include_authorized_operations": False}
    described = await admin.ask_coordinator(GROUP_ID, GROUP, CONSUMER_DESCRIBE, asked)
    [group] = described.groups
    assert sorted(member.member_type for member in group.members) == [0, 0, 1]

    if kills:
        held = [dict.fromkeys(member.positions) for member in (one, two, three)]
        await cluster.kill(acts.coordinator_of(cluster, has_group=True))
        await _share(one, two, three)
        assert [dict.fromkeys(member.positions) for member in (one, two, three)] == held
        admin.forget()
    await three.stop(leaves=True)
    await _share(one, two)
    if not kills:
        assert await _type_of(admin) == ["classic"]
    for member in (one, two):
        await member.stop(leaves=True)


@pytest.mark.parametrize("kills", [False, True])
def test_group_migrates_to_consumers_and_back(kills: bool) -> None:
    with World(2) as world:
        cluster = world.cluster(brokers=3)
        clients = _Clients(cluster)
        world.run(_migrate(cluster, clients, kills), "30min")
        clients.cut()
