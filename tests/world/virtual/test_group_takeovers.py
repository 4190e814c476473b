"""The coordinator of classic groups dies, or all brokers restart: their members notice nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import timedelta
from typing import Any

import aiokafka
import pytest
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from purgatory.virtual import World
from tests.world.acts import coordinator_of
from tests.world.security import security_of
from tests.world.wire_client import GROUP, HEARTBEAT, JOIN_GROUP, SYNC_GROUP, WireClient
from tests.world.wire_members import GROUP_ID

_PARTITIONS = 6
_RECORDS = 120
_KILL_S, _REVIVE_S = 20.0, 40.0


class _Rebalances(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    """Counts how often a consumer is given partitions."""

    def __init__(self) -> None:
        self.count = 0

    async def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
        pass

    async def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        self.count += 1


async def _consume(servers: str, read: list[int], told: _Rebalances, instance: str | None) -> None:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=servers,
        group_id=GROUP_ID,
        group_instance_id=instance,
        auto_offset_reset="earliest",
        partition_assignment_strategy=[RoundRobinPartitionAssignor],
    )
    consumer.subscribe(["orders"], listener=told)
    async with consumer:
        async for record in consumer:
            read.append(int(record.value))


async def _produce(servers: str) -> None:
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=servers, enable_idempotence=True
    ) as producer:
        for number in range(_RECORDS):
            await producer.send_and_wait("orders", b"%d" % number, partition=number % _PARTITIONS)
            await asyncio.sleep(0.5)


async def _work(servers: str, read: list[int], told: list[_Rebalances], is_static: bool) -> None:
    members = [
        asyncio.create_task(_consume(servers, read, one, f"i{number}" if is_static else None))
        for number, one in enumerate(told)
    ]
    await asyncio.sleep(10)
    before = [one.count for one in told]
    await _produce(servers)
    await asyncio.sleep(30)
    assert [one.count for one in told] == before, "they were given partitions again"
    for member in members:
        member.cancel()
    await asyncio.gather(*members, return_exceptions=True)


@pytest.mark.parametrize("is_static", [False, True])
def test_members_notice_no_death_of_their_coordinator(is_static: bool) -> None:
    read: list[int] = []
    told = [_Rebalances(), _Rebalances()]
    with World(3) as world:
        cluster = world.cluster(brokers=3, topics={"orders": _PARTITIONS})
        killed: list[int] = []

        async def kill() -> None:
            killed.append(coordinator_of(cluster, has_group=True))
            await cluster.kill(killed[0])

        world.at(f"{_KILL_S}s", kill)
        world.at(f"{_REVIVE_S}s", lambda: cluster.revive(killed[0]))
        world.run(_work(cluster.bootstrap_servers, read, told, is_static))
    assert all(one.count for one in told)
    assert sorted(read) == list(range(_RECORDS)), "some were read twice, or never"


async def _joined(client: WireClient) -> dict[str, Any]:
    """Join a group as a static member, and assign something to itself; return who it is."""
    member = {"group_id": "g", "member_id": "", "group_instance_id": "i"}
    asked = {
        **member,
        "session_timeout": timedelta(seconds=30),
        "rebalance_timeout": timedelta(seconds=60),
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"m"}],
    }
    joined = await client.ask_coordinator("g", GROUP, JOIN_GROUP, asked)
    assert joined.error_code == 0
    member |= {"member_id": joined.member_id, "generation_id": joined.generation_id}
    synced = await _sync(client, member, b"all of it")
    assert synced.error_code == 0
    return member


async def _sync(client: WireClient, member: dict[str, Any], assignment: bytes | None = None) -> Any:
    assignments = [{"member_id": member["member_id"], "assignment": assignment}]
    asked = {
        **member,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": assignments if assignment is not None else [],
    }
    return await client.ask_coordinator("g", GROUP, SYNC_GROUP, asked)


def test_members_go_on_after_all_brokers_restart() -> None:
    security = security_of("none")
    with World(1) as world:
        cluster = world.cluster(brokers=3, disk=True)
        client = WireClient(cluster, "client", True, security)
        member = world.run(_joined(client))
        client.cut()
        world.run(cluster.stop())
        cluster = world.cluster(brokers=3, disk=cluster.virtual_disk)
        world.pass_time("25s")
        client = WireClient(cluster, "client", True, security)

        async def go_on() -> tuple[Any, Any]:
            beat = await client.ask_coordinator("g", GROUP, HEARTBEAT, member)
            return beat, await _sync(client, member)

        beat, synced = world.run(go_on())
        client.cut()
    assert beat.error_code == 0
    assert (synced.error_code, synced.assignment) == (0, b"all of it")
