"""The audit of ordinary services, each in a world, with a client on asyncio.

`docs/audit.md` lists them. The producers are idempotent and nothing goes wrong, so nothing is a
violation; and the audit may not report success for records that were never read.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from purgatory.cluster import ClusterConfig, TopicSpec
from purgatory.pipeline.jobs.audit.findings import Findings
from purgatory.virtual import World

DOCUMENT = (Path(__file__).parents[3] / "docs" / "audit.md").read_text(encoding="utf-8")
RECORDS = 6
TOPICS = ("orders", "invoices", "orders.retry", "orders.dlt", "mails")


class Clients:
    """Makes the clients of one cluster."""

    def __init__(self, servers: str) -> None:
        self._servers = servers

    @asynccontextmanager
    async def producer(self, **settings: Any) -> AsyncIterator[AIOKafkaProducer]:
        async with AIOKafkaProducer(
            bootstrap_servers=self._servers, enable_idempotence=True, **settings
        ) as producer:
            yield producer

    @asynccontextmanager
    async def consumer(self, *topics: str, **settings: Any) -> AsyncIterator[AIOKafkaConsumer]:
        start = {"auto_offset_reset": "earliest", **settings}
        async with AIOKafkaConsumer(*topics, bootstrap_servers=self._servers, **start) as consumer:
            yield consumer

    async def order(self, first: int = 0) -> None:
        async with self.producer() as producer:
            for number in range(first, first + RECORDS):
                await producer.send_and_wait("orders", b"order %d" % number, key=b"%d" % number)

    async def read(self, topic: str, count: int = RECORDS, **settings: Any) -> list[Any]:
        async with self.consumer(topic, **settings) as consumer:
            return [await consumer.getone() for _ in range(count)]


async def relay(clients: Clients) -> None:
    await clients.order()
    async with clients.producer() as producer:
        for record in await clients.read("orders"):
            await producer.send_and_wait("invoices", record.value, key=record.key)
    await clients.read("invoices")


async def retry_topic(clients: Clients) -> None:
    await clients.order()
    async with clients.producer() as producer:
        for record in (await clients.read("orders"))[::2]:
            await producer.send_and_wait("orders.retry", record.value, key=record.key)
    await clients.read("orders.retry", RECORDS // 2)


async def dead_letters(clients: Clients) -> None:
    await clients.order()
    async with clients.producer() as producer:
        for record in (await clients.read("orders"))[:2]:
            await producer.send_and_wait("orders.dlt", record.value, key=record.key)


async def fan_out(clients: Clients) -> None:
    async with clients.producer() as producer:
        for number in range(RECORDS):
            for topic in ("orders", "invoices", "mails"):
                await producer.send_and_wait(topic, b"order %d" % number)
    for topic in ("orders", "invoices", "mails"):
        await clients.read(topic)


async def compaction(clients: Clients) -> None:
    async with clients.producer() as producer:
        for number in range(3):
            for key in (b"a", b"b"):
                await producer.send_and_wait("states", b"state %d" % number, key=key)
        for key in (b"a", b"b"):
            await producer.send_and_wait("states", None, key=key)
    await clients.read("states", 8)


async def consume_transform_produce(clients: Clients) -> None:
    await clients.order()
    async with (
        clients.consumer(
            "orders", group_id="billing", enable_auto_commit=False, isolation_level="read_committed"
        ) as orders,
        clients.producer(transactional_id="billing") as producer,
    ):
        for _ in range(RECORDS):
            record = await orders.getone()
            async with producer.transaction():
                await producer.send("invoices", b"invoice of " + record.value, key=record.key)
                place = aiokafka.TopicPartition(record.topic, record.partition)
                await producer.send_offsets_to_transaction({place: record.offset + 1}, "billing")
    await clients.read("invoices", isolation_level="read_committed")


async def two_groups(clients: Clients) -> None:
    await clients.order()
    for group in ("billing", "shipping"):
        await clients.read("orders", group_id=group, client_id=group)


async def consumer_that_starts_late(clients: Clients) -> None:
    await clients.order()
    async with clients.consumer("orders", auto_offset_reset="latest") as consumer:
        await consumer.seek_to_end()
        await consumer.position(aiokafka.TopicPartition("orders", 0))
        await clients.order(first=RECORDS)
        for _ in range(RECORDS):
            await consumer.getone()


async def consumer_that_never_starts(clients: Clients) -> None:
    await clients.order()


async def empty_run(clients: Clients) -> None:
    pass


class Expected(NamedTuple):
    """A part of the assertion's message with an expectation; "" if it holds."""

    once: str | None
    no_loss: str | None


SERVICES: Mapping[Callable[[Clients], Coroutine[Any, Any, None]], Expected] = {
    relay: Expected(None, None),
    retry_topic: Expected(None, None),
    dead_letters: Expected(None, "nobody read its partition"),
    fan_out: Expected(None, None),
    compaction: Expected(None, None),
    consume_transform_produce: Expected(None, None),
    two_groups: Expected(None, None),
    consumer_that_starts_late: Expected(None, "every reader began behind it"),
    consumer_that_never_starts: Expected("no reads in the trace", "no reads in the trace"),
    empty_run: Expected("no sends in the trace", "no sends in the trace"),
}


def _message(findings: Findings) -> str | None:
    try:
        findings.assert_no_violations()
    except AssertionError as error:
        return str(error)
    return None


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.__name__)
def test_failure_report_of_a_service_matches_the_document(
    service: Callable[[Clients], Coroutine[Any, Any, None]],
) -> None:
    compacted = TopicSpec("states", settings={"cleanup.policy": "compact"})
    config = ClusterConfig(topics=[compacted], first_port=9092)
    with World(1) as world:
        cluster = world.cluster(brokers=1, topics=TOPICS, config=config)
        world.run(service(Clients(cluster.bootstrap_servers)))
        if not any(SERVICES[service]):
            assert _message(cluster.audit(expect=["once", "no-loss"])) is None
            return
        for expect, expected in zip(("once", "no-loss"), SERVICES[service], strict=True):
            findings = cluster.audit(expect=[expect])
            said = _message(findings)
            assert (said is None) == (expected is None), said
            assert expected is None or (said is not None and expected in said), said
            findings.assert_no_violations(allow_empty=True)


def test_document_lists_supported_and_refused_libraries() -> None:
    section = DOCUMENT.split("### Ordinary services", 1)[1].split("\n#", 1)[0]
    passing, failing = section.split("These don't", 1)
    shown = re.findall(r"^- ([a-z ]+?)(?: \([^)]*\))?: `([^`]+)`( with `no-loss`)?", failing, re.M)
    listed = {name: Expected(None if only else said, said) for name, said, only in shown}
    assert listed == {
        service.__name__.replace("_", " "): said
        for service, said in SERVICES.items()
        if said.no_loss is not None
    }
    for service in SERVICES:
        name = service.__name__.replace("_", " ")
        assert (name in " ".join(passing.split())) == (name not in listed)
