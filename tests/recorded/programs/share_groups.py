"""Share groups: heartbeats, records that are acquired and acknowledged, altered offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from tests.recorded.batches import batch
from tests.recorded.bodies import commit_body, join_body, offset_fetch_body, produce_body
from tests.recorded.codec import Message
from tests.recorded.recorder import (
    Answer,
    Coordinator,
    Leader,
    Recorder,
)

_ONE, _OTHER = "AAAAAAAAAAAAAAAAAAAAAg", "BBBBBBBBBBBBBBBBBBBBBA"
_GROUP = 32
ACCEPT, RELEASE, REJECT = 1, 2, 3

Acknowledged = tuple[int, int, Sequence[int]]
"""The first and the last offset, and the types."""


class _Share:
    """A member of a share group and what it asks for."""

    def __init__(self, recorder: Recorder, start: str, topic: str, topic_id: UUID) -> None:
        self._recorder = recorder
        self.name = recorder.name(start)
        self.topic = topic
        self.to = Coordinator(self.name)
        self._topic_id = topic_id

    async def begin_early(self) -> None:
        """Let the group read from the beginning."""
        config = {"Name": "share.auto.offset.reset", "ConfigOperation": 0, "Value": "earliest"}
        resource = {"ResourceType": _GROUP, "ResourceName": self.name, "Configs": [config]}
        await self._recorder.ask("IncrementalAlterConfigs", 1, "", {"Resources": [resource]})

    async def ask(self, api: str, version: int, name: str, body: Message) -> Answer:
        return await self._recorder.ask(api, version, name, body, self.to)

    async def heartbeat(
        self, name: str, epoch: int, topics: Sequence[str] | None = None, **more: Any
    ) -> Answer:
        body = {"GroupId": self.name, "MemberId": _ONE, "MemberEpoch": epoch}
        body |= {"SubscribedTopicNames": topics, **more}
        return await self.ask("ShareGroupHeartbeat", 1, name, body)

    async def join(self) -> int:
        """Join and wait until the partitions are assigned; return the epoch."""
        answer = await self.heartbeat("joins", 0, [self.topic])
        epoch = answer["MemberEpoch"] or 1
        await asyncio.sleep(2.5)
        for number in range(3):
            answer = await self.heartbeat(f"{number}", epoch)
            epoch = answer["MemberEpoch"] or epoch
            await asyncio.sleep(0.5)
        return int(epoch)

    async def initialized(self) -> None:
        """Wait until the leader has the group's state, with which a first fetch begins."""
        await asyncio.sleep(1)

    def _acknowledged(self, acknowledged: Iterable[Acknowledged]) -> Sequence[Message]:
        return [
            {"FirstOffset": first, "LastOffset": last, "AcknowledgeTypes": list(types)}
            for first, last, types in acknowledged
        ]

    async def fetch(
        self,
        name: str,
        epoch: int,
        partitions: Sequence[int] = (),
        *,
        acknowledged: Iterable[Acknowledged] = (),
        records: int = 100,
        version: int = 2,
        **more: Any,
    ) -> Answer:
        asked = [
            {"PartitionIndex": one, "AcknowledgementBatches": self._acknowledged(acknowledged)}
            for one in partitions
        ]
        forgotten = more.pop("forgotten", None)
        gone = [{"TopicId": self._topic_id, "Partitions": forgotten}] if forgotten else []
        body = {
            "GroupId": self.name,
            "MemberId": _ONE,
            "ShareSessionEpoch": epoch,
            "MaxWaitMs": 500,
            "MinBytes": 1,
            "MaxBytes": 1 << 20,
            "MaxRecords": records,
            "BatchSize": max(records, 1),
            "Topics": [{"TopicId": self._topic_id, "Partitions": asked}] if asked else [],
            "ForgottenTopicsData": gone,
            **more,
        }
        return await self._of_leader("ShareFetch", version, name, body)

    async def acknowledge(
        self, name: str, epoch: int, partition: int, *acknowledged: Acknowledged, **more: Any
    ) -> Answer:
        batches = self._acknowledged(acknowledged)
        partitions = [{"PartitionIndex": partition, "AcknowledgementBatches": batches}]
        body = {
            "GroupId": self.name,
            "MemberId": _ONE,
            "ShareSessionEpoch": epoch,
            "Topics": [{"TopicId": self._topic_id, "Partitions": partitions}],
            **more,
        }
        return await self._of_leader("ShareAcknowledge", 2, name, body)

    async def _of_leader(self, api: str, version: int, name: str, body: Message) -> Answer:
        broker = await self._recorder.broker(Leader(self.topic))
        return await self._recorder.ask(api, version, name, body, broker, "sharer")


async def heartbeats(recorder: Recorder) -> None:
    topic = await recorder.topic("sh", partitions=2)
    group = _Share(recorder, "sh", topic, await recorder.topic_id(topic))
    await group.heartbeat("no topics", 0)
    await group.heartbeat("no member id", 0, [topic], MemberId="")
    for epoch in (3, -1):
        await group.heartbeat(f"unknown member of epoch {epoch}", epoch)
    await group.heartbeat("no group", 0, [topic], GroupId="")
    await group.heartbeat("empty list of topics", 0, [])
    await group.heartbeat("epoch -2", -2, [topic])
    epoch = await group.join()
    await group.heartbeat("epoch before", max(epoch - 1, 1))
    await group.heartbeat("epoch ahead", epoch + 3)
    for of in (group.name, "", recorder.name("zz")):
        described = {"GroupIds": [of]}
        await recorder.ask("ShareGroupDescribe", 1, f"{of!r}", described, Coordinator(of))
    joining = {"GroupId": group.name, "MemberId": _ONE, "MemberEpoch": 0}
    joining |= {"RebalanceTimeoutMs": 5_000, "SubscribedTopicNames": [topic]}
    for api, version, body in (
        ("DescribeGroups", 6, {"Groups": [group.name]}),
        ("ConsumerGroupHeartbeat", 1, joining | {"TopicPartitions": []}),
        ("JoinGroup", 9, join_body(group.name)),
        ("OffsetCommit", 9, commit_body(group.name, topic, [(0, 3, "")])),
        ("OffsetFetch", 9, offset_fetch_body(group.name, topic, [0])),
        ("DeleteGroups", 2, {"GroupsNames": [group.name]}),
    ):
        await group.ask(api, version, "of a share group", body)
    await group.heartbeat("leaves", -1)
    await group.ask("ShareGroupDescribe", 1, "empty", {"GroupIds": [group.name]})
    for when in ("empty", "deleted"):
        await group.ask("DeleteGroups", 2, when, {"GroupsNames": [group.name]})
    await group.ask("ShareGroupDescribe", 1, "deleted", {"GroupIds": [group.name]})


async def records(recorder: Recorder) -> None:
    topic = await recorder.topic("sr", partitions=2)
    group = _Share(recorder, "sr", topic, await recorder.topic_id(topic))
    await group.begin_early()
    await group.join()
    for number in range(6):
        data = batch(((b"k", b"v%d" % number),))
        await recorder.ask("Produce", 12, "", produce_body(topic, [(0, data)]), Leader(topic))
    await group.fetch("no session", 5, [0])
    await group.fetch("opens a session", 0, [0], records=2)
    await group.initialized()
    await group.fetch("two records", 1, records=2)
    await group.fetch("same epoch again", 1)
    await group.fetch("epoch too far", 9)
    await group.acknowledge("accepts 0", 2, 0, (0, 0, [ACCEPT]))
    await group.acknowledge("accepts 0 again", 3, 0, (0, 0, [ACCEPT]))
    await group.acknowledge("rejects 1", 4, 0, (1, 1, [REJECT]))
    await group.fetch("two more", 5, records=2)
    await group.acknowledge("releases 2", 6, 0, (2, 2, [RELEASE]))
    await group.acknowledge("unknown type", 7, 0, (3, 3, [9]))
    await group.acknowledge("type of a gap", 7, 0, (3, 3, [0]))
    for epoch, (name, first, last, types) in enumerate(
        (
            ("not acquired", 5, 5, [ACCEPT]),
            ("beyond the end", 50, 60, [ACCEPT]),
            ("backwards", 5, 4, [ACCEPT]),
            ("three types for two", 3, 4, [ACCEPT] * 3),
            ("no types", 3, 4, []),
        ),
        8,
    ):
        await group.acknowledge(name, epoch, 0, (first, last, types))
    await group.fetch("all", 13)
    one = (2, 3, [ACCEPT, RELEASE])
    await group.fetch("acknowledges", 14, [0], acknowledged=[one])
    await group.fetch("again", 15)
    await group.acknowledge("unknown partition", 16, 9, (0, 0, [ACCEPT]))
    await group.acknowledge("another's session", 3, 0, (0, 0, [ACCEPT]), MemberId=_OTHER)
    await group.acknowledge("epoch 0", 0, 0, (0, 0, [ACCEPT]))
    await group.fetch("older version", 17, version=1)
    await group.fetch("forgets the partition", 18, forgotten=[0])
    await group.fetch("no records", 19, records=0)
    await group.fetch("unknown mode", 20, ShareAcquireMode=7)
    await group.fetch("closes the session", -1)
    await group.fetch("closed", 21)
    await group.fetch("short member id", 0, [0], MemberId="short")
    await group.fetch("no group", 0, [0], GroupId="")


async def offsets(recorder: Recorder) -> None:
    topic = await recorder.topic("so", partitions=2)
    group = _Share(recorder, "so", topic, await recorder.topic_id(topic))
    unknown = recorder.name("zz")

    async def describe(name: str, *groups: Message) -> None:
        for version in (0, 1):
            body = {"Groups": list(groups)}
            to = Coordinator(groups[0]["GroupId"])
            await recorder.ask("DescribeShareGroupOffsets", version, name, body, to)

    async def alter(
        name: str, partition: int, offset: int, of: str = topic, in_group: str = group.name
    ) -> None:
        partitions = [{"PartitionIndex": partition, "StartOffset": offset}]
        body = {"GroupId": in_group, "Topics": [{"TopicName": of, "Partitions": partitions}]}
        with_group = Coordinator(in_group)
        await recorder.ask("AlterShareGroupOffsets", 0, name, body, with_group)

    def asked(*partitions: int) -> Message:
        topics = [{"TopicName": topic, "Partitions": list(partitions)}]
        return {"GroupId": group.name, "Topics": topics}

    await group.begin_early()
    await group.join()
    for number in range(3):
        data = batch(((b"k", b"v%d" % number),))
        await recorder.ask("Produce", 12, "", produce_body(topic, [(0, data)]), Leader(topic))
    await group.fetch("opens a session", 0, [0])
    await group.initialized()
    await group.fetch("records", 1)
    await group.acknowledge("accepts 0", 2, 0, (0, 0, [ACCEPT]))
    await group.fetch("closes the session", -1)
    await describe("active", asked(0, 1, 9))
    await describe("all", {"GroupId": group.name, "Topics": None})
    for of in (unknown, ""):
        await describe(f"all of {of!r}", {"GroupId": of, "Topics": None})
    await alter("active group", 0, 1)
    await group.heartbeat("leaves", -1)
    await asyncio.sleep(0.5)
    for name, partition, offset, of, in_group in (
        ("empty group", 0, 1, topic, group.name),
        ("unknown partition", 9, 1, topic, group.name),
        ("offset -1", 0, -1, topic, group.name),
        ("beyond the end", 0, 99, topic, group.name),
        ("unknown topic", 0, 1, topic + "x", group.name),
        ("unknown group", 0, 1, topic, unknown),
    ):
        await alter(name, partition, offset, of, in_group)
    await asyncio.sleep(0.5)
    await describe("altered", asked(0, 1))
    for name, topics in {"known": [topic, topic + "x"], "again": [topic], "none": []}.items():
        body = {"GroupId": group.name, "Topics": [{"TopicName": one} for one in topics]}
        await group.ask("DeleteShareGroupOffsets", 0, name, body)
    of = recorder.name("yy")
    body = {"GroupId": of, "Topics": [{"TopicName": topic}]}
    await recorder.ask("DeleteShareGroupOffsets", 0, "unknown group", body, Coordinator(of))


async def left_alone(recorder: Recorder) -> None:
    """Records whose acquirer closes its session without a word are delivered again."""
    topic = await recorder.topic("sa")
    group = _Share(recorder, "sa", topic, await recorder.topic_id(topic))
    await group.begin_early()
    await group.join()
    data = batch([(b"k", b"%d" % number) for number in range(4)])
    await recorder.ask("Produce", 12, "", produce_body(topic, [(0, data)]), Leader(topic))
    for number in range(6):
        with_records = f"round {number}"
        await group.fetch(f"{with_records}, opens", 0, [0])
        await group.initialized()
        await group.fetch(f"{with_records}, next", 1)
        await group.fetch(f"{with_records}, closes", -1)
