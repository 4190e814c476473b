"""A FastStream application through the death of a broker."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest
from faststream import AckPolicy
from faststream.kafka import KafkaBroker

from purgatory.virtual import World

_ORDERS = 40


async def _invoiced(servers: str) -> Counter[str]:
    """Turn orders into invoices, and post the invoices, by handlers of both kinds."""
    posted: Counter[str] = Counter()
    broker = KafkaBroker(servers.split(","), logger=None, acks="all")

    @broker.subscriber(
        "orders", group_id="billing", auto_offset_reset="earliest", ack_policy=AckPolicy.ACK
    )
    @broker.publisher("invoices")
    async def bill(order: int) -> str:
        await asyncio.sleep(0.2)
        return f"invoice {order}"

    @broker.subscriber(
        "invoices", group_id="post", auto_offset_reset="earliest", ack_policy=AckPolicy.ACK
    )
    def post(invoice: str) -> None:
        time.sleep(0.1)
        posted[invoice] += 1

    async with broker:
        await broker.start()
        for number in range(_ORDERS):
            await broker.publish(number, topic="orders")
            await asyncio.sleep(0.5)
        async with asyncio.timeout(600):
            while len(posted) < _ORDERS:
                await asyncio.sleep(1)
    return posted


@pytest.mark.slow
@pytest.mark.virtual(seeds=5)
def test_each_order_is_invoiced_despite_a_dead_broker(world: World) -> None:
    cluster = world.cluster(brokers=3, topics={"orders": 3, "invoices": 2}, min_insync_replicas=2)
    dies_ms = world.random.randint(2_000, 15_000)
    world.at(f"{dies_ms}ms", cluster.kill, 1)
    world.at(f"{dies_ms + 10_000}ms", cluster.revive, 1)
    posted = world.run(_invoiced(cluster.bootstrap_servers))
    assert set(posted) == {f"invoice {number}" for number in range(_ORDERS)}
    cluster.audit(expect=["no-loss"]).assert_no_violations()
