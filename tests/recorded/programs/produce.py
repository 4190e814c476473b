"""Records that are produced: right ones, wrong ones, those of idempotent producers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tests.recorded.batches import CONTROL, Pair, batch, legacy_message, now_ms, record
from tests.recorded.bodies import fetch_body, init_body, list_offsets_body, produce_body
from tests.recorded.codec import versions_of
from tests.recorded.recorder import NO_ID, Leader, Other, Place, Recorder

_PAIR: tuple[Pair, ...] = ((b"k", b"v"),)
_TWO: tuple[Pair, ...] = ((b"a", b"1"), (b"b", b"2"))
_BIG: tuple[Pair, ...] = ((b"a", b"x" * 2000),)
_YEAR_2020_MS = 1_577_836_800_000
_MINUTE_MS = 60_000


async def versions(recorder: Recorder) -> None:
    topic = await recorder.topic("pv", replicas=3)
    topic_id = await recorder.topic_id(topic)
    leader = Leader(topic)

    async def produce(
        version: int, name: str, *partitions: int, of: str = topic, to: Any = leader, **more: Any
    ) -> None:
        batches = [(partition, batch()) for partition in partitions]
        more = {"topic_id": topic_id, **more}
        body = produce_body(of, batches, version=version, **more)
        await recorder.ask("Produce", version, name, body, to)

    for version in versions_of("Produce"):
        await produce(version, "right", 0)
    for version in (3, 12, 13):
        for acks in (1, -1, 2, -2, 32_767):
            await produce(version, f"acks={acks}", 0, acks=acks)
        await produce(version, "unknown topic", 0, of=topic + "x", topic_id=UUID(int=5))
        await produce(version, "unknown partition", 7)
        await produce(version, "partition -1", -1)
        await produce(version, "not to the leader", 0, to=Other(leader))
        await produce(version, "same partition twice", 0, 0)
        await produce(version, "no partitions")
        nothing = {"Acks": -1, "TimeoutMs": 100, "TopicData": []}
        await recorder.ask("Produce", version, "no topics", nothing, leader)
        await produce(version, "transactional id, plain batch", 0, transactional_id="nope")
        if version < 13:
            await produce(version, "invalid name", 0, of="bad name!")
        else:
            await produce(version, "no id", 0, topic_id=NO_ID)


async def without_acks(recorder: Recorder) -> None:
    topic = await recorder.topic("a0", replicas=3)
    broker = await recorder.broker(Leader(topic))

    async def send(version: int, *batches: bytes) -> None:
        connection = await recorder.connection(broker, "silent")
        body = produce_body(topic, [(0, data) for data in batches], version=version, acks=0)
        connection.send("Produce", version, body, has_answer=False)

    async def end(name: str) -> None:
        body = list_offsets_body(topic, [(0, -1)])
        await recorder.ask("ListOffsets", 8, name, body, broker, "silent")

    for version in (3, 12):
        await send(version, batch())
        await end(f"after a right batch, produce v{version}")
        await send(version, batch(bad_crc=True))
        await asyncio.sleep(0.3)
        await end(f"after a wrong batch, produce v{version}")
        await end(f"once more, produce v{version}")
        await send(version)
        await end(f"after no batch, produce v{version}")


def _batches(now: int) -> Mapping[str, bytes]:
    """Batches that are wrong, odd or right."""
    behind = batch(behind=b"zz", length=len(batch()) - 10)
    counts: Mapping[str, bytes] = {
        "no records": batch(()),
        "no records, last delta 0": batch((), last_delta=0),
        "count 2 of 1": batch(count=2),
        "count 1 of 2": batch(_TWO, count=1),
        "count -1": batch(count=-1),
        "count 0": batch(count=0),
        "last delta 5": batch(_TWO, last_delta=5),
        "last delta -1": batch(last_delta=-1),
        "last delta 0 of 2": batch(_TWO, last_delta=0),
        "base 5": batch(base=5),
        "base -1": batch(base=-1),
        "offsets 0, 2": batch(_TWO, offsets=[0, 2]),
        "offsets 1, 0": batch(_TWO, offsets=[1, 0]),
        "offsets 0, 0": batch(_TWO, offsets=[0, 0]),
    }
    lengths = {
        "two batches": batch() + batch(),
        "bytes behind": batch() + b"xxx",
        "1 byte less": batch(cut=1),
        "70 bytes less": batch(cut=70),
        "10 bytes": b"x" * 10,
        "61 zeros": b"\0" * 61,
        "nothing": b"",
        **{f"length {length}": batch(length=length) for length in (-1, 0, 10, 1 << 30)},
        "bytes behind within the length": behind,
    }
    attributes = {
        "control": batch(attributes=CONTROL),
        "transactional control": batch(attributes=48, producer=(1, 0, -1)),
        "time of append": batch(attributes=8),
        "delete horizon": batch(attributes=64),
        "unused bit 7": batch(attributes=128),
        "unused bit 14": batch(attributes=0x4000),
        "codec 5": batch(codec=5),
        "codec 7": batch(codec=7),
    }
    codecs = ("gzip", "snappy", "lz4", "zstd")
    compressed = {
        **{codec: batch(_TWO, codec=codec) for codec in codecs},
        **{
            f"{codec}, garbage": batch(codec=number, records=b"garbage")
            for number, codec in enumerate(codecs, 1)
        },
        "gzip, count 3 of 2": batch(_TWO, codec="gzip", count=3, last_delta=2),
        "gzip, base 5": batch(_TWO, codec="gzip", base=5),
    }
    records = {
        "bytes behind the fields": batch(padding=b"zz"),
        "no key": batch(((None, b"v"),)),
        "no value": batch(((b"k", None),)),
        "neither": batch(((None, None),)),
        "headers": batch(headers=((b"h", b"v"), (b"h", None))),
        "header without a key": batch(headers=((None, b"v"),)),
        "header of an empty key": batch(headers=((b"", b"v"),)),
        "records of zeros": batch(records=b"\0" * 10),
        "short record": batch(records=b"\x02"),
        "empty records": batch(records=b""),
        "record of a wrong length": batch(records=b"\x40" + record(0, (b"k", b"v"))[1:]),
        "big": batch(_BIG),
    }
    producers = {
        f"producer {producer}": batch(producer=producer)
        for producer in ((5, -1, -1), (5, 0, -1), (-2, -1, -1), (-1, 3, -1), (-1, -1, 3))
    }
    times = {
        "time -1": batch(at_ms=-1, max_ms=-1),
        "time 0": batch(at_ms=0),
        "of 2020": batch(at_ms=_YEAR_2020_MS),
        "half an hour ahead": batch(at_ms=now + 30 * _MINUTE_MS),
        "two hours ahead": batch(at_ms=now + 120 * _MINUTE_MS),
        "greatest time 5": batch(max_ms=5),
        "greatest time -1": batch(max_ms=-1),
    }
    formats = {
        "right": batch(),
        "two": batch(_TWO),
        "wrong checksum": batch(bad_crc=True),
        "leader epoch 9": batch(leader_epoch=9),
        "message of format 0": legacy_message(0),
        "message of format 1": legacy_message(1),
        "format 3": batch(magic=3),
        "format -1": batch(magic=-1),
    }
    groups = (formats, counts, lengths, attributes, compressed, records, producers, times)
    return {name: data for group in groups for name, data in group.items()}


async def odd_batches(recorder: Recorder) -> None:
    batches = _batches(now_ms())
    for version in (12, 7, 3):
        topic = await recorder.topic(f"ob{version}", partitions=len(batches))
        for partition, (name, data) in enumerate(batches.items()):
            leader = Leader(topic, partition)
            body = produce_body(topic, [(partition, data)], version=version)
            await recorder.ask("Produce", version, name, body, leader)
            body = fetch_body(topic, [(partition, 0)], wait_ms=0)
            await recorder.ask("Fetch", 12, f"after {name}, produce v{version}", body, leader)


async def topics_limits(recorder: Recorder) -> None:
    batches = _batches(now_ms())
    limits = {"max.message.bytes": "1000"}
    limits |= dict.fromkeys(
        ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"), "60000"
    )
    compacted = ("right", "two", "no key", "no value", "no records", "gzip", "two batches")
    limited = ("right", "big", "of 2020", "half an hour ahead", "time -1", "time 0")
    appended = ("right", "two", "gzip", "of 2020", "time -1", "time of append")
    cases = {
        "compacted": ({"cleanup.policy": "compact"}, compacted),
        "limited": (limits, limited),
        "appended": ({"message.timestamp.type": "LogAppendTime"}, appended),
        "recompressed": ({"compression.type": "zstd"}, ("right", "gzip", "base 5")),
    }
    for kind, (configs, names) in cases.items():
        topic = await recorder.topic(kind[:4], replicas=3, configs=configs)
        leader = Leader(topic)
        sent = {name: batches[name] for name in names}
        if kind == "limited":
            times = [0, -60 * _MINUTE_MS]
            sent["an old second record"] = batch(_TWO, deltas_ms=times)
            sent["big, but compressed"] = batch(_BIG, codec="gzip")
        for name, data in sent.items():
            body = produce_body(topic, [(0, data)])
            await recorder.ask("Produce", 12, f"{name}, {kind} topic", body, leader)
        await recorder.ask("Fetch", 12, f"{kind} topic", fetch_body(topic, [(0, 0)]), leader)
        body = list_offsets_body(topic, [(0, -1), (0, -2)])
        await recorder.ask("ListOffsets", 8, f"{kind} topic", body, leader)


async def idempotent(recorder: Recorder) -> None:
    topic = await recorder.topic("pi", partitions=2, replicas=3)
    answer = await recorder.settled("InitProducerId", 5, "", init_body(None, 1_000), None)
    producer_id = answer["ProducerId"]

    async def produce(
        sequence: int, epoch: int = 0, records: int = 1, partition: int = 0, of: int = producer_id
    ) -> None:
        pairs = [(b"k", b"%d" % number) for number in range(records)]
        data = batch(pairs, producer=(of, epoch, sequence))
        name = f"sequence {sequence} epoch {epoch}, {records} to partition {partition}"
        body = produce_body(topic, [(partition, data)])
        await recorder.ask("Produce", 12, name, body, Leader(topic, partition))

    for sequence in (0, 0, 1, 3):
        await produce(sequence)
    for sequence, records in ((2, 3), (2, 3), (2, 2), (3, 2)):
        await produce(sequence, records=records)
    for sequence in (5, 6, 7, 8, 9, 5, 1, 0):
        await produce(sequence)
    for sequence, epoch in ((10, 1), (0, 1), (10, 0), (1, 1), (1, 1)):
        await produce(sequence, epoch)
    await produce(0, 1, partition=1)
    await produce(1, 0, partition=1)
    last = 2**31 - 1
    for sequence, epoch in ((5, 32_767), (0, 5), (-5, 5), (last, 6), (0, 6)):
        await produce(sequence, epoch)
    unknown = 7_000_000
    for sequence in (0, 0):
        await produce(sequence, of=unknown)
    await _describe_producers(recorder, topic)
    await recorder.ask("Fetch", 12, "all", fetch_body(topic, [(0, 0)]), Leader(topic))


async def _describe_producers(recorder: Recorder, topic: str) -> None:
    async def describe(name: str, to: Place, partitions: Mapping[str, int]) -> None:
        topics = [{"Name": of, "PartitionIndexes": [one]} for of, one in partitions.items()]
        await recorder.ask("DescribeProducers", 0, name, {"Topics": topics}, to)

    for partition in (0, 1):
        await describe(f"partition {partition}", Leader(topic, partition), {topic: partition})
    unknown = {topic: 9, topic + "x": 0, "": 0}
    await describe("unknown partitions", None, unknown)
    await describe("not to the leader", Other(Leader(topic)), {topic: 0})


async def unknown_producers(recorder: Recorder) -> None:
    """A broker that doesn't know a producer takes any sequence."""
    topic = await recorder.topic("up", replicas=3)
    leader = Leader(topic)
    answer = await recorder.settled("InitProducerId", 5, "", init_body(None, 1_000), None)

    async def produce(name: str, *sequences: int) -> None:
        data = b"".join(batch(_PAIR, producer=(answer["ProducerId"], 0, one)) for one in sequences)
        body = produce_body(topic, [(0, data)])
        await recorder.ask("Produce", 12, name, body, leader)

    await produce("two batches", 0, 1)
    for sequence in (2**31 - 1, 0, 1, 2):
        await produce(f"sequence {sequence}", sequence)
    deleted = {"PartitionIndex": 0, "Offset": 2}
    body = {"TimeoutMs": 5_000, "Topics": [{"Name": topic, "Partitions": [deleted]}]}
    await recorder.ask("DeleteRecords", 2, "", body, leader)
    await produce("sequence 3, after a deletion", 3)
    await produce("sequence 9, a gap", 9)
