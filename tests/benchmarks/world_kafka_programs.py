"""Small programs with Kafka, with one bug each, and each of them mended.

Unmodified clients of aiokafka, and a cluster that answers them on the wire: only a `World` runs
them. Each raises `AssertionError` with the seeds that show its bug, mostly by the moment of one
fault, and with no seed where it is mended.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from purgatory import kafka
from purgatory.kafka import faults
from purgatory.virtual import World
from purgatory.virtual.cluster import WorldCluster
from tests.benchmarks.world_programs import Found, search_worlds

SESSION_MS = 6_000
"""When a member of a group that is silent is taken for dead."""


def _producer(cluster: WorldCluster, **settings: Any) -> AIOKafkaProducer:
    return AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, **{"acks": "all", **settings}
    )


def _consumer(cluster: WorldCluster, *topics: str, **settings: Any) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        *topics,
        bootstrap_servers=cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        **settings,
    )


async def _send(
    cluster: WorldCluster, topic: str, numbers: Iterable[int], every_s: float, **settings: Any
) -> None:
    async with _producer(cluster, **settings) as producer:
        for number in numbers:
            await producer.send_and_wait(topic, b"%d" % number)
            await asyncio.sleep(every_s)


async def _read(cluster: WorldCluster, topic: str, **settings: Any) -> list[int]:
    """Read all that is in partition 0, when no fault lasts any more."""
    await asyncio.sleep(20)
    partition = TopicPartition(topic, 0)
    async with _consumer(cluster, **settings) as consumer:
        consumer.assign([partition])
        numbers: list[int] = []
        while found := await consumer.getmany(partition, timeout_ms=1_000):
            numbers += [int(record.value) for record in found[partition]]
        return numbers


def _moment(world: World, first_s: float, last_s: float) -> str:
    """Draw a time for `World.at`."""
    return f"{round(1_000 * world.random.uniform(first_s, last_s))}ms"


async def commit_before_processing(world: World, cluster: WorldCluster, is_mended: bool) -> None:
    """A service that dies between its commit and the charge has forgotten the order."""
    charged: set[int] = set()

    async def bill() -> None:
        async with _consumer(cluster, "orders", group_id="billing") as orders:
            async for order in orders:
                if not is_mended:
                    await orders.commit()
                await asyncio.sleep(0.05)  # the bank
                charged.add(int(order.value))
                if is_mended:
                    await orders.commit()

    billing = world.host("billing", bill)
    world.at(_moment(world, 1, 8), billing.restart)
    await _send(cluster, "orders", range(20), every_s=0.3)
    await asyncio.sleep(20)
    assert charged == {*range(20)}


async def state_forgotten_at_rebalance(
    world: World, cluster: WorldCluster, is_mended: bool
) -> None:
    """The new owner of a partition counts from zero, not from the count of the last owner."""
    stored: dict[int, tuple[int, int]] = {}

    async def count() -> None:
        mine: dict[int, tuple[int, int]] = {}
        async with _consumer(cluster, "clicks", group_id="counters") as clicks:
            async for click in clicks:
                state = stored if is_mended else mine
                clicked, next_offset = state.get(click.partition, (0, 0))
                if click.offset >= next_offset:
                    mine[click.partition] = clicked + 1, click.offset + 1
                    stored[click.partition] = mine[click.partition]
                await clicks.commit()

    world.host("one", count)
    world.at(_moment(world, 0, 20), world.host, "other", count)
    await _send(cluster, "clicks", range(30), every_s=0.5)
    await asyncio.sleep(20)
    assert sum(clicked for clicked, _ in stored.values()) == 30


async def dual_write(world: World, cluster: WorldCluster, is_mended: bool) -> None:
    """A shop that dies after the database's commit and before the send never sends."""
    sold: list[int] = []
    outbox: list[int] = []

    async def sell() -> None:
        async with _producer(cluster) as producer:
            while len(sold) < 20 or outbox:
                if not (is_mended and outbox):
                    number = len(sold)
                    sold.append(number)
                    outbox.append(number)
                    await asyncio.sleep(0.05)  # the database commits
                await producer.send_and_wait("sales", b"%d" % outbox[-1])
                outbox.pop()
                await asyncio.sleep(0.25)
                if not is_mended and len(sold) == 20:
                    return

    shop = world.host("shop", sell)
    world.at(_moment(world, 0, 8), shop.restart)
    assert {*await _read(cluster, "sales")} == {*sold}


async def outbox_that_reorders(world: World, cluster: WorldCluster, is_mended: bool) -> None:
    """A message that could not be published goes to the end of the outbox, behind later ones."""
    outbox = [*range(20)]
    async with _producer(cluster, request_timeout_ms=2_000) as producer:
        length_s = world.random.uniform(0.5, 4)
        outage = faults.Kill(1, for_s=length_s)
        world.at(_moment(world, 0, 8), cluster.fault.begin, outage)
        while outbox:
            row = outbox.pop(0)
            try:
                await producer.send_and_wait("changes", b"%d" % row)
            except KafkaError:
                outbox.insert(0 if is_mended else len(outbox), row)
            await asyncio.sleep(0.2)
    published = await _read(cluster, "changes")
    assert [*dict.fromkeys(published)] == [*range(20)]


async def retry_without_idempotence(world: World, cluster: WorldCluster, is_mended: bool) -> None:
    """A payment whose response is lost is sent again, and lies in the topic twice."""
    lost = faults.LoseResponses(count=1, api="Produce")
    world.at(_moment(world, 0, 15), cluster.fault.begin, lost)
    await _send(cluster, "payments", range(20), every_s=0.2, enable_idempotence=is_mended)
    payments = await _read(cluster, "payments")
    assert len(payments) == len({*payments})


async def offsets_outside_transaction(world: World, cluster: WorldCluster, is_mended: bool) -> None:
    """A process that dies between a transaction and the commit of its offsets repeats invoices."""
    partition = TopicPartition("orders", 0)

    async def invoice() -> None:
        async with (
            _consumer(cluster, "orders", group_id="invoicing") as orders,
            _producer(cluster, transactional_id="invoicing") as producer,
        ):
            async for order in orders:
                async with producer.transaction():
                    await producer.send_and_wait("invoices", order.value)
                    if is_mended:
                        offsets = {partition: order.offset + 1}
                        await producer.send_offsets_to_transaction(offsets, "invoicing")
                if not is_mended:
                    await asyncio.sleep(0.1)  # the mail
                    await orders.commit()

    invoicing = world.host("invoicing", invoice)
    world.at(_moment(world, 1, 8), invoicing.restart)
    await _send(cluster, "orders", range(20), every_s=0.2)
    invoices = await _read(cluster, "invoices", isolation_level="read_committed")
    assert invoices == [*range(20)]


async def acknowledged_by_one(world: World, cluster: WorldCluster, is_mended: bool) -> None:
    """Records that only the leader had are lost with it."""
    state = cluster.controller.state_of(kafka.TopicPartition("orders", 0))
    assert state is not None
    world.at(_moment(world, 0, 6), cluster.kill, state.leader)
    for follower in {1, 2, 3} - {state.leader}:
        await cluster.fault.begin(faults.SlowFollower(follower, lag_ms=50))
    acks = "all" if is_mended else 1
    await _send(cluster, "orders", range(20), every_s=0.2, acks=acks)
    assert {*range(20)} <= {*await _read(cluster, "orders")}


async def leader_without_fencing(world: World, cluster: WorldCluster, is_mended: bool) -> None:
    """A former leader that was suspended writes while another one leads."""
    terms = itertools.count(1)

    async def lead() -> None:
        async with _consumer(cluster, "election", group_id="leaders") as seat:
            term, ledger = 0, None
            while True:
                if seat.assignment() and ledger is None:
                    term = next(terms)
                    fencing = {"transactional_id": "ledger"} if is_mended else {}
                    ledger = _producer(cluster, **fencing)
                    await ledger.start()
                if seat.assignment() and ledger is not None:
                    try:
                        await _write(ledger, term, is_mended)
                    except KafkaError:
                        await _stop(ledger)
                        ledger = None
                elif ledger is not None:
                    await _stop(ledger)
                    ledger = None
                await asyncio.sleep(0.5)

    hosts = [world.host(name, lead) for name in ("one", "other")]
    paused = world.random.choice(hosts)
    begin_s, length_s = world.random.uniform(2, 8), world.random.uniform(1, 15)
    world.at(f"{round(1_000 * begin_s)}ms", paused.pause)
    world.at(f"{round(1_000 * (begin_s + length_s))}ms", paused.resume)
    await asyncio.sleep(30)
    for host in hosts:
        host.crash()
    written = await _read(cluster, "ledger", isolation_level="read_committed")
    assert written
    assert written == sorted(written)


async def _write(ledger: AIOKafkaProducer, term: int, in_transaction: bool) -> None:
    if not in_transaction:
        await ledger.send_and_wait("ledger", b"%d" % term)
        return
    async with ledger.transaction():
        await ledger.send_and_wait("ledger", b"%d" % term)


async def _stop(producer: AIOKafkaProducer) -> None:
    with suppress(KafkaError):
        await producer.stop()


async def acts_on_aborted_record(world: World, cluster: WorldCluster, is_mended: bool) -> None:
    """A payment whose transaction is aborted is shipped by who reads what is not committed."""
    numbers = itertools.count()
    shipped: list[int] = []

    async def pay() -> None:
        async with _producer(cluster, transactional_id="shop") as producer:
            while (number := next(numbers)) < 20:
                async with producer.transaction():
                    await producer.send_and_wait("payments", b"%d" % number)
                    await asyncio.sleep(0.05)  # the stock
                await asyncio.sleep(0.25)

    async def ship() -> None:
        isolation = "read_committed" if is_mended else "read_uncommitted"
        async with _consumer(cluster, "payments", isolation_level=isolation) as payments:
            async for payment in payments:
                shipped.append(int(payment.value))

    shop = world.host("shop", pay)
    world.host("shipping", ship)
    world.at(_moment(world, 0, 8), shop.restart)
    paid = await _read(cluster, "payments", isolation_level="read_committed")
    assert shipped == paid


async def key_without_partition(world: World, cluster: WorldCluster, is_mended: bool) -> None:
    """The events of an account have no key, lie in two partitions, and are read in any order."""
    read: list[int] = []
    world.network.latency("1ms..20ms")

    async def follow() -> None:
        async with _consumer(cluster, "accounts") as accounts:
            async for event in accounts:
                read.append(int(event.value))

    world.host("reader", follow)
    await asyncio.sleep(1)
    async with _producer(cluster) as producer:
        for number in range(8):
            key = b"account" if is_mended else None
            await producer.send_and_wait("accounts", b"%d" % number, key)
    await asyncio.sleep(2)
    assert read == [*range(8)]


async def last_write_by_clock(world: World, cluster: WorldCluster, is_mended: bool) -> None:
    """The newest price is that with the latest time, and who wrote it has a clock that is wrong."""
    turn = 0

    async def set_prices(parity: int) -> None:
        nonlocal turn
        async with _producer(cluster) as producer:
            while turn < 10:
                if turn % 2 == parity:
                    await producer.send_and_wait("prices", b"%d" % turn)
                    turn += 1
                await asyncio.sleep(0.5)

    for parity, name in enumerate(("one", "other")):
        offset_ms = round(world.random.gauss(0, 500))
        host = world.host(name, partial(set_prices, parity))
        world.at("0s", host.set_clock, f"{offset_ms}ms")
    latest, price = (0, 0), 0
    async with _consumer(cluster, "prices") as prices:
        while price < 9 and turn < 10:
            found = await prices.getmany(timeout_ms=1_000)
            for record in itertools.chain(*found.values()):
                written = record.offset if is_mended else record.timestamp, record.offset
                if written >= latest:
                    latest, price = written, int(record.value)
    assert price == 9


class KafkaProgram(NamedTuple):
    """A program, and the cluster that it needs.

    Args:
        run: of the world, its cluster, and whether the program is mended.
        topics: with the number of their partitions.
    """

    run: Callable[[World, WorldCluster, bool], Coroutine[Any, Any, None]]
    topics: Mapping[str, int]
    brokers: int = 1

    @property
    def name(self) -> str:
        return self.run.__name__


KAFKA_PROGRAMS = [
    KafkaProgram(commit_before_processing, {"orders": 1}),
    KafkaProgram(state_forgotten_at_rebalance, {"clicks": 2}),
    KafkaProgram(dual_write, {"sales": 1}),
    KafkaProgram(outbox_that_reorders, {"changes": 1}),
    KafkaProgram(retry_without_idempotence, {"payments": 1}),
    KafkaProgram(offsets_outside_transaction, {"orders": 1, "invoices": 1}),
    KafkaProgram(acknowledged_by_one, {"orders": 1}, brokers=3),
    KafkaProgram(leader_without_fencing, {"election": 1, "ledger": 1}),
    KafkaProgram(acts_on_aborted_record, {"payments": 1}),
    KafkaProgram(key_without_partition, {"accounts": 2}, brokers=2),
    KafkaProgram(last_write_by_clock, {"prices": 1}),
]


def run_in_world(program: KafkaProgram, world: World, is_mended: bool = False) -> None:
    """Run a program in a world that was entered.

    Raises:
        AssertionError: its bug shows.
    """
    replicas = min(2, program.brokers)
    cluster = world.cluster(program.brokers, program.topics, min_insync_replicas=replicas)
    world.run(program.run(world, cluster, is_mended), "10min")


MAX_RUNS = 100


def search(program: KafkaProgram, start: int) -> Found:
    """Search with `World`, first in, first out: networks and faults are what seeds decide."""
    run = partial(run_in_world, program)
    return search_worlds(program.name, run, start, "fifo", MAX_RUNS)
