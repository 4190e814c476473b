"""Moving replicas at a rate, as kafka-reassign-partitions --throttle asks for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from purgatory.cluster import Cluster, ClusterConfig
from purgatory.kafka import TopicPartition
from tests.cluster.conftest import eventually
from tests.cluster.raw_client import RawClient
from tests.cluster.wire_values import record_batch

_TOPIC, _BROKER = 2, 4
_SIZE = 20_000
_BATCHES = 20


async def _set(client: RawClient, kind: int, name: str, **settings: str | None) -> int:
    """Set some settings, or delete those that are None; return the error code."""
    configs = [
        {
            "name": key.replace("_", "."),
            "value": value,
            "config_operation": 1 if value is None else 0,
        }
        for key, value in settings.items()
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = await client.ask(44, 1, {"resources": [resource]})
    return int(answer.responses[0].error_code)


async def _produce(client: RawClient, topic: str) -> None:
    data = [{"index": 0, "records": record_batch([bytes(_SIZE)])}]
    asked = {"acks": -1, "topic_data": [{"name": topic, "partition_data": data}]}
    answer = await client.ask(0, 9, asked)
    assert answer.responses[0].partition_responses[0].error_code == 0


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_replica_that_is_moved_is_copied_at_the_rate(side: str) -> None:
    """At 2,000 bytes a second it would take minutes: it is not in sync before the rate is gone."""
    of_topic: dict[str, Any] = {f"{side}_replication_throttled_replicas": "0:1,0:2"}
    of_broker: dict[str, Any] = {f"{side}_replication_throttled_rate": "2000"}

    async def main() -> None:
        config = ClusterConfig(brokers=2)
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            for name in ("moved", "other"):
                cluster.controller.create_assigned_topic(name, [(1,)], {})
                for _ in range(_BATCHES):
                    await _produce(client, name)
            assert await _set(client, _TOPIC, "moved", **of_topic) == 0
            for broker in ("1", "2"):
                assert await _set(client, _BROKER, broker, **of_broker) == 0
            states = {}
            for name in ("moved", "other"):
                key = TopicPartition(name, 0)
                cluster.controller.reassign(key, (1, 2))
                states[name] = cluster.controller.state_of(key)
            moved, other = states["moved"], states["other"]
            assert moved is not None and other is not None
            await eventually(lambda: 2 in other.isr)
            replica = cluster.brokers[2].manager.partition(TopicPartition("moved", 0))
            assert replica is not None
            assert replica.log_end_offset < _BATCHES and moved.isr == (1,) and moved.adding == (2,)
            await _produce(client, "moved")  # who isn't in sync is not waited for
            for broker in ("1", "2"):
                assert await _set(client, _BROKER, broker, **dict.fromkeys(of_broker)) == 0
            await eventually(lambda: moved.isr == (1, 2) and moved.adding == ())
            assert replica.log_end_offset == _BATCHES + 1

    asyncio.run(main())


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_rate_of_nothing_holds_nobody_who_is_in_sync(side: str) -> None:
    """Another one leads: who led before copies with a fetcher that knows nothing of it."""
    of_topic: dict[str, Any] = {f"{side}_replication_throttled_replicas": "*"}
    of_broker: dict[str, Any] = {f"{side}_replication_throttled_rate": "0"}

    async def main() -> None:
        key = TopicPartition("t", 0)
        async with Cluster(ClusterConfig(brokers=2)) as cluster:
            cluster.controller.create_assigned_topic("t", [(1, 2)], {})
            state = cluster.controller.state_of(key)
            assert state is not None
            async with await RawClient.to(cluster, 1) as client:
                await _produce(client, "t")
                assert await _set(client, _TOPIC, "t", **of_topic) == 0
                for broker in ("1", "2"):
                    assert await _set(client, _BROKER, broker, **of_broker) == 0
            cluster.controller.reassign(key, (2, 1))
            cluster.controller.elect_preferred()
            assert (state.leader, set(state.isr)) == (2, {1, 2})
            async with await RawClient.to(cluster, 2) as client:
                await _produce(client, "t")  # with acks=all
            assert set(state.isr) == {1, 2}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("value", "code"), [("*", 0), ("0:1,13:2", 0), ("0", 40), ("0:1;1:2", 40), ("0:-1", 40)]
)
def test_a_list_of_replicas_is_checked(value: str, code: int) -> None:
    async def main() -> None:
        config = ClusterConfig(brokers=1)
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            cluster.controller.create_topic("t", 1, 1)
            for side in ("leader", "follower"):
                replicas: dict[str, Any] = {f"{side}_replication_throttled_replicas": value}
                assert await _set(client, _TOPIC, "t", **replicas) == code
            assert await _set(client, _BROKER, "1", leader_replication_throttled_rate="-1") == 40
            assert await _set(client, _TOPIC, "t", leader_replication_throttled_rate="1") == 40

    asyncio.run(main())
