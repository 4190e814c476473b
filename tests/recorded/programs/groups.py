"""Classic groups: members that join, wait for others, leave, and the coordinator's answers."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.recorded.bodies import (
    commit_body,
    heartbeat_body,
    join_body,
    leave_body,
    subscription,
    sync_body,
)
from tests.recorded.codec import Message, versions_of
from tests.recorded.recorder import Answer, Coordinator, NoAnswerError, Other, Place, Recorder

MEMBER_ID_REQUIRED = 79


async def join(
    recorder: Recorder, group: str, name: str = "", version: int = 9, **more: Any
) -> Answer:
    """Join a group, with the member id that the coordinator gives."""
    to = Coordinator(group)
    body = join_body(group, **more)
    answer = await recorder.ask("JoinGroup", version, f"joins {name}", body, to)
    if answer["ErrorCode"] == MEMBER_ID_REQUIRED:
        body = join_body(group, answer["MemberId"], **more)
        answer = await recorder.ask("JoinGroup", version, f"joins with its id {name}", body, to)
    return answer


async def find_coordinator(recorder: Recorder) -> None:
    group = recorder.name("g")
    keys = {
        "a name": group,
        "no name": "",
        "a partition of no group": "AAAAAAAAAAAAAAAAAAAAAA:x:0",
        "a partition": f"{group}:AAAAAAAAAAAAAAAAAAAAAQ:0",
    }
    for kind in (0, 1):
        await recorder.broker(Coordinator(group, kind))
    await recorder.broker(Coordinator(keys["a partition"], 2))
    for version in versions_of("FindCoordinator"):
        for kind in (0, 1, 2, 3):
            for name, key in keys.items():
                body: Message = {"KeyType": kind, "CoordinatorKeys": [key]}
                if version < 4:
                    body = {"Key": key, **({"KeyType": kind} if version else {})}
                await recorder.ask("FindCoordinator", version, f"type {kind}, {name}", body)
    for name, several in {"none": [], "same name twice": [group, group, group + "b"]}.items():
        body = {"KeyType": 0, "CoordinatorKeys": several}
        await recorder.ask("FindCoordinator", 4, name, body)


async def errors(recorder: Recorder) -> None:
    for version in versions_of("JoinGroup"):
        await _errors_of_version(recorder, version)


async def _errors_of_version(recorder: Recorder, version: int) -> None:
    group = recorder.name(f"cl{version}")
    to = Coordinator(group)
    member = await join(recorder, group, version=version)
    member_id, generation = member["MemberId"], member["GenerationId"]
    joins: dict[str, Message] = {
        "unknown member": join_body(group, "nope"),
        "session timeout 1 ms": join_body(group, session_ms=1),
        "session timeout of days": join_body(group, session_ms=1 << 30),
        "no protocol type": join_body(group, protocol_type=""),
        "another protocol type": join_body(group, protocol_type="other"),
        "no protocols": join_body(group, protocols=()),
        "another protocol": join_body(group, protocols=(("zz", b""),)),
    }
    for name, body in joins.items():
        await recorder.ask("JoinGroup", version, name, body, to)
    await recorder.ask("JoinGroup", version, "no group", join_body(""), Coordinator(""))
    new = group + "n"
    body = join_body(new, "abc")
    await recorder.ask("JoinGroup", version, "unknown member, new group", body, Coordinator(new))
    sync_version = min(version, 5)
    body = sync_body(group, member_id, generation, {member_id: b"A"}, version=sync_version)
    await recorder.ask("SyncGroup", sync_version, f"joined v{version}", body, to)
    await _heartbeats(recorder, group, member_id, generation, version)
    for described in versions_of("DescribeGroups"):
        name = f"joined v{version}"
        await recorder.ask("DescribeGroups", described, name, {"Groups": [group]}, to)
    await _syncs(recorder, group, member_id, generation, version)
    body = join_body(group, member_id)
    await recorder.ask("JoinGroup", version, "leader joins again", body, to)
    await recorder.ask("DescribeGroups", 5, f"rejoined v{version}", {"Groups": [group]}, to)
    await _departures(recorder, group, member_id, version)


async def _heartbeats(
    recorder: Recorder, group: str, member: str, generation: int, joined: int
) -> None:
    version, to = min(joined, 4), Coordinator(group)
    others = group + "zz"
    cases: dict[str, tuple[Message, Place]] = {
        "right": (heartbeat_body(group, member, generation), to),
        "next generation": (heartbeat_body(group, member, generation + 1), to),
        "generation before": (heartbeat_body(group, member, generation - 1), to),
        "generation -1": (heartbeat_body(group, member, -1), to),
        "unknown member": (heartbeat_body(group, "x", 1), to),
        "no member": (heartbeat_body(group, "", 1), to),
        "unknown group": (heartbeat_body(others, "x", 1), Coordinator(others)),
        "no group": (heartbeat_body("", "x", 1), Coordinator("")),
        "not to the coordinator": (heartbeat_body(group, "x", 1), Other(to)),
    }
    for name, (body, place) in cases.items():
        await recorder.ask("Heartbeat", version, f"{name}, joined v{joined}", body, place)


async def _syncs(recorder: Recorder, group: str, member: str, generation: int, joined: int) -> None:
    version, to, others = min(joined, 5), Coordinator(group), group + "zz"
    known: dict[str, Any] = {"version": version}
    cases: dict[str, tuple[Message, Place]] = {
        "again": (sync_body(group, member, generation, **known), to),
        "generation 99": (sync_body(group, member, 99, **known), to),
        "unknown member": (sync_body(group, "x", generation, **known), to),
        "unknown group": (sync_body(others, "x", 1, **known), Coordinator(others)),
        "no group": (sync_body("", "x", 1, **known), Coordinator("")),
    }
    if version >= 5:
        oddities: dict[str, dict[str, Any]] = {
            "another type": {"protocol_type": "zz"},
            "another protocol": {"protocol": "zz"},
            "null type": {"protocol_type": None},
            "null protocol": {"protocol": None},
        }
        for name, more in oddities.items():
            cases[name] = sync_body(group, member, generation, **known, **more), to
    for name, (body, place) in cases.items():
        await recorder.ask("SyncGroup", version, f"{name}, joined v{joined}", body, place)


async def _departures(recorder: Recorder, group: str, member: str, joined: int) -> None:
    version, to, others = min(joined, 5), Coordinator(group), group + "zz"

    def departure(of: str, one: str) -> Message:
        return leave_body(of, (one, None)) if version >= 3 else {"GroupId": of, "MemberId": one}

    cases: dict[str, tuple[Message, Place]] = {
        "unknown member": (departure(group, "x"), to),
        "right": (departure(group, member), to),
        "again": (departure(group, member), to),
        "no group": (departure("", "m"), Coordinator("")),
        "unknown group": (departure(others, "m"), Coordinator(others)),
    }
    if version >= 3:
        cases["nobody"] = leave_body(group), to
    for name, (body, place) in cases.items():
        await recorder.ask("LeaveGroup", version, f"{name}, joined v{joined}", body, place)
    await recorder.ask("DescribeGroups", 5, f"left v{joined}", {"Groups": [group]}, to)


class _Members:
    """Two members of a group; the second has a connection of its own, since its joins wait."""

    def __init__(self, recorder: Recorder, group: str) -> None:
        self._recorder = recorder
        self.group = group
        self.to = Coordinator(group)

    async def ask(self, api: str, version: int, name: str, body: Message) -> Answer:
        return await self._recorder.ask(api, version, name, body, self.to)

    async def describe(self, name: str) -> None:
        await self.ask("DescribeGroups", 6, name, {"Groups": [self.group]})

    async def send(self, api: str, version: int, body: Message) -> None:
        broker = await self._recorder.broker(self.to)
        connection = await self._recorder.connection(broker, "judge2")
        connection.send(api, version, body)
        await asyncio.sleep(0.3)

    async def received(self, api: str, version: int, name: str) -> Answer:
        broker = await self._recorder.broker(self.to)
        connection = await self._recorder.connection(broker, "judge2")
        try:
            answer = await connection.receive(api, version)
        except NoAnswerError as error:
            self._recorder.note(f"{api} v{version} {name}", str(error))
            return Answer()
        self._recorder.note(f"{api} v{version} {name}", answer)
        return answer


async def two_members(recorder: Recorder) -> None:
    group = recorder.name("two")
    both = _Members(recorder, group)
    first = (("range", subscription("a")), ("roundrobin", subscription("a")))
    second = (("roundrobin", subscription("b")), ("sticky", subscription("b")))
    one = (await join(recorder, group, "A", protocols=first))["MemberId"]
    await both.ask("SyncGroup", 5, "A", sync_body(group, one, 1, {one: b"AA"}))
    answer = await both.ask("JoinGroup", 9, "B", join_body(group, protocols=second))
    other = answer["MemberId"]
    await both.send("JoinGroup", 9, join_body(group, other, protocols=second))
    await both.ask("Heartbeat", 4, "while B waits", heartbeat_body(group, one, 1))
    await both.describe("while B waits")
    await both.ask("SyncGroup", 5, "while B waits", sync_body(group, one, 1))
    commit = commit_body(group, "a", [(0, 1, "")], member=one, generation=1)
    await both.ask("OffsetCommit", 9, "while B waits", commit)
    await both.ask("JoinGroup", 9, "A again", join_body(group, one, protocols=first))
    await both.received("JoinGroup", 9, "B joined")
    await both.describe("both joined")
    await both.ask("Heartbeat", 4, "both joined", heartbeat_body(group, one, 2))
    commit = commit_body(group, "a", [(0, 1, "")], member=one, generation=2)
    await both.ask("OffsetCommit", 9, "both joined", commit)
    await both.send("SyncGroup", 5, sync_body(group, other, 2, protocol="roundrobin"))
    assigned = {one: b"A2", other: b"B2", "zz": b"?"}
    body = sync_body(group, one, 2, assigned, protocol="roundrobin")
    await both.ask("SyncGroup", 5, "A, with an unknown member", body)
    await both.received("SyncGroup", 5, "B")
    await both.describe("stable")
    for version in (9, 5):
        body = join_body(group, other, protocols=second)
        await both.ask("JoinGroup", version, "follower again, as it was", body)
    third = (("roundrobin", subscription("c")),)
    await both.send("JoinGroup", 9, join_body(group, other, protocols=third))
    await both.ask("LeaveGroup", 5, "A", leave_body(group, (one, None)))
    alone = await both.received("JoinGroup", 9, "B alone")
    generation = alone["GenerationId"] or 0
    body = sync_body(group, other, generation, {other: b"B3"}, protocol="roundrobin")
    await both.ask("SyncGroup", 5, "B alone", body)
    await _end_of_group(both, other)


async def _end_of_group(both: _Members, member: str) -> None:
    group = both.group
    await both.ask("DeleteGroups", 2, "not empty", {"GroupsNames": [group]})
    await both.ask("LeaveGroup", 5, "B twice", leave_body(group, (member, None), (member, None)))
    await both.describe("empty")
    for name in ("empty", "deleted"):
        await both.ask("DeleteGroups", 2, name, {"GroupsNames": [group]})
    await both.describe("deleted")
    await both.ask("DescribeGroups", 5, "deleted", {"Groups": [group]})


async def static_members(recorder: Recorder) -> None:
    group = recorder.name("st")
    both = _Members(recorder, group)
    one = (await join(recorder, group, instance="i1"))["MemberId"]
    body = sync_body(group, one, 1, {one: b"A"}, instance="i1")
    await both.ask("SyncGroup", 5, "", body)

    async def heartbeat(name: str, member: str, generation: int, instance: str | None) -> None:
        body = heartbeat_body(group, member, generation, instance)
        await both.ask("Heartbeat", 4, f"{name} of {instance}", body)

    await heartbeat("right id", one, 1, "i1")
    await heartbeat("no id", "", 1, "i1")
    await heartbeat("another id", "x", 1, "i1")
    await heartbeat("right id", one, 1, "i2")
    await heartbeat("right id", one, 1, None)
    answer = await both.ask("JoinGroup", 9, "i1 returns", join_body(group, instance="i1"))
    new, generation = answer["MemberId"], answer["GenerationId"] or 1
    await heartbeat("old id", one, 1, "i1")
    await heartbeat("new id", new, generation, "i1")
    await both.ask("SyncGroup", 5, "old id", sync_body(group, one, 1, instance="i1"))
    body = sync_body(group, new, generation, {new: b"B"}, instance="i1")
    await both.ask("SyncGroup", 5, "new id", body)
    await both.ask("JoinGroup", 9, "old id", join_body(group, one, instance="i1"))
    body = commit_body(group, "t", [(0, 5, None)], member=one, generation=1)
    await both.ask("OffsetCommit", 9, "old id", body | {"GroupInstanceId": "i1"})
    await both.describe("returned")
    await both.ask("JoinGroup", 8, "i1 returns, older client", join_body(group, instance="i1"))
    await both.ask("LeaveGroup", 5, "by instances", leave_body(group, ("", "i1"), ("", "i9")))
    await both.describe("removed")
    await both.ask("LeaveGroup", 5, "removed one", leave_body(group, (one, "i1")))
    await both.ask("JoinGroup", 9, "empty instance", join_body(group, instance=""))


async def static_members_wait(recorder: Recorder) -> None:
    """A static member that doesn't rejoin keeps its place until its session ends."""
    group = recorder.name("stw")
    both = _Members(recorder, group)
    times: dict[str, Any] = {"rebalance_ms": 700, "session_ms": 30_000}
    one = await join(recorder, group, "static", instance="s1", **times)
    body = sync_body(group, one["MemberId"], one["GenerationId"], {one["MemberId"]: b"A"})
    await both.ask("SyncGroup", 5, "static", body | {"GroupInstanceId": "s1"})
    other = await join(recorder, group, "dynamic", **times)
    await both.describe("dynamic joined")
    body = sync_body(group, other["MemberId"], other["GenerationId"], {other["MemberId"]: b"B"})
    await both.ask("SyncGroup", 5, "dynamic", body)
    await both.describe("dynamic synced")
    await both.ask("LeaveGroup", 5, "dynamic", leave_body(group, (other["MemberId"], None)))
    await both.describe("dynamic left")
    await asyncio.sleep(1.5)
    await both.describe("later")
    body = join_body(group, one["MemberId"], instance="s1", **times)
    again = await both.ask("JoinGroup", 9, "static again", body)
    await both.describe("static again")
    generation = again["GenerationId"] or 0
    body = heartbeat_body(group, one["MemberId"], generation, "s1")
    await both.ask("Heartbeat", 4, "static again", body)


async def late_members(recorder: Recorder) -> None:
    """Members that don't rejoin, never sync, or rejoin without having synced."""
    times: dict[str, Any] = {"rebalance_ms": 700, "session_ms": 30_000}
    group = recorder.name("late")
    both = _Members(recorder, group)
    one = (await join(recorder, group, "first", **times))["MemberId"]
    other = await join(recorder, group, "second, without the first", **times)
    await both.describe("without the first")
    body = heartbeat_body(group, one, other["GenerationId"] or 0)
    await both.ask("Heartbeat", 4, "of the first", body)
    await both.ask("JoinGroup", 9, "first, late", join_body(group, one, **times))
    await both.describe("first, late")
    group = recorder.name("late2")
    both = _Members(recorder, group)
    one = (await join(recorder, group, "leader", **times))["MemberId"]
    for name in ("without sync", "without sync, again"):
        answer = await both.ask("JoinGroup", 9, name, join_body(group, one, **times))
    body = sync_body(group, one, answer["GenerationId"] or 0, {one: b"A"})
    await both.ask("SyncGroup", 5, "leader", body)
    await asyncio.sleep(1.2)
    await both.describe("leader")
    group = recorder.name("late3")
    both = _Members(recorder, group)
    answer = await join(recorder, group, "never syncs", **times)
    one, generation = answer["MemberId"], answer["GenerationId"] or 0
    await asyncio.sleep(1.5)
    await both.describe("never synced")
    await both.ask("Heartbeat", 4, "never synced", heartbeat_body(group, one, generation))
    await both.ask("SyncGroup", 5, "too late", sync_body(group, one, generation, {one: b"A"}))


async def generations(recorder: Recorder) -> None:
    """The generations of a group that empties and fills again, and of members that only asked."""
    group = recorder.name("gen")
    both = _Members(recorder, group)
    for number in range(3):
        answer = await join(recorder, group, f"{number}")
        member, generation = answer["MemberId"], answer["GenerationId"] or 0
        await both.ask("SyncGroup", 5, f"{number}", sync_body(group, member, generation))
        await both.ask("LeaveGroup", 5, f"{number}", leave_body(group, (member, None)))
    await join(recorder, group, "static", instance="s1")
    await both.ask("JoinGroup", 9, "static, no sync", join_body(group, instance="s1"))
    await both.ask("LeaveGroup", 5, "static", leave_body(group, ("", "s1")))
    await join(recorder, group, "after the static one")
    group = recorder.name("gen2")
    both = _Members(recorder, group)
    member = (await join(recorder, group, "no sync"))["MemberId"]
    await both.ask("LeaveGroup", 5, "no sync", leave_body(group, (member, None)))
    await join(recorder, group, "after one that didn't sync")
    group = recorder.name("gen3")
    both = _Members(recorder, group)
    asked = (await both.ask("JoinGroup", 9, "only asked", join_body(group)))["MemberId"]
    await both.ask("LeaveGroup", 5, "only asked", leave_body(group, (asked, None)))
    await both.describe("only asked, and left")
    await both.ask("JoinGroup", 9, "after it left", join_body(group, asked))
    await join(recorder, group, "another")
    for syncs in (True, False):
        await _asked_and_left(recorder, syncs)


async def never_came(recorder: Recorder) -> None:
    """A group of a member that asked for its id, and didn't join with it within its session."""
    both = _Members(recorder, recorder.name("nc"))
    body = join_body(both.group, session_ms=200)
    asked = (await both.ask("JoinGroup", 9, "asks", body))["MemberId"]
    await asyncio.sleep(1.5)
    await both.describe("never came")
    body = join_body(both.group, asked, session_ms=200)
    await both.ask("JoinGroup", 9, "came too late", body)
    await both.describe("came too late")
    await both.ask("DeleteGroups", 2, "empty", {"GroupsNames": [both.group]})
    await both.describe("deleted")


async def _asked_and_left(recorder: Recorder, syncs: bool) -> None:
    group = recorder.name(f"asked{syncs:d}")
    both = _Members(recorder, group)
    when = "synced" if syncs else "not synced"
    answer = await join(recorder, group, f"first, {when}")
    member, generation = answer["MemberId"], answer["GenerationId"] or 0
    if syncs:
        await both.ask("SyncGroup", 5, when, sync_body(group, member, generation, {member: b"A"}))
    asked = (await both.ask("JoinGroup", 9, f"asks, {when}", join_body(group)))["MemberId"]
    await both.describe(f"asked, {when}")
    await both.ask("LeaveGroup", 5, f"first, {when}", leave_body(group, (member, None)))
    await both.describe(f"first left, {when}")
    await both.ask("JoinGroup", 9, f"second, {when}", join_body(group, asked))
    await both.describe(f"second joined, {when}")
    body = join_body(group, asked, instance="s1")
    await both.ask("JoinGroup", 9, f"id of another, {when}", body)
    body = join_body(group, "zz", instance="s1")
    await both.ask("JoinGroup", 9, f"unknown id of an instance, {when}", body)
