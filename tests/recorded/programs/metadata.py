"""Metadata of brokers and topics, and the versions that a broker speaks."""

from __future__ import annotations

import asyncio
import struct
from uuid import UUID

from tests.recorded.codec import Message, read_response, versions_of
from tests.recorded.recorder import NO_ID, Connection, Recorder

_UNKNOWN_ID = UUID(int=77)
_API_VERSIONS_KEY = 18


async def api_versions(recorder: Recorder) -> None:
    for version in versions_of("ApiVersions"):
        body = {"ClientSoftwareName": "judge", "ClientSoftwareVersion": "1"}
        await recorder.ask("ApiVersions", version, "", body)
    for software, software_version in (("", "!!"), ("-x", "1.0"), ("x", "1 0"), ("a.b-c", "1-rc")):
        body = {"ClientSoftwareName": software, "ClientSoftwareVersion": software_version}
        await recorder.ask("ApiVersions", 4, f"software {software!r} {software_version!r}", body)


async def api_versions_of_the_future(recorder: Recorder) -> None:
    for version in (5, 99, -1):
        connection = await Connection.open(*recorder.addresses[min(recorder.addresses)])
        header = struct.pack(">hhih", _API_VERSIONS_KEY, version, 7, 1) + b"x\0"
        connection.send_frame(header + b"\x02a\x02b\0")
        try:
            async with asyncio.timeout(5):
                frame = await connection.receive_frame()
            recorder.note(
                f"ApiVersions v{version} as v0", read_response("ApiVersions", 0, frame)[1]
            )
        except (OSError, EOFError, ValueError, TimeoutError) as error:
            recorder.note(f"ApiVersions v{version} as v0", type(error).__name__)
        connection.close()


async def metadata(recorder: Recorder) -> None:
    topic = await recorder.topic("md", partitions=3, replicas=3)
    topic_id = await recorder.topic_id(topic)
    bad_names = ("bad name!", "", ".", "x" * 250)
    for version in versions_of("Metadata"):
        may_refuse = {} if version < 4 else {"AllowAutoTopicCreation": False}
        cases: dict[str, Message] = {
            "known": {"Topics": [{"Name": topic}], **may_refuse},
            "invalid names": {"Topics": [{"Name": name} for name in bad_names]},
            "same topic twice": {"Topics": [{"Name": topic}] * 2, **may_refuse},
        }
        if version >= 1:
            cases["no topics"] = {"Topics": []}
        if version >= 4:
            cases["unknown"] = {"Topics": [{"Name": f"{topic}-nope"}], **may_refuse}
        if version >= 8:
            authorized = ["IncludeTopicAuthorizedOperations"]
            if version <= 10:
                authorized.append("IncludeClusterAuthorizedOperations")
            cases["authorized operations"] = cases["known"] | dict.fromkeys(authorized, True)
        if version >= 10:
            for name, asked in {
                "by id": {"Name": None, "TopicId": topic_id},
                "by an unknown id": {"Name": None, "TopicId": _UNKNOWN_ID},
                "by neither": {"Name": None, "TopicId": NO_ID},
                "by both": {"Name": topic, "TopicId": topic_id},
            }.items():
                cases[name] = {"Topics": [asked]}
        for name, body in cases.items():
            await recorder.ask("Metadata", version, name, body)


async def automatic_topics(recorder: Recorder) -> None:
    name = recorder.name("auto")
    similar = [{"Name": name.replace("-", mark)} for mark in "_."]
    for what, topics in {"new": [{"Name": name}], "similar names": similar}.items():
        body = {"Topics": topics, "AllowAutoTopicCreation": True}
        await recorder.ask("Metadata", 12, f"{what}, at first", body)
        await asyncio.sleep(1.5)
        await recorder.ask("Metadata", 12, f"{what}, later", body)


async def describe_cluster(recorder: Recorder) -> None:
    for version in versions_of("DescribeCluster"):
        await recorder.ask("DescribeCluster", version, "")
        authorized = {"IncludeClusterAuthorizedOperations": True}
        await recorder.ask("DescribeCluster", version, "authorized operations", authorized)
        if version >= 1:
            for endpoints in (0, 2, 3):
                body = {"EndpointType": endpoints}
                await recorder.ask("DescribeCluster", version, f"endpoints {endpoints}", body)
        if version >= 2:
            fenced = {"IncludeFencedBrokers": True}
            await recorder.ask("DescribeCluster", version, "fenced brokers", fenced)


async def topic_partitions(recorder: Recorder) -> None:
    topic = await recorder.topic("dtp", partitions=5, replicas=3)

    async def ask(
        name: str, *topics: str, limit: int = 2000, cursor: tuple[str, int] | None = None
    ) -> None:
        place = cursor and {"TopicName": cursor[0], "PartitionIndex": cursor[1]}
        body = {
            "Topics": [{"Name": one} for one in topics],
            "ResponsePartitionLimit": limit,
            "Cursor": place,
        }
        await recorder.ask("DescribeTopicPartitions", 0, name, body)

    await ask("one topic", topic)
    await ask("an unknown topic, too", topic + "x", topic)
    for limit in (2, 0, -1):
        await ask(f"limit {limit}", topic, limit=limit)
    for partition in (2, 9, -1):
        await ask(f"from partition {partition}", topic, limit=2, cursor=(topic, partition))
    await ask("from another topic", topic, cursor=(topic + "x", 0))
    await ask("invalid name", "bad!")
    await ask("empty name", "")
    await ask("same topic twice", topic, topic)
