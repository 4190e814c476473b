"""The effects of a service, as its test tells them to the cluster of a world, in its audit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from purgatory.trace.effects import Effect, read_effects
from purgatory.virtual import World
from purgatory.virtual.cluster import WorldCluster

ORDERS = 4


async def serve(cluster: WorldCluster, applied: Any, *, is_right: bool) -> None:
    """Process orders with a crash in the middle, and the rest in a second life."""
    servers = cluster.bootstrap_servers
    async with AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer:
        for number in range(ORDERS):
            await producer.send_and_wait("orders", b"order %d" % number)
    for dies_after in (2, None):
        consumer = AIOKafkaConsumer(
            "orders",
            bootstrap_servers=servers,
            group_id="billing",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        committed = await consumer.committed(*consumer.assignment()) or 0
        batch = [await consumer.getone() for _ in range(ORDERS - committed)]
        if not is_right and batch:
            await consumer.commit()
        for message in batch[:dies_after]:
            applied(message)
        if is_right:
            (partition,) = consumer.assignment()
            last = batch[:dies_after][-1].offset + 1
            await consumer.commit({partition: last})
        await consumer.stop()


@pytest.mark.parametrize("is_right", [True, False])
def test_applied_messages_show_lost_work(is_right: bool) -> None:
    with World(1) as world:
        cluster = world.cluster(brokers=1, topics=["orders"])
        world.run(serve(cluster, cluster.applied, is_right=is_right))
        found = cluster.audit(expect=["once", "no-loss"])
        assert found.count("offset_without_result") == (0 if is_right else 2)
        assert "not looked for" not in found.basis
        assert f"{ORDERS if is_right else 2} applied" in found.basis
        if is_right:
            found.assert_no_violations()


def test_audit_without_effects_names_what_would_show_lost_work() -> None:
    with World(1) as world:
        cluster = world.cluster(brokers=1, topics=["orders"])
        world.run(serve(cluster, lambda _message: None, is_right=False))
        found = cluster.audit(expect=["once", "no-loss"])
        found.assert_no_violations()
        assert "effect_duplicate, offset_without_result (no effects: " in found.basis
        assert "applied(message), effects= or the table effects would show it" in found.basis


def test_message_applied_twice_is_double_work() -> None:
    with World(1) as world:
        cluster = world.cluster(brokers=1, topics=["orders"])

        def twice(message: Any) -> None:
            cluster.applied(message)
            cluster.applied((message.topic, message.partition, message.offset))

        world.run(serve(cluster, twice, is_right=True))
        assert cluster.audit(expect=["once"]).count("effect_duplicate") == ORDERS
        with pytest.raises(ValueError, match="give topic, partition and offset, or a message"):
            cluster.applied("order 1")


def test_effects_in_a_file_are_those_of_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "done.jsonl"
    lines = [{"topic": "t", "partition": 0, "offset": 1}, {"topic": "t", "partition": 1}]
    file.write_text("\n".join(map(json.dumps, lines[:1])) + "\n\n")
    assert read_effects(file) == [Effect("t", 0, 1)]
    file.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(ValueError, match=r"done\.jsonl:2: effects\[0\] has no offset"):
        read_effects(file)
    file.write_text("17\n")
    with pytest.raises(ValueError, match=r"done\.jsonl:1: is no object"):
        read_effects(file)
