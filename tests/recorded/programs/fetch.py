"""Records that are fetched, with and without sessions, and where logs begin, end and diverge."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from tests.recorded.batches import batch
from tests.recorded.bodies import (
    IDS_IN_FETCH,
    fetch_body,
    init_body,
    list_offsets_body,
    produce_body,
    transactional_batch,
)
from tests.recorded.codec import Message, versions_of
from tests.recorded.recorder import (
    NO_ID,
    TRANSACTION,
    Coordinator,
    Leader,
    Other,
    Place,
    Recorder,
)

_TWO = ((b"a", b"1"), (b"b", b"2"))
_UNKNOWN_ID = UUID(int=9)
_COMPACTED_S = 40.0
"""Longer than twice the time between two runs of a cleaner."""
_YEAR_2014_MS = 1_400_000_000_000
"""Before the times of day that are renamed."""


async def fetch(recorder: Recorder) -> None:
    topic = await recorder.topic("fe", partitions=2, replicas=3)
    topic_id = await recorder.topic_id(topic)
    leader = Leader(topic)
    for number in range(4):
        data = batch(((b"a", b"1%d" % number), (b"b", b"2")))
        await recorder.ask("Produce", 12, "", produce_body(topic, [(0, data)]), leader)
    await asyncio.sleep(0.5)
    first = ((0, 0),)
    cases: Mapping[str, tuple[Sequence[Any], Mapping[str, Any]]] = {
        "all": (first, {}),
        "none": ((), {}),
        **{f"offset {offset}": (((0, offset),), {}) for offset in (3, 8, 9, 999, -1, -5)},
        **{f"of {size} bytes each": (first, {"partition_bytes": size}) for size in (1, 0, -1, 160)},
        **{f"of {size} bytes": (first, {"max_bytes": size}) for size in (1, 0)},
        "more than there is": (first, {"min_bytes": 100_000, "wait_ms": 30}),
        "unknown partition": (((7, 0),), {}),
        "unknown partition beside one": (((0, 0), (7, 0)), {}),
        "same partition twice": (((0, 0), (0, 2)), {}),
        **{f"isolation {level}": (first, {"isolation": level}) for level in (1, 9)},
        **{
            f"leader epoch {epoch}": (((0, 0, {"CurrentLeaderEpoch": epoch}),), {})
            for epoch in (0, 5)
        },
        **{
            f"session {session}": (first, {"session": session})
            for session in ((12_345, 3), (12_345, 0), (99, -1), (0, -2))
        },
        "rack": (first, {"rack": "nowhere"}),
    }
    newer: Mapping[str, Sequence[Any]] = {
        **{f"fetched epoch {epoch}": [(0, 2, {"LastFetchedEpoch": epoch})] for epoch in (-1, 0, 1)},
        "diverging": [(0, 100, {"LastFetchedEpoch": 0})],
        "log start 3": [(0, 0, {"LogStartOffset": 3})],
    }
    for version in versions_of("Fetch"):
        asked = cases if version < 12 else {**cases, **{name: (p, {}) for name, p in newer.items()}}
        for name, (partitions, more) in asked.items():
            body = fetch_body(topic, partitions, version=version, topic_id=topic_id, **more)
            await recorder.ask("Fetch", version, name, body, leader)
        await _fetch_elsewhere(recorder, topic, topic_id, version)


async def _fetch_elsewhere(recorder: Recorder, topic: str, topic_id: UUID, version: int) -> None:
    """Ask a follower, for other topics, and as a replica."""
    leader = Leader(topic)

    async def ask(name: str, to: Place, of: str, of_id: UUID, **more: Any) -> None:
        body = fetch_body(of, [(0, 0)], version=version, topic_id=of_id)
        await recorder.ask("Fetch", version, name, body | more, to)

    await ask("from a follower", Other(leader), topic, topic_id)
    await ask("unknown topic", leader, topic + "x", _UNKNOWN_ID)
    if version >= IDS_IN_FETCH:
        await ask("no id", leader, topic, NO_ID)
    replica: Message = {"ReplicaId": 2}
    if version >= 15:
        replica = {"ReplicaState": {"ReplicaId": 2, "ReplicaEpoch": -1}}
    await ask("as replica 2", leader, topic, topic_id, **replica)


async def followers(recorder: Recorder) -> None:
    """Consumers of followers, whose epochs and offsets are checked."""
    topic = await recorder.topic("ff", replicas=3)
    leader = Leader(topic)
    await recorder.ask("Produce", 12, "", produce_body(topic, [(0, batch())]), leader)
    await asyncio.sleep(0.8)
    for version in (10, 11, 12):
        for epoch in (-1, 0, 1):
            partition = (0, 0, {"CurrentLeaderEpoch": epoch})
            body = fetch_body(topic, [partition], version=version)
            await recorder.ask("Fetch", version, f"leader epoch {epoch}", body, Other(leader))
        body = fetch_body(topic, [(0, 99)], version=version)
        await recorder.ask("Fetch", version, "beyond the end", body, Other(leader))


async def sessions(recorder: Recorder) -> None:
    topic = await recorder.topic("fs", assignment=[[1], [1], [1]])
    topic_id = await recorder.topic_id(topic)

    async def produce(partition: int) -> None:
        await recorder.ask("Produce", 12, "", produce_body(topic, [(partition, batch())]), 1)

    async def ask(
        name: str, session: tuple[int | None, int], *partitions: tuple[int, int], **more: Any
    ) -> int:
        known = session[0] or 0, session[1]
        more = {"version": version, "topic_id": topic_id, "session": known, **more}
        body = fetch_body(topic, partitions, **more)
        answer = await recorder.ask("Fetch", more["version"], name, body, 1)
        return int(answer["SessionId"] or 0)

    for version in (12, 18):
        await produce(0)
        one = await ask("opened", (0, 0), (0, 0), (1, 0))
        await ask("nothing new", (one, 1))
        await produce(1)
        await ask("partition 1 has more", (one, 2))
        await ask("partition 0 moved", (one, 3), (0, 1))
        await ask("same epoch again", (one, 3))
        await ask("epoch too far", (one, 9))
        await ask("partition 2 added", (one, 4), (2, 0))
        await produce(2)
        await ask("partition 1 forgotten", (one, 5), forgotten=[1])
        await ask("partition 2 out of range", (one, 6), (2, 99))
        await ask("partition 2 still out of range", (one, 7))
        await ask("unknown partition added", (one, 8), (2, 0), (7, 0))
        await ask("after the unknown partition", (one, 9))
        await ask("one byte", (one, 10), max_bytes=1)
        await ask("another isolation", (one, 11), isolation=1)
        await ask("closed", (one, -1))
        await ask("after it was closed", (one, 12))
        await ask("unknown session, epoch 0", (777, 0))
        await ask("unknown session, epoch 1", (777, 1))
        await ask("no session, epoch 1", (0, 1), (0, 0))
        one = await ask("opened without partitions", (0, 0))
        await ask("reopened", (one, 0), (0, 0))
        if version >= IDS_IN_FETCH:
            one = await ask("opened with an unknown id", (0, 0), (0, 0), topic_id=_UNKNOWN_ID)
            await ask("unknown id, again", (one, 1))
            one = await ask("opened by name", (0, 0), (0, 0), version=12)
            await ask("continued by id", (one, 1))


async def list_offsets(recorder: Recorder) -> None:
    kept = {"retention.ms": "-1"}
    topic = await recorder.topic("lo", partitions=2, replicas=3, configs=kept)
    empty = await recorder.topic("loe", replicas=3)
    leader, began_ms = Leader(topic), _YEAR_2014_MS
    for number, after_ms in enumerate((0, 1_000, 500, 3_000, 2_000)):
        pairs = ((b"a", b"%d" % number), (b"b", b"2"))
        data = batch(pairs, at_ms=began_ms + after_ms, deltas_ms=[0, 50])
        await recorder.ask("Produce", 12, "", produce_body(topic, [(0, data)]), leader)
    await asyncio.sleep(0.5)
    special = (-1, -2, -3, -4, -5, -6, -7, -99, 0, 1)
    times = [began_ms + after for after in (0, 25, 50, 51, 700, 2_500, 3_000, 3_050, 9_999)]
    for version in versions_of("ListOffsets"):
        for name, of in (("records", topic), ("no records", empty)):
            for timestamp in (*special, *times):
                body = list_offsets_body(of, [(0, timestamp)])
                shown = timestamp if timestamp < began_ms else f"+{timestamp - began_ms}"
                await recorder.ask("ListOffsets", version, f"{name}, {shown}", body, Leader(of))
    for version in (5, 8, 10):
        await _list_oddly(recorder, topic, version)
    deleted = {"Name": topic, "Partitions": [{"PartitionIndex": 0, "Offset": 5}]}
    body = {"TimeoutMs": 5_000, "Topics": [deleted]}
    await recorder.ask("DeleteRecords", 2, "", body, leader)
    for timestamp in (-1, -2, -3, -4, -5, -6, 0, began_ms, began_ms + 500):
        body = list_offsets_body(topic, [(0, timestamp)])
        await recorder.ask("ListOffsets", 10, f"after a deletion, {timestamp}", body, leader)


async def _list_oddly(recorder: Recorder, topic: str, version: int) -> None:
    leader = Leader(topic)
    cases: dict[str, tuple[Message, Place]] = {}
    for epoch in (-1, 0, 1, 5, -2):
        partition = (0, -1, {"CurrentLeaderEpoch": epoch})
        cases[f"leader epoch {epoch}"] = list_offsets_body(topic, [partition]), leader
    for level in (0, 1, 5):
        cases[f"isolation {level}"] = list_offsets_body(topic, [(0, -1)], level), leader
    one = list_offsets_body(topic, [(0, -1)])
    cases |= {
        "unknown partitions": (list_offsets_body(topic, [(7, -1), (-1, -1)]), leader),
        "unknown topic": (list_offsets_body(topic + "x", [(0, -1)]), leader),
        "invalid name": (list_offsets_body("bad!", [(0, -1)]), leader),
        "from a follower": (one, Other(leader)),
        "same partition twice": (list_offsets_body(topic, [(0, -1), (0, -1)]), leader),
        "two of a partition": (list_offsets_body(topic, [(0, -1), (0, -2)]), leader),
        "none": ({"ReplicaId": -1, "Topics": []}, leader),
        "debugging consumer, from a follower": (one | {"ReplicaId": -2}, Other(leader)),
        "replica 2": (one | {"ReplicaId": 2}, leader),
    }
    for name, (body, to) in cases.items():
        await recorder.ask("ListOffsets", version, name, body, to)


async def greatest_timestamp(recorder: Recorder) -> None:
    """The greatest timestamp among open transactions and deleted records."""
    topic = await recorder.topic("gt", configs={"retention.ms": "-1"})
    leader, began_ms, name = Leader(topic), _YEAR_2014_MS, recorder.name("gtx")
    found = await recorder.settled(
        "InitProducerId", 5, "", init_body(name), Coordinator(name, TRANSACTION)
    )
    producer = found["ProducerId"], found["ProducerEpoch"]

    async def ask(when: str) -> None:
        for level in (0, 1):
            body = list_offsets_body(topic, [(0, -3)], level)
            await recorder.ask("ListOffsets", 8, f"{when}, isolation {level}", body, leader)

    async def produce(what: str, data: bytes, transactional_id: str | None = None) -> None:
        body = produce_body(topic, [(0, data)], transactional_id=transactional_id)
        await recorder.ask("Produce", 12, what, body, leader)
        await ask(what)

    await ask("empty")
    await produce("plain", batch(_TWO, at_ms=began_ms))
    open_one = batch([(b"k", b"0")], producer=(*producer, 0), attributes=16, at_ms=began_ms + 5_000)
    await produce("open transaction", open_one, name)
    body = {"TransactionalId": name, "ProducerId": producer[0], "ProducerEpoch": producer[1]}
    coordinator = Coordinator(name, TRANSACTION)
    await recorder.ask("EndTxn", 5, "", body | {"Committed": True}, coordinator)
    await recorder.ended(name)
    await ask("committed")
    deleted = {"Name": topic, "Partitions": [{"PartitionIndex": 0, "Offset": -1}]}
    body = {"TimeoutMs": 5_000, "Topics": [deleted]}
    await recorder.ask("DeleteRecords", 2, "", body, leader)
    await ask("all deleted")
    await produce("earlier record", batch(at_ms=began_ms + 1_000))


async def delete_records(recorder: Recorder) -> None:
    topic = await recorder.topic("dr", replicas=3)
    compacted = await recorder.topic("drc", replicas=3, configs={"cleanup.policy": "compact"})
    leader = Leader(topic)
    for _ in range(4):
        await recorder.ask("Produce", 12, "", produce_body(topic, [(0, batch(_TWO))]), leader)

    async def delete(
        version: int, name: str, partition: int, offset: int, of: str = topic, to: Place = leader
    ) -> None:
        partitions = [{"PartitionIndex": partition, "Offset": offset}]
        body = {"TimeoutMs": 5_000, "Topics": [{"Name": of, "Partitions": partitions}]}
        await recorder.ask("DeleteRecords", version, name, body, to)

    async def read(version: int, offset: int) -> None:
        name = f"offset {offset}, after deletions v{version}"
        await recorder.ask("Fetch", 12, name, fetch_body(topic, [(0, offset)]), leader)

    for version in versions_of("DeleteRecords"):
        for offset in (0, 3, 2, 3, 99, -2, -3):
            asked = offset + version if 0 < offset < 9 else offset
            await delete(version, f"to {asked}", 0, asked)
        await delete(version, "unknown partition", 7, 1)
        await delete(version, "unknown topic", 0, 1, topic + "x")
        await delete(version, "not to the leader", 0, 1, to=Other(leader))
        await delete(version, "compacted topic", 0, 0, compacted, Leader(compacted))
        await delete(version, "invalid name", 0, 1, "bad!")
        await delete(version, "empty name", 0, 1, "")
        await recorder.ask("DeleteRecords", version, "none", {"TimeoutMs": 1, "Topics": []}, leader)
        await read(version, 3)
        await read(version, 5)
    await delete(2, "to the high watermark", 0, -1)
    await read(2, 8)
    for timestamp in (-2, -3):
        body = list_offsets_body(topic, [(0, timestamp)])
        await recorder.ask("ListOffsets", 10, f"{timestamp}", body, leader)
    await delete(2, "internal topic", 0, 0, "__consumer_offsets")


async def compacted(recorder: Recorder) -> None:
    """Records of a topic whose older values are removed."""
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0"}
    settings |= {"segment.ms": "1000", "delete.retention.ms": "0"}
    topic = await recorder.topic("fc", configs=settings)
    leader = Leader(topic)
    for pairs in (
        ((b"a", b"1"), (b"b", b"1")),
        ((b"a", b"2"),),
        ((b"a", None), (b"c", b"1")),
        ((b"b", b"2"), (b"b", b"3")),
    ):
        body = produce_body(topic, [(0, batch(pairs))])
        await recorder.ask("Produce", 12, "", body, leader)
    await asyncio.sleep(2)
    await recorder.ask("Produce", 12, "", produce_body(topic, [(0, batch(_TWO))]), leader)
    await asyncio.sleep(_COMPACTED_S)
    for offset in (0, 1, 3, 6, 9):
        body = fetch_body(topic, [(0, offset)])
        await recorder.ask("Fetch", 12, f"offset {offset}", body, leader)
    for timestamp in (-1, -2):
        body = list_offsets_body(topic, [(0, timestamp)])
        await recorder.ask("ListOffsets", 8, f"{timestamp}", body, leader)


async def leader_epochs(recorder: Recorder) -> None:
    topic = await recorder.topic("le", replicas=3)
    leader = Leader(topic)

    async def ask(
        version: int, name: str, current: int, epoch: int, partition: int = 0, **more: Any
    ) -> None:
        asked = {"Partition": partition, "CurrentLeaderEpoch": current, "LeaderEpoch": epoch}
        topics = [{"Topic": more.get("of", topic), "Partitions": [asked]}]
        body = {"ReplicaId": -2, "Topics": topics}
        await recorder.ask("OffsetForLeaderEpoch", version, name, body, more.get("to", leader))

    for records in (0, 1):
        for version in versions_of("OffsetForLeaderEpoch"):
            for current in (-1, 0, 1, 5):
                for epoch in (-1, 0, 1, 5):
                    name = f"{records} records, current {current} epoch {epoch}"
                    await ask(version, name, current, epoch)
        await ask(4, f"unknown partition, {records} records", -1, 0, 9)
        await ask(4, f"unknown topic, {records} records", -1, 0, of=topic + "x")
        await ask(4, f"not to the leader, {records} records", -1, 0, to=Other(leader))
        await recorder.ask("OffsetForLeaderEpoch", 4, "none", {"Topics": []}, leader)
        await recorder.ask("Produce", 12, "", produce_body(topic, [(0, batch())]), leader)


async def open_transaction(recorder: Recorder) -> None:
    """Fetches of committed records stop where a transaction is open."""
    topic, name = await recorder.topic("ot"), recorder.name("otx")
    leader, coordinator = Leader(topic), Coordinator(name, TRANSACTION)
    found = await recorder.settled("InitProducerId", 5, "", init_body(name), coordinator)
    producer = found["ProducerId"], found["ProducerEpoch"]
    plain = produce_body(topic, [(0, batch())])
    open_one = [(0, transactional_batch(producer, 0))]
    await recorder.ask("Produce", 12, "before", plain, leader)
    body = produce_body(topic, open_one, transactional_id=name)
    await recorder.ask("Produce", 12, "in a transaction", body, leader)
    await recorder.ask("Produce", 12, "after", plain, leader)
    for version in (4, 5, 11, 12):
        for offset in (0, 1, 2):
            for level in (0, 1):
                body = fetch_body(topic, [(0, offset)], version=version, isolation=level)
                shown = f"offset {offset}, isolation {level}"
                await recorder.ask("Fetch", version, shown, body, leader)
