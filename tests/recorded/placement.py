"""The replicas of the coordinators' topics, placed at a real Kafka as at ours.

A real Kafka places them at random. Where a broker is killed, a group's coordinator would change at
one cluster alone: with it what a coordinator keeps in memory, as the ids of members that have yet
to join. The topics are created so: moved later, their leaders would have later epochs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from tests.recorded.recorder import Answer, Recorder

_CONFIGS: Mapping[str, Mapping[str, str]] = {
    "__consumer_offsets": {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    },
    "__transaction_state": {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "2",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    },
}
"""The topics, and the settings with which brokers create them at the first need."""

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
    """Create the coordinators' topics, and wait until they are there."""
    recorder = Recorder(host, port, _RUN)
    await recorder.start()
    topics = [
        {
            "Name": topic,
            "NumPartitions": -1,
            "ReplicationFactor": -1,
            "Configs": [{"Name": key, "Value": value} for key, value in _CONFIGS[topic].items()],
            "Assignments": [
                {"PartitionIndex": partition, "BrokerIds": list(replicas)}
                for partition, replicas in enumerate(partitions)
            ],
        }
        for topic, partitions in placement.items()
    ]
    try:
        await recorder.ask_quietly("CreateTopics", 7, {"Topics": topics, "timeoutMs": 20_000})
        while _replicas(await _describe(recorder)) != placement:
            await asyncio.sleep(0.1)
    finally:
        recorder.close()


async def _describe(recorder: Recorder) -> Answer:
    body = {"Topics": [{"Name": topic} for topic in _CONFIGS], "AllowAutoTopicCreation": False}
    return await recorder.ask_quietly("Metadata", 12, body)


def _replicas(answer: Answer) -> Placement:
    return {
        topic["Name"]: [
            list(one["ReplicaNodes"])
            for one in sorted(topic["Partitions"], key=lambda one: int(one["PartitionIndex"]))
        ]
        for topic in answer["Topics"]
    }
