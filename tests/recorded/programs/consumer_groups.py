"""Groups whose coordinator assigns partitions (KIP-848)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from tests.recorded.bodies import (
    assignment,
    commit_body,
    heartbeat_body,
    join_body,
    leave_body,
    offset_fetch_body,
    subscription,
    sync_body,
)
from tests.recorded.codec import Message
from tests.recorded.programs.groups import join
from tests.recorded.recorder import Answer, Coordinator, Recorder

_ONE, _OTHER = "AAAAAAAAAAAAAAAAAAAAAw", "BBBBBBBBBBBBBBBBBBBBBA"
_REBALANCE_MS = 5_000
_ASSIGNED_S = 1.2
"""The longest time until a coordinator knows of a topic or has assigned anew."""


def _heartbeat_body(member: str, epoch: int, **more: Any) -> Message:
    """Return a heartbeat; what it doesn't name is as it was."""
    return {
        "MemberId": member,
        "MemberEpoch": epoch,
        "RebalanceTimeoutMs": -1,
        "SubscribedTopicNames": None,
        "TopicPartitions": None,
        **more,
    }


def _joining(topic: str, **more: Any) -> Message:
    """Return what the first heartbeat of a member says."""
    return {
        "RebalanceTimeoutMs": _REBALANCE_MS,
        "SubscribedTopicNames": [topic],
        "TopicPartitions": [],
        **more,
    }


def _owned(topic_id: UUID, partitions: Sequence[int]) -> Sequence[Message]:
    return [{"TopicId": topic_id, "Partitions": list(partitions)}]


class _Group:
    """A consumer group and the requests to its coordinator."""

    def __init__(self, recorder: Recorder, start: str) -> None:
        self._recorder = recorder
        self.name = recorder.name(start)
        self.to = Coordinator(self.name)

    async def ask(self, api: str, version: int, name: str, body: Message) -> Answer:
        return await self._recorder.ask(api, version, name, body, self.to)

    async def heartbeat(
        self, name: str, member: str, epoch: int, version: int = 1, **more: Any
    ) -> Answer:
        body = {"GroupId": self.name, **_heartbeat_body(member, epoch, **more)}
        return await self.ask("ConsumerGroupHeartbeat", version, name, body)

    async def describe(self, name: str) -> None:
        body = {"GroupIds": [self.name]}
        await self.ask("ConsumerGroupDescribe", 1, name, body)


async def joining(recorder: Recorder) -> None:
    """The fields that a first heartbeat must have."""
    topic = await recorder.topic("cj", partitions=4)
    topic_id, group = await recorder.topic_id(topic), _Group(recorder, "cj")
    cases: Mapping[str, Mapping[str, Any]] = {
        "no topics": _joining(topic, SubscribedTopicNames=None),
        "empty list of topics": _joining(topic, SubscribedTopicNames=[]),
        "no rebalance timeout": _joining(topic, RebalanceTimeoutMs=-1),
        "no partitions": _joining(topic, TopicPartitions=None),
        "owned partitions": _joining(topic, TopicPartitions=_owned(topic_id, [0])),
        "unknown assignor": _joining(topic, ServerAssignor="zz"),
        "no group": _joining(topic, GroupId=""),
        "empty instance": _joining(topic, InstanceId=""),
        "empty rack": _joining(topic, RackId=""),
        "invalid regex": _joining(topic, SubscribedTopicNames=None, SubscribedTopicRegex="(["),
        "empty regex": _joining(topic, SubscribedTopicNames=None, SubscribedTopicRegex=""),
    }
    for name, more in cases.items():
        await group.heartbeat(name, _ONE, 0, **more)
        await group.heartbeat(f"left after {name}", _ONE, -1)
    await group.heartbeat("no member id", "", 0, **_joining(topic))
    await group.heartbeat("no member id", "", 0, version=0, **_joining(topic))
    for epoch in (3, -1, -2, -3):
        await group.heartbeat(f"unknown member of epoch {epoch}", _ONE, epoch)
    await group.describe("after all")
    for of in ("", recorder.name("no-group")):
        body = {"GroupIds": [of]}
        await recorder.ask("ConsumerGroupDescribe", 1, f"{of!r}", body, Coordinator(of))


async def one_member(recorder: Recorder) -> None:
    topic = await recorder.topic("c1", partitions=4)
    topic_id, group = await recorder.topic_id(topic), _Group(recorder, "c1")
    everything = _owned(topic_id, [0, 1, 2, 3])
    answer = await group.heartbeat("joins", _ONE, 0, **_joining(topic))
    await asyncio.sleep(_ASSIGNED_S)
    epoch = answer["MemberEpoch"] or 1
    for number in range(4):
        owned = everything if number else None
        answer = await group.heartbeat(f"{number}", _ONE, epoch, TopicPartitions=owned)
        epoch = answer["MemberEpoch"] or epoch
        await asyncio.sleep(0.4)
    await group.describe("assigned")
    await group.heartbeat("epoch far ahead", _ONE, 2**31 - 16)
    await group.heartbeat("epoch before", _ONE, epoch - 1, TopicPartitions=everything)
    await group.heartbeat("epoch ahead", _ONE, epoch + 5)
    await _offsets(group, topic, epoch)
    await _classic_requests(group, topic)
    await group.heartbeat("joins again", _ONE, 0, **_joining(topic))
    await group.heartbeat("leaves for a while, no instance", _ONE, -2)
    await group.heartbeat("leaves", _ONE, -1)
    await group.heartbeat("leaves again", _ONE, -1)
    await group.describe("empty")
    await group.ask("DescribeGroups", 6, "empty", {"Groups": [group.name]})
    await group.ask("JoinGroup", 9, "classic, empty", join_body(group.name))
    await group.ask("DeleteGroups", 2, "empty", {"GroupsNames": [group.name]})
    await group.describe("deleted")


async def _offsets(group: _Group, topic: str, epoch: int) -> None:
    for name, of, at in (
        *(("member", _ONE, epoch), ("older epoch", _ONE, epoch - 1)),
        *(("next epoch", _ONE, epoch + 1), ("no member", "", -1), ("unknown", "zz", epoch)),
    ):
        body = commit_body(group.name, topic, [(0, 3, "")], member=of, generation=at)
        await group.ask("OffsetCommit", 9, name, body)
    body = commit_body(group.name, topic, [(0, 3, "")], member=_ONE, generation=epoch, version=8)
    await group.ask("OffsetCommit", 8, "member", body)
    for name, one, at in (
        *(("member", _ONE, epoch), ("next epoch", _ONE, epoch + 1)),
        *(("older epoch", _ONE, epoch - 1), ("unknown", "zz", epoch)),
    ):
        body = offset_fetch_body(group.name, topic, [0], member=one, epoch=at)
        await group.ask("OffsetFetch", 9, name, body)
    await group.ask("OffsetFetch", 9, "no member", offset_fetch_body(group.name, topic, [0]))


async def _classic_requests(group: _Group, topic: str) -> None:
    """The requests of other kinds of groups."""
    name = group.name
    deletion = {"Name": topic, "Partitions": [{"PartitionIndex": 0}]}
    share = {"GroupId": name, "MemberId": _ONE, "MemberEpoch": 0, "SubscribedTopicNames": [topic]}
    for api, version, body in (
        ("DescribeGroups", 6, {"Groups": [name]}),
        ("JoinGroup", 9, join_body(name)),
        ("DeleteGroups", 2, {"GroupsNames": [name]}),
        ("OffsetDelete", 0, {"GroupId": name, "Topics": [deletion]}),
        ("ShareGroupHeartbeat", 1, share),
        ("Heartbeat", 4, heartbeat_body(name, _ONE, 1)),
        ("SyncGroup", 5, sync_body(name, _ONE, 1)),
        ("LeaveGroup", 5, leave_body(name, ("zz", None))),
    ):
        await group.ask(api, version, "of a consumer group", body)


async def two_members(recorder: Recorder) -> None:
    topic = await recorder.topic("c2", partitions=4)
    topic_id, group = await recorder.topic_id(topic), _Group(recorder, "c2")
    members: dict[str, tuple[int, list[int]]] = {}

    async def heartbeat(name: str, member: str, **more: Any) -> None:
        epoch, owned = members.get(member, (0, []))
        if not more:
            more = {"TopicPartitions": _owned(topic_id, owned) if owned else []}
        answer = await group.heartbeat(f"{name} {member[0]}", member, epoch, **more)
        given = answer["Assignment"] or {}
        if given:
            topics = given["TopicPartitions"]
            owned = sorted(one for each in topics for one in each["Partitions"])
        members[member] = answer["MemberEpoch"] or epoch, owned

    await heartbeat("joins", _ONE, **_joining(topic))
    await asyncio.sleep(_ASSIGNED_S)
    for number in range(2):
        await heartbeat(f"alone {number}", _ONE)
        await asyncio.sleep(0.4)
    await heartbeat("joins", _OTHER, **_joining(topic))
    await asyncio.sleep(_ASSIGNED_S)
    for number in range(5):
        await heartbeat(f"both {number}", _ONE)
        await heartbeat(f"both {number}", _OTHER)
        await asyncio.sleep(0.3)
    await group.describe("both")
    await group.heartbeat("B leaves", _OTHER, -1)
    await asyncio.sleep(_ASSIGNED_S)
    for number in range(3):
        await heartbeat(f"alone again {number}", _ONE)
        await asyncio.sleep(0.4)
    await group.describe("alone again")


async def static_member(recorder: Recorder) -> None:
    topic, group = await recorder.topic("cs"), _Group(recorder, "cs")
    known: dict[str, Any] = {"InstanceId": "i1"}
    answer = await group.heartbeat("joins", _ONE, 0, **_joining(topic, **known))
    await asyncio.sleep(_ASSIGNED_S)
    answer = await group.heartbeat("again", _ONE, answer["MemberEpoch"] or 1, **known)
    epoch = answer["MemberEpoch"] or 1
    await group.heartbeat("another member of it joins", _OTHER, 0, **_joining(topic, **known))
    await group.heartbeat("leaves for a while", _ONE, -2, **known)
    await group.describe("away")
    await group.heartbeat("returns as another", _OTHER, 0, **_joining(topic, **known))
    await group.heartbeat("old member", _ONE, epoch, **known)
    await group.heartbeat("leaves", _OTHER, -1, **known)
    await group.describe("gone")


async def regular_expression(recorder: Recorder) -> None:
    topic, group = await recorder.topic("cr", partitions=2), _Group(recorder, "cr")
    pattern = f"cr-{recorder.run}.*"
    joining_by = _joining(topic, SubscribedTopicNames=None, SubscribedTopicRegex=pattern)
    answer = await group.heartbeat("joins", _ONE, 0, **joining_by)
    for number in range(3):
        await asyncio.sleep(1.5)
        answer = await group.heartbeat(f"{number}", _ONE, answer["MemberEpoch"] or 1)
    await group.describe("assigned")
    both: dict[str, Any] = {"SubscribedTopicNames": ["nope"], "SubscribedTopicRegex": "x"}
    await group.heartbeat("names, too", _ONE, answer["MemberEpoch"] or 1, **both)
    for version in (0, 1):
        names = [group.name, group.name]
        body = {"GroupIds": names, "IncludeAuthorizedOperations": True}
        await group.ask("ConsumerGroupDescribe", version, "authorized operations", body)


async def kinds_together(recorder: Recorder) -> None:
    """Classic and consumer members in one group, from each side."""
    topic = await recorder.topic("ck", partitions=4)
    group = _Group(recorder, "ckc")
    member = await join(recorder, group.name, protocols=(("range", subscription(topic)),))
    member_id, generation = member["MemberId"], member["GenerationId"] or 1
    given = {member_id: assignment(topic, 0, 1, 2, 3)}
    await group.ask("SyncGroup", 5, "", sync_body(group.name, member_id, generation, given))
    answer = await group.heartbeat("joins the classic one", _ONE, 0, **_joining(topic))
    await group.describe("both")
    body = heartbeat_body(group.name, member_id, generation)
    await group.ask("Heartbeat", 4, "of the classic one", body)
    await group.ask("DescribeGroups", 6, "both", {"Groups": [group.name]})
    epoch = answer["MemberEpoch"] or 1
    await group.heartbeat("again", _ONE, epoch, TopicPartitions=[])
    group = _Group(recorder, "ckn")
    answer = await group.heartbeat("first", _ONE, 0, **_joining(topic))
    await asyncio.sleep(_ASSIGNED_S)
    await group.heartbeat("first, again", _ONE, answer["MemberEpoch"] or 1)
    member = await join(
        recorder, group.name, "the consumer group", protocols=(("range", subscription(topic)),)
    )
    await group.describe("classic one joined")
