"""One fetch is answered with no more than is made in a few milliseconds; the next one reads on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import uvloop

from purgatory.cluster import Cluster, ClusterConfig, TopicSpec
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import record_batch

_SMALL = 2_500


def _fetch(partitions: dict[int, int], partition_bytes: int) -> dict[str, Any]:
    asked = [
        {"partition": one, "fetch_offset": offset, "partition_max_bytes": partition_bytes}
        for one, offset in partitions.items()
    ]
    wait = {"max_wait": timedelta(0), "min_bytes": 1, "max_bytes": 2**31 - 1}
    return {**wait, "topics": [{"topic": "t", "partitions": asked}]}


def _produce(partition: int, records: bytes) -> dict[str, Any]:
    data = [{"name": "t", "partition_data": [{"index": partition, "records": records}]}]
    return {"acks": 1, "timeout": timedelta(seconds=30), "topic_data": data}


def _run(scheduler: dict[int, int], batch: bytes, partition_bytes: int, most_bytes: int) -> None:
    """Write so many batches into each partition; read them all, each once."""

    async def main() -> None:
        config = ClusterConfig(brokers=1, topics=[TopicSpec("t", len(scheduler))])
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            for partition, batches in scheduler.items():
                for _ in range(batches):
                    await client.ask(0, 9, _produce(partition, batch))
            offsets = dict.fromkeys(scheduler, 0)
            asked = 0
            while offsets != scheduler:
                answer = await client.ask(1, 4, _fetch(offsets, partition_bytes))
                sizes = {}
                for one in answer.responses[0].partitions:
                    assert one.error_code == 0
                    sizes[one.partition_index] = len(one.records or b"")
                assert sum(sizes.values()) <= most_bytes
                for partition, size in sizes.items():
                    offsets[partition] += size // len(batch)
                asked += 1
                assert asked < 50

    uvloop.run(main())


def test_partitions_share_1000_batches_of_a_fetch_response() -> None:
    batch = record_batch([b"x"])
    _run({0: _SMALL, 1: 400}, batch, 1 << 20, 1_000 * len(batch))


def test_fetch_response_has_at_most_4_mib_whatever_the_request() -> None:
    batch = record_batch([bytes(900_000)])
    _run({0: 4, 1: 4}, batch, 50 << 20, 4 << 20)


@pytest.mark.parametrize("max_bytes", [500_000, 50 << 20])
def test_fetch_waits_for_no_more_bytes_than_a_response_may_have(max_bytes: int) -> None:
    async def main() -> None:
        config = ClusterConfig(brokers=1, topics=[TopicSpec("t")])
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            for _ in range(5):
                await client.ask(0, 9, _produce(0, record_batch([bytes(900_000)])))
            waits = {"max_wait": timedelta(minutes=10), "min_bytes": 100 << 20}
            asked = {**_fetch({0: 0}, 1 << 30), **waits, "max_bytes": max_bytes}
            assert (await client.ask(1, 4, asked)).responses[0].partitions[0].records

    uvloop.run(main())
