"""Topics that are created, grow and are deleted, elections and reassignments."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from tests.recorded.codec import Message, versions_of
from tests.recorded.recorder import NO_ID, Leader, Recorder

_TIMEOUT_MS = 10_000
_ANY = -1
_AUTOMATIC = {"NumPartitions": _ANY, "ReplicationFactor": _ANY}


def _assigned(*partitions: tuple[int, Sequence[int]]) -> Sequence[Message]:
    return [{"PartitionIndex": index, "BrokerIds": list(ids)} for index, ids in partitions]


def _creations() -> Mapping[str, Mapping[str, Any]]:
    """A creation's fields beside the name of the topic."""
    counts = {
        f"{partitions} partitions, {replicas} replicas": {
            "NumPartitions": partitions,
            "ReplicationFactor": replicas,
        }
        for partitions, replicas in (
            *((1, 1), (0, 1), (-1, 1), (-2, 1), (1, -1), (1, 0), (1, 9), (1, -2), (-1, -1)),
            *((100_000, 1), (2**31 - 1, 1)),
        )
    }
    names = (
        *("", ".", "..", "a b", "\u00e9", "x" * 249, "x" * 250),
        *("__consumer_offsets", "__transaction_state", "__x"),
    )
    assignments = {
        "one": _assigned((0, [1])),
        "partition 1 alone": _assigned((1, [1])),
        "a broker twice": _assigned((0, [1, 1])),
        "an unknown broker": _assigned((0, [99])),
        "no broker": _assigned((0, [])),
        "a partition twice": _assigned((0, [1]), (0, [2])),
        "a gap": _assigned((0, [1]), (2, [2])),
        "different replication": _assigned((0, [1, 2]), (1, [2])),
        "broker -1": _assigned((0, [-1])),
    }
    counted_and_assigned = {
        f"assigned, {partitions} partitions, {replicas} replicas": {
            "NumPartitions": partitions,
            "ReplicationFactor": replicas,
            "Assignments": _assigned((0, [1])),
        }
        for partitions, replicas in ((1, -1), (-1, 1), (1, 1))
    }
    return {
        **counts,
        **{f"name {name[:20]!r} of {len(name)}": {"Name": name} for name in names},
        **{
            f"assigned {name}": {**_AUTOMATIC, "Assignments": assignment}
            for name, assignment in assignments.items()
        },
        **counted_and_assigned,
    }


async def create_topics(recorder: Recorder) -> None:
    def topic(start: str, **more: Any) -> Message:
        named = {"Name": recorder.name(start), "NumPartitions": 1, "ReplicationFactor": 1}
        return named | more

    async def create(name: str, *topics: Message, version: int = 7, **more: Any) -> None:
        body = {"Topics": list(topics), "timeoutMs": _TIMEOUT_MS, **more}
        await recorder.ask("CreateTopics", version, name, body)

    for name, creation in _creations().items():
        await create(f"validated: {name}", topic("ct", **creation), validateOnly=True)
    setting = [{"Name": "retention.ms", "Value": "500000"}]
    for version in versions_of("CreateTopics"):
        one = topic(f"v{version}", NumPartitions=2, ReplicationFactor=2, Configs=setting)
        await create("new", one, version=version)
    await create("existing", topic("v7"))
    await create("existing, validated", topic("v7"), validateOnly=True)
    await create("same name twice", topic("dup"), topic("dup"))
    await create("none")
    await create("similar names", topic("a.b"), topic("a_b"))
    await create("name similar to an existing one", topic("a_b"))
    await create("some bad", topic("ok1"), topic("x", Name="bad!"), topic("v7"))
    await create("timeout 0", topic("t0"), timeoutMs=0)
    await asyncio.sleep(1)
    names = [recorder.name(start) for start in ("ok1", "dup", "a.b", "a_b", "t0", "ct")]
    body = {"Topics": [{"Name": name} for name in names], "AllowAutoTopicCreation": False}
    await recorder.ask("Metadata", 12, "afterwards", body)


async def create_partitions(recorder: Recorder) -> None:
    topic = await recorder.topic("cp", partitions=2, replicas=2)

    def grown(count: int, *added: Sequence[int], name: str = topic) -> Message:
        assignments = [{"BrokerIds": list(ids)} for ids in added] if added else None
        return {"Name": name, "Count": count, "Assignments": assignments}

    cases = {
        **{f"to {count}": [grown(count)] for count in (2, 1, 0, -1)},
        "no assignment": [{**grown(3), "Assignments": []}],
        "two assignments of one": [grown(3, [1], [2])],
        "another replication": [grown(3, [1])],
        "a broker twice": [grown(3, [1, 1])],
        "an unknown broker": [grown(3, [1, 99])],
        "no broker": [grown(3, [])],
        "assigned": [grown(3, [1, 2])],
        "unknown topic": [grown(5, name=topic + "x")],
        "empty name": [grown(5, name="")],
        "same topic twice": [grown(5), grown(6)],
        "internal topic": [grown(50, name="__consumer_offsets")],
    }
    for name, topics in cases.items():
        for version in (0, 3):
            body = {"Topics": topics, "TimeoutMs": _TIMEOUT_MS, "ValidateOnly": True}
            await recorder.ask("CreatePartitions", version, f"validated: {name}", body)
    for version in versions_of("CreatePartitions"):
        body = {"Topics": [grown(3 + version)], "TimeoutMs": _TIMEOUT_MS}
        await recorder.ask("CreatePartitions", version, "grown", body)
    await asyncio.sleep(0.5)
    await recorder.ask("Metadata", 12, "afterwards", {"Topics": [{"Name": topic}]})


async def delete_topics(recorder: Recorder) -> None:
    async def delete(version: int, name: str, *topics: str | Message) -> None:
        body: Message = {"TimeoutMs": _TIMEOUT_MS}
        if version < 6:
            body["TopicNames"] = list(topics)
        else:
            body["Topics"] = [{"Name": one} if isinstance(one, str) else one for one in topics]
        await recorder.ask("DeleteTopics", version, name, body)

    for version in versions_of("DeleteTopics"):
        topic = await recorder.topic(f"dt{version}")
        await delete(version, "one", topic)
        await delete(version, "again", topic)
        await delete(version, "bad names", "bad!", "")
        await delete(version, "unknown name twice", topic + "1", topic + "1")
        await delete(version, "none")
    topic, second = await recorder.topic("dti"), await recorder.topic("dti2")
    topic_id = await recorder.topic_id(topic)
    by_id = {"Name": None, "TopicId": topic_id}
    await delete(6, "name and id", {"Name": topic, "TopicId": topic_id})
    await delete(6, "unknown id", {"Name": None, "TopicId": UUID(int=99)})
    await delete(6, "neither", {"Name": None, "TopicId": NO_ID})
    await delete(6, "same name twice", second, second)
    await delete(6, "name and id of one topic", by_id, topic)
    await delete(6, "by id", by_id)
    await delete(6, "by id again", by_id)
    await delete(6, "internal name", "__consumer_offsets_nope")


async def elect_leaders(recorder: Recorder) -> None:
    topic = await recorder.topic("el", partitions=2, replicas=3)
    asked = {
        "both partitions": [{"Topic": topic, "Partitions": [0, 1]}],
        "unknown partition": [{"Topic": topic, "Partitions": [9]}],
        "unknown topic": [{"Topic": topic + "x", "Partitions": [0]}],
        "none": [],
    }
    for version in versions_of("ElectLeaders"):
        for kind in (0, 1, 5) if version else (0,):
            for name, partitions in asked.items():
                body = {"TimeoutMs": 5_000, "TopicPartitions": partitions}
                if version:
                    body["ElectionType"] = kind
                await recorder.ask("ElectLeaders", version, f"{name}, type {kind}", body)


async def reassignments(recorder: Recorder) -> None:
    topic = await recorder.topic("ra", partitions=3, assignment=[[1, 2], [2, 3], [3, 1]])

    async def reassign(
        name: str,
        *moves: tuple[int, Sequence[int] | None],
        of: str = topic,
        version: int = 1,
        **more: Any,
    ) -> None:
        partitions = [
            {"PartitionIndex": partition, "Replicas": replicas} for partition, replicas in moves
        ]
        topics = [{"Name": of, "Partitions": partitions}] if moves else []
        body = {"TimeoutMs": 5_000, "Topics": topics, **more}
        await recorder.ask("AlterPartitionReassignments", version, name, body)

    async def list_all(name: str, topics: Sequence[Message] | None) -> None:
        body = {"TimeoutMs": 5_000, "Topics": topics}
        await recorder.ask("ListPartitionReassignments", 0, name, body)

    async def describe(name: str) -> None:
        await recorder.ask("Metadata", 12, name, {"Topics": [{"Name": topic}]})

    await reassign("cancelled without one", (0, None))
    await reassign("unknown partition", (9, [1, 2]))
    await reassign("unknown topic", (0, [1]), of=topic + "x")
    for name, replicas in {
        "a broker twice": [1, 1],
        "unknown broker": [1, 99],
        "no broker": [],
        "broker -1": [-1],
    }.items():
        await reassign(name, (0, replicas))
    fixed: dict[str, Any] = {"AllowReplicationFactorChange": False}
    await reassign("more replicas, not allowed", (0, [1, 2, 3]), **fixed)
    await reassign("more replicas", (0, [1, 2, 3]))
    await asyncio.sleep(1.5)
    await list_all("of a partition", [{"Name": topic, "PartitionIndexes": [0]}])
    await list_all("of no topic", [])
    await list_all("of all", None)
    await list_all("of an unknown topic", [{"Name": topic + "x", "PartitionIndexes": [0]}])
    await list_all("of an unknown partition", [{"Name": topic, "PartitionIndexes": [9]}])
    await describe("with more replicas")
    await reassign("one replica", (0, [2]))
    await asyncio.sleep(1.5)
    await describe("with one replica")
    await reassign("none")
    await reassign("a partition twice", (1, [1]), (1, [2]), version=0)


async def log_dirs(recorder: Recorder) -> None:
    topic = await recorder.topic("ld", assignment=[[1, 2, 3], [1, 2, 3]])
    await recorder.broker(Leader(topic))
    asked = {
        "some": [{"Topic": topic, "Partitions": [0, 1, 9]}],
        "none": [],
        "unknown topic": [{"Topic": topic + "x", "Partitions": [0]}],
    }
    for version in versions_of("DescribeLogDirs"):
        for name, topics in asked.items():
            answer = await recorder.ask_quietly("DescribeLogDirs", version, {"Topics": topics})
            for result in answer["Results"]:
                result["LogDir"] = "<folder>"
                for size in ("TotalBytes", "UsableBytes"):
                    if size in result:
                        result[size] = result[size] > 0
            recorder.note(f"DescribeLogDirs v{version} {name}", answer)
    moves = {
        "unknown folder": [
            {"Path": "/nope", "Topics": [{"Name": topic, "Partitions": [0]}]},
        ],
        "relative folder": [
            {"Path": "relative", "Topics": [{"Name": topic + "x", "Partitions": [0]}]},
        ],
        "none": [],
    }
    for version in versions_of("AlterReplicaLogDirs"):
        for name, dirs in moves.items():
            await recorder.ask("AlterReplicaLogDirs", version, name, {"Dirs": dirs})
