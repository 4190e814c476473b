"""Offsets that groups commit, fetch and delete, and the lists of groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tests.recorded.bodies import (
    IDS_IN_OFFSETS,
    commit_body,
    offset_fetch_body,
    subscription,
    sync_body,
)
from tests.recorded.codec import Message, versions_of
from tests.recorded.programs.groups import join
from tests.recorded.recorder import NO_ID, Coordinator, NoAnswerError, Other, Recorder

_UNKNOWN_ID = UUID(int=3)
_FETCHED_AFTER = (9, 10)
"""The versions of commits after which each way to fetch them is tried."""


async def commits(recorder: Recorder) -> None:
    topic = await recorder.topic("of", partitions=3)
    topic_id = await recorder.topic_id(topic)
    for version in versions_of("OffsetCommit"):
        await _commit(recorder, topic, topic_id, version)
        await _fetch(recorder, topic, topic_id, version)
    group = recorder.name(f"og{version}")
    await _delete(recorder, group, topic)
    to = Coordinator(group)
    everything: Message = {"GroupId": group, "Topics": None}
    for name, groups in {"one": [everything], "twice": [everything] * 2, "none": []}.items():
        await recorder.ask("OffsetFetch", 8, f"after deletions, {name}", {"Groups": groups}, to)
    body = offset_fetch_body(group, topic, None)
    await recorder.ask("OffsetFetch", 9, "not to the coordinator", body, Other(to))


async def _commit(recorder: Recorder, topic: str, topic_id: UUID, version: int) -> None:
    group = recorder.name(f"og{version}")
    to = Coordinator(group)
    known: Mapping[str, Any] = {"version": version, "topic_id": topic_id}
    one = [(0, 5, "")]
    cases = {
        "two": commit_body(group, topic, [(0, 5, "m"), (1, 7, None)], **known),
        "unknown partition": commit_body(group, topic, [(9, 5, "")], **known),
        "offset -1": commit_body(group, topic, [(0, -1, "")], **known),
        "offset -5": commit_body(group, topic, [(0, -5, "")], **known),
        "partition -1": commit_body(group, topic, [(-1, 5, "")], **known),
        "metadata of 5000": commit_body(group, topic, [(0, 5, "x" * 5000)], **known),
        "metadata of 4096": commit_body(group, topic, [(0, 6, "x" * 4096)], **known),
        "generation 5": commit_body(group, topic, one, generation=5, **known),
        "generation -2": commit_body(group, topic, one, generation=-2, **known),
        "a member": commit_body(group, topic, one, member="mm", **known),
        "a member of 1": commit_body(group, topic, one, member="mm", generation=1, **known),
        "same partition twice": commit_body(group, topic, [(2, 5, ""), (2, 6, "")], **known),
        "no partitions": commit_body(group, topic, [], **known),
        "no group": commit_body("", topic, one, **known),
        "unknown topic": commit_body(
            group, topic + "x", one, version=version, topic_id=_UNKNOWN_ID
        ),
        "no topics": {"GroupId": group, "GenerationIdOrMemberEpoch": -1, "Topics": []},
    }
    if version >= IDS_IN_OFFSETS:
        cases["no id"] = commit_body(group, topic, one, version=version, topic_id=NO_ID)
    for name, body in cases.items():
        place = Coordinator(body["GroupId"])
        await recorder.ask("OffsetCommit", version, name, body, place)
    body = commit_body(group, topic, one, **known)
    await recorder.ask("OffsetCommit", version, "not to the coordinator", body, Other(to))


async def _fetch(recorder: Recorder, topic: str, topic_id: UUID, committed: int) -> None:
    group = recorder.name(f"og{committed}")
    for version in versions_of("OffsetFetch"):
        known: Mapping[str, Any] = {"version": version, "topic_id": topic_id}
        cases = {"some": offset_fetch_body(group, topic, [0, 1, 2, 9, -1], **known)}
        if committed in _FETCHED_AFTER:
            cases |= _ways_to_fetch(group, topic, known)
        for name, body in cases.items():
            shown = f"{name}, committed v{committed}"
            of = body["Groups"][0]["GroupId"] if version >= 8 else body["GroupId"]
            await recorder.ask("OffsetFetch", version, shown, body, Coordinator(of))


def _ways_to_fetch(group: str, topic: str, known: Mapping[str, Any]) -> Mapping[str, Message]:
    version = known["version"]
    unknown = {"version": version, "topic_id": _UNKNOWN_ID}
    ways = {
        "unknown topic": offset_fetch_body(group, topic + "x", [0], **unknown),
        "unknown group": offset_fetch_body(group + "zz", topic, [0], **known),
        "no group": offset_fetch_body("", topic, [0], **known),
        "stable": offset_fetch_body(group, topic, [0], stable=True, **known),
        "no partitions": offset_fetch_body(group, topic, [], **known),
        "same partition twice": offset_fetch_body(group, topic, [0, 0], **known),
    }
    if version >= 2:
        ways["all"] = offset_fetch_body(group, topic, None, **known)
        ways["all of an unknown group"] = offset_fetch_body(group + "zz", topic, None, **known)
    if version >= 9:
        member: Mapping[str, Any] = {"member": "zz", "epoch": 5}
        ways["member"] = offset_fetch_body(group, topic, [0], **known, **member)
    return ways


def _deletion(group: str, *partitions: tuple[str, int]) -> Message:
    topics = [{"Name": topic, "Partitions": [{"PartitionIndex": one}]} for topic, one in partitions]
    return {"GroupId": group, "Topics": topics}


async def _delete(recorder: Recorder, group: str, topic: str) -> None:
    one = (topic, 0)
    for name, body in {
        "one": _deletion(group, one),
        "again": _deletion(group, one),
        "unknown partition": _deletion(group, (topic, 9)),
        "unknown topic": _deletion(group, (topic + "x", 0)),
        "unknown group": _deletion(group + "zz", one),
        "no group": _deletion("", one),
        "none": _deletion(group),
    }.items():
        await recorder.ask("OffsetDelete", 0, name, body, Coordinator(body["GroupId"]))


async def last_offset(recorder: Recorder) -> None:
    """A group whose last offset is deleted stays, and is empty."""
    topic, group = await recorder.topic("lao"), recorder.name("lao")
    to = Coordinator(group)
    await recorder.ask("OffsetCommit", 9, "", commit_body(group, topic, [(0, 5, "")]), to)
    await recorder.ask("OffsetDelete", 0, "", _deletion(group, (topic, 0)), to)
    await recorder.ask("DescribeGroups", 6, "afterwards", {"Groups": [group]}, to)
    await recorder.ask("DeleteGroups", 2, "", {"GroupsNames": [group]}, to)
    await recorder.ask("DescribeGroups", 5, "deleted", {"Groups": [group]}, to)


async def members_commits(recorder: Recorder) -> None:
    topic, group = await recorder.topic("mc", partitions=3), recorder.name("mc")
    to = Coordinator(group)
    member = (await join(recorder, group, protocols=(("range", subscription(topic)),)))["MemberId"]

    async def commit(name: str, of: str, generation: int) -> None:
        body = commit_body(group, topic, [(0, 1, "")], member=of, generation=generation)
        await recorder.ask("OffsetCommit", 9, name, body, to)

    await commit("before it synced", member, 1)
    await recorder.ask("SyncGroup", 5, "", sync_body(group, member, 1, {member: b""}), to)
    await commit("member", member, 1)
    await commit("next generation", member, 2)
    await commit("no member", "", -1)
    await commit("unknown member", "zz", 1)
    await commit("no generation", member, -1)
    subscribed = _deletion(group, (topic, 0), (topic, 1))
    await recorder.ask("OffsetDelete", 0, "subscribed", subscribed, to)
    for epoch in (1, 7):
        body = offset_fetch_body(group, topic, [0], member=member, epoch=epoch)
        await recorder.ask("OffsetFetch", 9, f"generation {epoch}", body, to)


async def lists_of_groups(recorder: Recorder) -> None:
    for start in ("lgc", "lgs"):
        group = recorder.name(start)
        if start == "lgc":
            await join(recorder, group)
        else:
            body = commit_body(group, "x", [(0, 5, "")])
            await recorder.ask("OffsetCommit", 9, "", body, Coordinator(group))
        for version in versions_of("ListGroups"):
            await _list(recorder, group, version)


async def _list(recorder: Recorder, group: str, version: int) -> None:
    """Record the group alone: a cluster has other programs' groups, too."""
    cases: dict[str, Message] = {"all": {}}
    if version >= 4:
        states = (["Stable"], ["Empty"], ["empty"], ["zz"], ["CompletingRebalance", "Empty"])
        cases |= {f"states {one}": {"StatesFilter": one} for one in states}
    if version >= 5:
        cases |= {f"type {one}": {"TypesFilter": [one]} for one in ("classic", "Consumer", "x")}
    for name, body in cases.items():
        shown = f"ListGroups v{version} {name}, {group}"
        try:
            answer = await recorder.ask_quietly("ListGroups", version, body, Coordinator(group))
        except NoAnswerError as error:
            recorder.note(shown, str(error))
            continue
        groups = [one for one in answer["Groups"] if one["GroupId"] == group]
        recorder.note(shown, {**answer, "Groups": groups})
