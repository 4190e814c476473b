"""Requests of clients that disconnect complete without them, and nothing fails."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from purgatory.cluster import Cluster, ClusterConfig, TopicSpec
from tests.wire.cluster.conftest import eventually, leader_of
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import record_batch, request_frame

_PATIENCE = timedelta(minutes=10)


def _produce() -> dict[str, Any]:
    data = [{"index": 0, "records": record_batch([b"one"])}]
    topics = [{"name": "orders", "partition_data": data}]
    return {"acks": -1, "timeout": _PATIENCE, "topic_data": topics}


_DELETION = {
    "topics": [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 1}]}],
    "timeout": _PATIENCE,
}


@pytest.mark.parametrize(
    ("name", "frame"),
    [
        ("Produce", request_frame(0, 9, 9, _produce())),
        ("DeleteRecords", request_frame(21, 2, 9, _DELETION)),
    ],
)
def test_produce_completes_after_its_client_disconnects(name: str, frame: bytes) -> None:
    async def main() -> None:
        config = ClusterConfig(brokers=2, topics=[TopicSpec("orders")])
        async with Cluster(config) as cluster:
            leader = leader_of(cluster, "orders")
            broker = cluster.brokers[leader]
            [waiting] = [one for one in broker.purgatories if one.name == name]
            async with await RawClient.to(cluster, leader) as client:
                await client.ask(0, 9, _produce())
                stalled = cluster.fault.stall_follower(3 - leader)
                client.send(frame)
                await eventually(lambda: waiting.num_delayed == 1)
            await eventually(lambda: not broker.connection_count)
            completed = waiting.counters.outcomes["completed"]
            stalled.end()
            await eventually(lambda: waiting.num_delayed == 0)
            assert waiting.counters.outcomes["completed"] == completed + 1
            assert not sum(waiting.counters.callback_errors.values())

    asyncio.run(main())
