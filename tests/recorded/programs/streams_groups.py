"""Streams groups: topologies, internal topics, tasks, standbys, commits, and the end of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from tests.recorded.bodies import commit_body, join_body, offset_fetch_body
from tests.recorded.codec import Message
from tests.recorded.recorder import Answer, Coordinator, Recorder

_ONE, _OTHER = "AAAAAAAAAAAAAAAAAAAAAg", "BBBBBBBBBBBBBBBBBBBBBA"
_PROCESSES = {_ONE: "process-a", _OTHER: "process-b"}
_GROUP = 32
_INTERVAL_S = 1.3
"""A little more than the least time between assignments."""

NO_TASKS: Message = {"ActiveTasks": [], "StandbyTasks": [], "WarmupTasks": []}


def internal(name: str, partitions: int = 0, configs: Mapping[str, str] | None = None) -> Message:
    """Return an internal topic of a topology."""
    pairs = [{"Key": key, "Value": value} for key, value in (configs or {}).items()]
    return {
        "Name": name,
        "Partitions": partitions,
        "ReplicationFactor": 0,
        "TopicConfigs": pairs,
    }


def subtopology(number: str, sources: Sequence[str], **more: Any) -> Message:
    """Return a part of a topology."""
    return {
        "SubtopologyId": number,
        "SourceTopics": list(sources),
        "SourceTopicRegex": [],
        "StateChangelogTopics": [],
        "RepartitionSinkTopics": [],
        "RepartitionSourceTopics": [],
        "CopartitionGroups": [],
        **more,
    }


def topology(*subtopologies: Message, epoch: int = 0) -> Message:
    """Return a topology."""
    return {"Epoch": epoch, "Subtopologies": list(subtopologies)}


class _Streams:
    """A streams group and the tasks of its members."""

    def __init__(self, recorder: Recorder, start: str) -> None:
        self._recorder = recorder
        self.name = recorder.name(start)
        self.to = Coordinator(self.name)
        self.epochs: dict[str, int] = {}
        self.tasks: dict[str, Message] = {}

    async def configure(self, **settings: str) -> None:
        configs = [
            {"Name": f"streams.{name.replace('_', '.')}", "ConfigOperation": 0, "Value": value}
            for name, value in settings.items()
        ]
        resource = {"ResourceType": _GROUP, "ResourceName": self.name, "Configs": configs}
        body = {"Resources": [resource]}
        await self._recorder.ask("IncrementalAlterConfigs", 1, "settings", body)
        await asyncio.sleep(0.5)

    async def ask(self, api: str, version: int, name: str, body: Message) -> Answer:
        return await self._recorder.ask(api, version, name, body, self.to)

    async def beat(self, name: str, epoch: int, member: str = _ONE, **more: Any) -> Answer:
        """Send a heartbeat as it stands."""
        body = {"GroupId": self.name, "MemberId": member, "MemberEpoch": epoch, **more}
        client_id = "ab"[member != _ONE]
        return await self._recorder.ask("StreamsGroupHeartbeat", 0, name, body, self.to, client_id)

    async def join(self, name: str, of: Message, member: str = _ONE, **more: Any) -> Answer:
        """Join with a topology."""
        joining = {"Topology": of, "RebalanceTimeoutMs": 20_000, "ProcessId": _PROCESSES[member]}
        answer = await self.beat(name, 0, member, **joining, **NO_TASKS, **more)
        self._note(member, answer)
        return answer

    async def stay(self, name: str, member: str = _ONE, **more: Any) -> Answer:
        """Send a heartbeat with the tasks that the member has."""
        epoch, tasks = self.epochs.get(member, 0), self.tasks.get(member, NO_TASKS)
        answer = await self.beat(name, epoch, member, **tasks, **more)
        self._note(member, answer)
        return answer

    def _note(self, member: str, answer: Answer) -> None:
        self.epochs[member] = answer["MemberEpoch"] or self.epochs.get(member, 0)
        if answer["ActiveTasks"] is not None:
            self.tasks[member] = {kind: answer[kind] or [] for kind in NO_TASKS}

    async def describe(self, name: str) -> None:
        await self.ask("StreamsGroupDescribe", 0, name, {"GroupIds": [self.name]})


async def joining(recorder: Recorder) -> None:
    topic = await recorder.topic("st", partitions=2)
    group, plain = _Streams(recorder, "st"), topology(subtopology("0", [topic]))
    full: Mapping[str, Any] = {
        "Topology": plain,
        "RebalanceTimeoutMs": 5_000,
        "ProcessId": "p",
        **NO_TASKS,
    }
    for name, epoch, more in (
        ("no topology", 0, {"Topology": None}),
        ("no timeout", 0, {"RebalanceTimeoutMs": -1}),
        ("with tasks", 0, {"ActiveTasks": [{"SubtopologyId": "0", "Partitions": [0]}]}),
        ("no member id", 0, {"MemberId": ""}),
        ("no group", 0, {"GroupId": ""}),
        ("empty rack", 0, {"RackId": ""}),
        ("instance", 0, {"InstanceId": "i"}),
        ("epoch -2", -2, {"Topology": None}),
        ("epoch -3", -3, {"Topology": None}),
        ("one kind of tasks", 0, {"StandbyTasks": None, "WarmupTasks": None}),
        ("warmup tasks", 0, {"WarmupTasks": [{"SubtopologyId": "0", "Partitions": [0]}]}),
        ("offsets of tasks", 0, {"TaskOffsets": []}),
        ("unknown group", 3, {"Topology": None}),
        ("leaves an unknown group", -1, {"Topology": None}),
        ("topology of no join", 3, {}),
    ):
        await group.beat(name, epoch, **{**full, **more})
    for name, of in (
        ("internal topic", topology(subtopology("0", ["__consumer_offsets"]))),
        ("invalid topic", topology(subtopology("0", [topic, "a b"]))),
        ("expression", topology(subtopology("0", [topic], SourceTopicRegex=["a.*"]))),
        (
            "partitions of a changelog",
            topology(subtopology("0", [topic], StateChangelogTopics=[internal("c", 2)])),
        ),
        (
            "repartition that none writes",
            topology(subtopology("0", [topic], RepartitionSourceTopics=[internal("r")])),
        ),
        (
            "loop",
            topology(
                subtopology(
                    "0", [], RepartitionSourceTopics=[internal("r")], RepartitionSinkTopics=["r"]
                )
            ),
        ),
        ("no sources", topology(subtopology("0", []))),
        ("epoch below 0", topology(subtopology("0", [topic]), epoch=-1)),
        ("one id twice", topology(*[subtopology("0", [topic])] * 2)),
        (
            "place of no topic",
            topology(
                subtopology(
                    "0",
                    [topic],
                    CopartitionGroups=[
                        {
                            "SourceTopics": [4],
                            "SourceTopicRegex": [],
                            "RepartitionSourceTopics": [],
                        }
                    ],
                )
            ),
        ),
    ):
        await group.beat(name, 0, **{**full, "Topology": of})
    await group.describe("unknown")
    await recorder.ask("StreamsGroupDescribe", 0, "no name", {"GroupIds": [""]}, group.to)
    await group.join("joins", plain)
    await group.describe("delayed")
    await group.stay("delayed")
    await group.describe("delayed, heard twice")
    await asyncio.sleep(3.5)
    await group.stay("assigned")
    await group.describe("assigned")
    for name, epoch, more in (
        ("epoch ahead", 9, {}),
        ("epoch before", 1, {}),
        ("unknown member", 2, {"MemberId": _OTHER}),
        ("unknown subtopology", 2, {"ActiveTasks": [{"SubtopologyId": "7", "Partitions": [0]}]}),
        ("unknown task", 2, {"ActiveTasks": [{"SubtopologyId": "0", "Partitions": [7]}]}),
        ("leaves as unknown", -1, {"MemberId": _OTHER}),
    ):
        await group.beat(name, epoch, **{**NO_TASKS, **more})
    other = topology(subtopology("0", [topic]), subtopology("1", [topic]))
    await group.join("other topology", other)
    await group.join("later topology", topology(subtopology("0", [topic]), epoch=1))
    await group.join("again", plain)
    await group.stay("after all")
    await group.describe("after all")


async def internal_topics(recorder: Recorder) -> None:
    topic, group = await recorder.topic("si", partitions=3), _Streams(recorder, "si")
    await group.configure(initial_rebalance_delay_ms="0")
    repartition, changelog = f"{group.name}-w-repartition", f"{group.name}-w-changelog"
    configs = {"cleanup.policy": "compact", "min.compaction.lag.ms": "7"}
    of = topology(
        subtopology("0", [topic], RepartitionSinkTopics=[repartition]),
        subtopology(
            "1",
            [],
            RepartitionSourceTopics=[internal(repartition, configs={"retention.ms": "-1"})],
            StateChangelogTopics=[internal(changelog, configs=configs)],
            CopartitionGroups=[
                {"SourceTopics": [], "SourceTopicRegex": [], "RepartitionSourceTopics": [0]}
            ],
        ),
    )
    endpoint = {"Host": "localhost", "Port": 8_080}
    tags = [{"Key": "zone", "Value": "z1"}]
    await group.join("joins", of, UserEndpoint=endpoint, ClientTags=tags, RackId="r1")
    await asyncio.sleep(_INTERVAL_S)
    for number in range(3):
        await group.stay(f"{number}")
        await asyncio.sleep(0.4)
    await group.describe("assigned")
    asked = {"Topics": [{"Name": one} for one in (repartition, changelog)]}
    await recorder.ask("Metadata", 12, "internal topics", asked)
    keys = ["cleanup.policy", "min.compaction.lag.ms", "retention.ms"]
    resources = [
        {"ResourceType": 2, "ResourceName": one, "ConfigurationKeys": keys}
        for one in (repartition, changelog)
    ]
    await recorder.ask("DescribeConfigs", 4, "internal topics", {"Resources": resources})
    await group.stay("knows the addresses", EndpointInformationEpoch=1)
    await group.stay("knows an old one", EndpointInformationEpoch=0)


async def unfit_topics(recorder: Recorder) -> None:
    three, two = await recorder.topic("u3", partitions=3), await recorder.topic("u2", partitions=2)
    both = {"SourceTopics": [0, 1], "SourceTopicRegex": [], "RepartitionSourceTopics": []}
    absent = [recorder.name(f"absent{number}") for number in range(5)]
    for start, of in {
        "ua": topology(subtopology("0", [three, *absent])),
        "ub": topology(subtopology("0", [three, two], CopartitionGroups=[both])),
        "uc": topology(subtopology("0", [three], StateChangelogTopics=[internal(two)])),
        "ud": topology(
            subtopology("0", [three], RepartitionSinkTopics=[two]),
            subtopology("1", [], RepartitionSourceTopics=[internal(two, 5)]),
        ),
        "ue": topology(
            subtopology(
                "0",
                [three],
                RepartitionSinkTopics=[recorder.name("ur")],
                RepartitionSourceTopics=[internal(recorder.name("ur"), 5)],
                CopartitionGroups=[
                    {"SourceTopics": [0], "SourceTopicRegex": [], "RepartitionSourceTopics": [0]}
                ],
            )
        ),
        "uf": topology(
            subtopology(
                "0",
                [three],
                StateChangelogTopics=[
                    internal(recorder.name("uc"), configs={"cleanup.policy": "nonsense"})
                ],
            )
        ),
    }.items():
        group = _Streams(recorder, start)
        await group.configure(initial_rebalance_delay_ms="0")
        await group.join(f"joins {start}", of)
        await asyncio.sleep(_INTERVAL_S)
        await group.stay(f"stays in {start}")
        await group.describe(start)
        listed = {"StatesFilter": ["NotReady", "not_ready"], "TypesFilter": ["streams"]}
        answer = await recorder.ask_quietly("ListGroups", 5, listed, group.to)
        groups = [one for one in answer["Groups"] or () if one["GroupId"] == group.name]
        recorder.note(f"ListGroups v5 not ready {start}", {"Groups": groups})


async def two_members(recorder: Recorder) -> None:
    topic, group = await recorder.topic("s2", partitions=4), _Streams(recorder, "s2")
    changelog = await recorder.topic("s2-changelog", partitions=4)
    await group.configure(initial_rebalance_delay_ms="0", num_standby_replicas="1")
    of = topology(subtopology("0", [topic], StateChangelogTopics=[internal(changelog)]))
    await group.join("joins A", of)
    await asyncio.sleep(_INTERVAL_S)
    await group.stay("alone A")
    await group.join("joins B", of, _OTHER)
    await asyncio.sleep(_INTERVAL_S)
    for number in range(5):
        await group.stay(f"both {number} B", _OTHER)
        await group.stay(f"both {number} A")
        await asyncio.sleep(0.3)
    await group.describe("both")
    await group.configure(num_standby_replicas="0")
    for number in range(4):
        await group.stay(f"no standbys {number} B", _OTHER)
        await group.stay(f"no standbys {number} A")
        await asyncio.sleep(_INTERVAL_S / 2)
    await group.describe("no standbys")
    await group.beat("leaves B", -1, _OTHER)
    for number in range(3):
        await group.stay(f"alone again {number} A")
        await asyncio.sleep(_INTERVAL_S)
    await group.describe("alone again")


async def kinds_together(recorder: Recorder) -> None:
    topic, group = await recorder.topic("sk", partitions=2), _Streams(recorder, "sk")
    await group.configure(initial_rebalance_delay_ms="0")
    of = topology(subtopology("0", [topic]))
    await group.join("joins", of)
    await asyncio.sleep(_INTERVAL_S)
    await group.stay("assigned")
    name, member, epoch = group.name, _ONE, group.epochs[_ONE]
    consumer = {"GroupId": name, "MemberId": _ONE, "MemberEpoch": 0, "RebalanceTimeoutMs": 5_000}
    consumer |= {"SubscribedTopicNames": [topic]}
    deleted = {"GroupId": name, "Topics": [{"Name": topic, "Partitions": [{"PartitionIndex": 0}]}]}

    def commit(of: str, at: int, offset: int = 4) -> Message:
        return commit_body(name, topic, [(0, offset, "")], member=of, generation=at)

    def fetch(of: str | None, at: int) -> Message:
        return offset_fetch_body(name, topic, [0], member=of, epoch=at)

    shared = {key: value for key, value in consumer.items() if key != "RebalanceTimeoutMs"}
    for step, api, version, body in (
        ("member", "OffsetCommit", 9, commit(member, epoch, 3)),
        ("epoch before", "OffsetCommit", 9, commit(member, epoch - 1)),
        ("epoch ahead", "OffsetCommit", 9, commit(member, epoch + 1)),
        ("no member", "OffsetCommit", 9, commit("", -1)),
        ("unknown member", "OffsetCommit", 9, commit("m", epoch)),
        ("older version", "OffsetCommit", 8, commit(member, epoch)),
        ("any", "OffsetFetch", 9, fetch(None, -1)),
        ("member", "OffsetFetch", 9, fetch(member, epoch)),
        ("stale", "OffsetFetch", 9, fetch(member, epoch + 1)),
        ("unknown", "OffsetFetch", 9, fetch("m", epoch)),
        ("streams", "DescribeGroups", 6, {"Groups": [name]}),
        ("streams", "ConsumerGroupDescribe", 1, {"GroupIds": [name]}),
        ("streams", "ShareGroupDescribe", 1, {"GroupIds": [name]}),
        ("joins", "ConsumerGroupHeartbeat", 1, consumer | {"TopicPartitions": []}),
        ("joins", "ShareGroupHeartbeat", 1, shared),
        ("joins", "JoinGroup", 9, join_body(name)),
        ("in use", "OffsetDelete", 0, deleted),
        ("in use", "DeleteGroups", 2, {"GroupsNames": [name]}),
    ):
        await group.ask(api, version, step, body)
    answer = await recorder.ask_quietly("ListGroups", 5, {"TypesFilter": ["Streams"]}, group.to)
    groups = [one for one in answer["Groups"] or () if one["GroupId"] == name]
    recorder.note("ListGroups v5 streams", {"Groups": groups})
    await group.join("joins B", of, _OTHER)
    await group.stay("shuts down", ShutdownApplication=True)
    await group.stay("hears it", _OTHER)
    await group.beat("leaves", -1)
    await group.beat("leaves B", -1, _OTHER)
    await group.describe("empty")
    for step, api, version, body in (
        ("empty", "OffsetCommit", 9, commit("", -1, 5)),
        ("joins an empty one", "ConsumerGroupHeartbeat", 1, consumer | {"TopicPartitions": []}),
        ("empty", "OffsetDelete", 0, deleted),
        ("empty", "DeleteGroups", 2, {"GroupsNames": [name]}),
        ("deleted", "DeleteGroups", 2, {"GroupsNames": [name]}),
    ):
        await group.ask(api, version, step, body)
    await group.describe("deleted")
    classic = _Streams(recorder, "sl")
    joined = await classic.ask("JoinGroup", 3, "classic", join_body(classic.name))
    await classic.join("joins a classic group", of)
    left = {"GroupId": classic.name, "Members": [{"MemberId": joined["MemberId"] or ""}]}
    await classic.ask("LeaveGroup", 3, "classic", left)
    await classic.join("joins an empty classic group", of)
    await classic.describe("was classic")
