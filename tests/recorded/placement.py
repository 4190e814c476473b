"""The replicas of the coordinators' topics, placed at a real Kafka as at ours.

A real Kafka places them at random. Where a broker is killed, a group's coordinator would change at
one cluster alone: with it what a coordinator keeps in memory, as the ids of members that have yet
to join.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from tests.recorded.recorder import Answer, Recorder

_TOPICS = ("__consumer_offsets", "__transaction_state")
_RUN = "warm-up"
Placement = Mapping[str, Sequence[Sequence[int]]]
"""The replicas of each partition, the preferred leader first, by topic."""


async def read_placement(host: str, port: int) -> Placement:
    """Return the placement of the coordinators' topics, which are there."""
    recorder = Recorder(host, port, _RUN)
    await recorder.start()
    try:
        return _replicas(await _describe(recorder))
    finally:
        recorder.close()


async def place(host: str, port: int, placement: Placement) -> None:
    """Move the coordinators' topics, and wait until the preferred leaders lead."""
    recorder = Recorder(host, port, _RUN)
    await recorder.start()
    topics = [
        {
            "Name": topic,
            "Partitions": [
                {"PartitionIndex": partition, "Replicas": list(replicas)}
                for partition, replicas in enumerate(partitions)
            ],
        }
        for topic, partitions in placement.items()
    ]
    body = {"TimeoutMs": 20_000, "Topics": topics}
    try:
        await recorder.ask_quietly("AlterPartitionReassignments", 0, body)
        while _replicas(await _describe(recorder)) != placement:
            await asyncio.sleep(0.1)
        await recorder.until_balanced()
    finally:
        recorder.close()


async def _describe(recorder: Recorder) -> Answer:
    body = {"Topics": [{"Name": topic} for topic in _TOPICS], "AllowAutoTopicCreation": False}
    return await recorder.ask_quietly("Metadata", 12, body)


def _replicas(answer: Answer) -> Placement:
    return {
        topic["Name"]: [
            list(one["ReplicaNodes"])
            for one in sorted(topic["Partitions"], key=lambda one: int(one["PartitionIndex"]))
        ]
        for topic in answer["Topics"]
    }
