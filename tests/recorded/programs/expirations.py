"""Offsets that expire, and groups that go with them, at brokers that keep offsets for a minute."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.recorded.bodies import (
    commit_body,
    end_body,
    init_body,
    join_body,
    leave_body,
    offset_fetch_body,
    subscription,
    sync_body,
    txn_commit_body,
)
from tests.recorded.programs.groups import join
from tests.recorded.recorder import TRANSACTION, Coordinator, Recorder

RETENTION_MINUTES, CHECK_INTERVAL_MS = 1, 1_000
"""The settings of the brokers: `offsets.retention.minutes`, and how often they look."""

_CHECKED_S = 3.0
_SHORT_RETENTION_MS = 20_000
_SESSION_MS = 600_000
_MEMBER = "AAAAAAAAAAAAAAAAAAAAAw"
_ALL = None


class _Expirations:
    """Requests about groups, whose names say what is special about them."""

    def __init__(self, recorder: Recorder, topic: str, other: str) -> None:
        self.recorder = recorder
        self.topic = topic
        self.other = other

    async def ask(self, api: str, version: int, group: str, when: str, body: Any) -> Any:
        place = Coordinator(self.recorder.name(group))
        return await self.recorder.ask(api, version, f"{group}, {when}", body, place)

    async def commit(self, group: str, offset: int, version: int = 9, **more: Any) -> None:
        """Commit two offsets, each of another topic; a retention, which old requests have, is that
        of both."""
        retention = {"RetentionTimeMs": more.pop("retention")} if "retention" in more else {}
        for number, topic in enumerate((self.topic, self.other)):
            offsets = [(0, offset + number, "")]
            name = self.recorder.name(group)
            body = commit_body(name, topic, offsets, version=version, **more)
            await self.ask("OffsetCommit", version, group, f"{number}", body | retention)

    async def look(self, when: str, *groups: str) -> None:
        for group in groups:
            name = self.recorder.name(group)
            body = offset_fetch_body(name, self.topic, _ALL)
            await self.ask("OffsetFetch", 9, group, when, body)
            await self.ask("DescribeGroups", 6, group, when, {"Groups": [name]})

    async def join(self, group: str, **more: Any) -> tuple[str, int]:
        """Join and sync; return the member id and the generation."""
        name = self.recorder.name(group)
        kind = more.get("protocol_type", "consumer")
        answer = await join(self.recorder, name, group, session_ms=_SESSION_MS, **more)
        member, generation = answer["MemberId"], answer["GenerationId"] or 1
        body = sync_body(name, member, generation, {member: b"A"}, protocol_type=kind)
        await self.ask("SyncGroup", 5, group, "joins", body)
        return member, generation

    async def leave(self, group: str, member: str) -> None:
        body = leave_body(self.recorder.name(group), (member, None))
        await self.ask("LeaveGroup", 5, group, "leaves", body)

    async def heartbeat(self, api: str, group: str, epoch: int, when: str) -> int:
        """Send a heartbeat of a consumer or a share consumer; return the member's epoch."""
        body = {"GroupId": self.recorder.name(group), "MemberId": _MEMBER, "MemberEpoch": epoch}
        if epoch == 0:
            body |= {"SubscribedTopicNames": [self.topic]}
            if api == "ConsumerGroupHeartbeat":
                body |= {"RebalanceTimeoutMs": 60_000, "TopicPartitions": []}
        answer = await self.ask(api, 1, group, when, body)
        return answer["MemberEpoch"] or 0


async def groups(recorder: Recorder) -> None:
    """Groups of all kinds, before and after their offsets expire."""
    topics = [await recorder.topic(start) for start in ("ex", "exo")]
    them = _Expirations(recorder, *topics)
    protocols = (("range", subscription(them.topic)),)
    joined = {
        group: await them.join(group, protocols=protocols, protocol_type=kind)
        for group, kind in (("consumers", "consumer"), ("connectors", "connect"))
    }
    left_later = await them.join("left later")
    leaver, _ = await them.join("without offsets")
    await them.leave("without offsets", leaver)
    asked = await _ask_for_id(them, "only asked")
    gone = "assigned and left"
    epochs = {
        group: await them.heartbeat("ConsumerGroupHeartbeat", group, 0, "joins")
        for group in ("assigned", gone, "assigned, no offsets")
    }
    await them.heartbeat("ConsumerGroupHeartbeat", "assigned, no offsets", -1, "leaves")
    await them.heartbeat("ShareGroupHeartbeat", "shared", 0, "joins")
    await them.heartbeat("ShareGroupHeartbeat", "shared", -1, "leaves")
    producer = await _commit_in_transaction(them, "pending")
    for group, (member, generation) in {**joined, "left later": left_later}.items():
        await them.commit(group, 5, member=member, generation=generation)
    for group in ("assigned", gone):
        await them.commit(group, 9, member=_MEMBER, generation=epochs[group])
    await them.heartbeat("ConsumerGroupHeartbeat", gone, -1, "leaves")
    await them.commit("simple", 1)
    await them.commit("old client", 3, version=4, retention=_SHORT_RETENTION_MS)
    await asyncio.sleep(_CHECKED_S)
    await them.look("at once", "simple", "old client", "left later")
    await them.look("at once", "without offsets", "only asked")
    body = join_body(recorder.name("only asked"), asked)
    await them.ask("JoinGroup", 9, "only asked", "at last", body)
    await _describe(them, "at once")
    await asyncio.sleep(_SHORT_RETENTION_MS / 1_000)
    await them.look("after its own retention", "old client")
    await them.heartbeat("ConsumerGroupHeartbeat", "assigned", epochs["assigned"], "goes on")
    await them.leave("left later", left_later[0])
    await asyncio.sleep(20)
    await them.heartbeat("ConsumerGroupHeartbeat", "assigned", epochs["assigned"], "goes on again")
    everyone = ("simple", "consumers", "connectors", "left later", "pending")
    await them.look("before a minute", *everyone)
    await asyncio.sleep(20)
    await them.look("after a minute", *everyone, "assigned", gone)
    await _describe(them, "after a minute")
    name = recorder.name("transaction")
    await recorder.ask("EndTxn", 4, "", end_body(name, producer), Coordinator(name, TRANSACTION))
    await recorder.ended(name)
    await asyncio.sleep(_CHECKED_S)
    await them.look("after its transaction", "pending")
    await asyncio.sleep(20)
    await them.look("a minute after it left", "left later")
    await them.commit("simple", 1)
    await them.look("anew", "simple")


async def deletions(recorder: Recorder) -> None:
    """Groups whose offsets are deleted are there until the coordinator looks."""
    topics = [await recorder.topic(start) for start in ("ed", "edo")]
    them = _Expirations(recorder, *topics)
    await them.commit("deleted", 1)
    asked = [{"Name": topic, "Partitions": [{"PartitionIndex": 0}]} for topic in topics]
    body = {"GroupId": recorder.name("deleted"), "Topics": asked}
    await them.ask("OffsetDelete", 0, "deleted", "both", body)
    await asyncio.sleep(_CHECKED_S)
    await them.look("checked", "deleted")


async def _ask_for_id(them: _Expirations, group: str) -> str:
    body = join_body(them.recorder.name(group), session_ms=_SESSION_MS)
    answer = await them.ask("JoinGroup", 9, group, "asks", body)
    return str(answer["MemberId"])


async def _commit_in_transaction(them: _Expirations, group: str) -> tuple[int, int]:
    """Commit an offset that is pending, of the first of two topics; return the producer."""
    recorder, name = them.recorder, them.recorder.name("transaction")
    await them.commit(group, 13)
    place = Coordinator(name, TRANSACTION)
    answer = await recorder.settled("InitProducerId", 4, "", init_body(name, _SESSION_MS), place)
    producer = answer["ProducerId"], answer["ProducerEpoch"]
    body = {"TransactionalId": name, "ProducerId": producer[0], "ProducerEpoch": producer[1]}
    body["GroupId"] = recorder.name(group)
    await recorder.ask("AddOffsetsToTxn", 3, "", body, place)
    body = txn_commit_body(name, producer, body["GroupId"], them.topic, 20, version=3)
    await them.ask("TxnOffsetCommit", 3, group, "pending", body)
    return producer


async def _describe(them: _Expirations, when: str) -> None:
    recorder = them.recorder
    for group in ("assigned", "assigned and left", "assigned, no offsets"):
        body = {"GroupIds": [recorder.name(group)]}
        await them.ask("ConsumerGroupDescribe", 1, group, when, body)
    await them.ask("ShareGroupDescribe", 1, "shared", when, {"GroupIds": [recorder.name("shared")]})
