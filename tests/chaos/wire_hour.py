"""Real clients of a cluster in a virtual world with faults, and their observations.

Producers number their records, so that the expected reads are known without the audit: all
acknowledged records, once and in order if the producer is idempotent, and of transactions all
committed records and no aborted one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError

from purgatory.cluster import Fsync
from purgatory.kafka import GroupConfig
from purgatory.virtual import World, WorldError

PARTITIONS = 3
_PLAIN, _PAID = "orders", "payments"
_READ_S = 120


@dataclass
class Seen:
    """The observations of all clients."""

    sent: Counter[str] = field(default_factory=Counter)
    acknowledged: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    committed: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    read: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """By producer: the partition and the number of each record, as they lie in the logs."""
    consumed: Counter[str] = field(default_factory=Counter)


@dataclass
class WireHour:
    """The result of one world."""

    seed: int
    seconds: float
    faults: int
    records: int
    requests: int
    digest: str
    wrong: list[str]


def run_wire(
    seed: int, minutes: float, without: Sequence[int] = (), on_disk: bool = False
) -> WireHour:
    """Run one world: some minutes of faults, then none, until all records are read.

    Args:
        seed: of the world.
        minutes: how long faults are injected.
        without: the numbers of the faults to leave out.
        on_disk: whether the brokers have disks, which fill up and lose power. They fsync each
            batch before they acknowledge it.
    """
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL + 1)
    seen = Seen()
    # aiokafka leaves errors of producers that were fenced to nobody.
    with World(seed, without=without, on_unhandled="record") as world:
        cluster = world.cluster(
            topics={_PLAIN: PARTITIONS, _PAID: PARTITIONS},
            min_insync_replicas=2,
            groups=GroupConfig(initial_rebalance_delay_ms=0),
            disk=on_disk,
            fsync=Fsync.ALWAYS if on_disk else Fsync.NEVER,
        )
        world.network.latency("0.2ms..5ms")
        world.chaos(cluster, per_min=6, begin="5s", end=f"{minutes * 60:.0f}s", longest="20s")
        application = _all(world, cluster.bootstrap_servers, minutes * 60, seen)
        try:
            world.run(application, timeout=f"{minutes + 60}min")
            wrong = list(_wrong(seen))
            world.check_no_loss(cluster)  # and the audit, which doesn't know the numbers
        except WorldError as error:
            wrong = [f"the world did not end: {error}"]
        except AssertionError as error:
            wrong.append(f"the audit: {error}")
        return WireHour(
            seed,
            world.now_s,
            len(world.faults),
            sum(map(len, seen.read.values())),
            world.events,
            world.digest,
            wrong,
        )


async def _all(world: World, servers: str, chaos_s: float, seen: Seen) -> None:
    loop = asyncio.get_running_loop()
    until_s = loop.time() + chaos_s
    readers = [asyncio.create_task(_consume(servers, number, seen)) for number in range(2)]
    await asyncio.gather(
        *(_produce(servers, f"idempotent-{number}", until_s, seen) for number in range(2)),
        _produce(servers, "plain", until_s, seen),
        _transact(servers, until_s, seen),
    )
    await asyncio.sleep(60)  # the last faults end, and clients give up open requests
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    await _read_all(servers, seen)


async def _produce(servers: str, name: str, until_s: float, seen: Seen) -> None:
    loop = asyncio.get_running_loop()
    producer = AIOKafkaProducer(
        bootstrap_servers=servers,
        client_id=name,
        acks="all",
        enable_idempotence=name.startswith("idempotent"),
        request_timeout_ms=10_000,
    )
    await _started(producer)
    number = 0
    while loop.time() < until_s:
        sent = {}
        for _ in range(5):
            seen.sent[name] += 1
            value = f"{name} {number}".encode()
            sent[number] = await producer.send(_PLAIN, value, partition=number % PARTITIONS)
            number += 1
        for one, future in sent.items():
            try:
                await future
                seen.acknowledged[name].add(one)
            except KafkaError:
                pass  # nobody knows whether it is there
        await asyncio.sleep(0.5)
    await producer.stop()


async def _transact(servers: str, until_s: float, seen: Seen) -> None:
    loop, number, producer = asyncio.get_running_loop(), 0, None
    while loop.time() < until_s:
        if producer is None:
            producer = AIOKafkaProducer(
                bootstrap_servers=servers, transactional_id="payer", client_id="payer"
            )
            await _started(producer)
        numbers = range(number, number + 4)
        number += 4
        aborts = number % 12 == 0
        try:
            await producer.begin_transaction()
            for one in numbers:
                await producer.send(_PAID, b"payer %d" % one, partition=one % PARTITIONS)
            if aborts:
                await producer.abort_transaction()
                seen.aborted.update(numbers)
            else:
                await producer.commit_transaction()
                seen.committed.update(numbers)
        except KafkaError:
            await producer.stop()  # what became of it is not known; the next one ends it
            producer = None
        await asyncio.sleep(1)
    if producer is not None:
        await producer.stop()


async def _consume(servers: str, number: int, seen: Seen) -> None:
    consumer = AIOKafkaConsumer(
        _PLAIN,
        _PAID,
        bootstrap_servers=servers,
        group_id="readers",
        client_id=f"reader-{number}",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        session_timeout_ms=10_000,
    )
    await _started(consumer)
    try:
        while True:
            try:
                records = await consumer.getmany(timeout_ms=500)
            except KafkaError:
                await asyncio.sleep(0.1)  # some come at once, again and again
                continue
            for of_partition in records.values():
                seen.consumed.update(record.value.split()[0].decode() for record in of_partition)
    finally:
        await asyncio.wait_for(consumer.stop(), 60)


async def _started(client: AIOKafkaProducer | AIOKafkaConsumer) -> None:
    """Start a client, with retries until a broker responds."""
    while True:
        try:
            await client.start()
            return
        except KafkaError:
            await asyncio.sleep(1)


async def _read_all(servers: str, seen: Seen) -> None:
    """Read all committed records, from the beginning to the ends."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    from aiokafka import TopicPartition

    await _started(consumer)
    parts = [TopicPartition(topic, one) for topic in (_PLAIN, _PAID) for one in range(PARTITIONS)]
    consumer.assign(parts)
    ends = await consumer.end_offsets(parts)
    await consumer.seek_to_beginning(*parts)
    async with asyncio.timeout(_READ_S):
        while True:
            positions = [await consumer.position(part) for part in parts]
            if all(at >= ends[part] for at, part in zip(positions, parts, strict=True)):
                break
            for part, records in (await consumer.getmany(timeout_ms=1_000)).items():
                for record in records:
                    name, number = record.value.decode().split()
                    seen.read[name].append((part.partition, int(number)))
    await consumer.stop()


def _wrong(seen: Seen) -> Iterator[str]:
    """Yield each anomaly."""
    if not all(seen.acknowledged.values()) or not seen.committed:
        yield "hardly anything was acknowledged: the run shows nothing"
    for name, numbers in {**seen.acknowledged, "payer": seen.committed}.items():
        read = [number for _, number in seen.read[name]]
        if lost := sorted(numbers - set(read)):
            yield f"{name}: {len(lost)} were acknowledged and are lost, the first is {lost[0]}"
        if name == "plain":
            continue
        if copies := [number for number, count in Counter(read).items() if count > 1]:
            yield f"{name}: {len(copies)} are there more than once, the first is {min(copies)}"
        for partition in range(PARTITIONS):
            order = [number for where, number in seen.read[name] if where == partition]
            if order != sorted(order) and not copies:
                yield f"{name}: partition {partition} is not in the order of sending"
    if undone := seen.aborted & {number for _, number in seen.read["payer"]}:
        yield f"payer: {len(undone)} of aborted transactions were read"
    if not seen.consumed:
        yield "the group has read no record"
