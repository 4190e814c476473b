"""Brokers that are killed and come back."""

from __future__ import annotations

import asyncio

from tests.recorded.batches import batch
from tests.recorded.bodies import (
    commit_body,
    end_body,
    fetch_body,
    heartbeat_body,
    init_body,
    list_offsets_body,
    offset_fetch_body,
    produce_body,
    subscription,
    sync_body,
    transactional_batch,
)
from tests.recorded.programs.groups import join
from tests.recorded.recorder import TRANSACTION, Coordinator, Leader, Recorder

_NOTICED_S = 15.0
"""The longest time until a controller misses a broker."""

_BACK_S = 5.0


async def coordinator_of_a_group(recorder: Recorder) -> None:
    """Members of a classic group don't notice another coordinator."""
    topic, group = await recorder.topic("dcg", partitions=2, replicas=3), recorder.name("dcg")
    to = Coordinator(group)
    joined = await join(
        recorder, group, protocols=(("range", subscription(topic)),), session_ms=60_000
    )
    member, generation = joined["MemberId"], joined["GenerationId"] or 1
    body = sync_body(group, member, generation, {member: b"A"})
    await recorder.ask("SyncGroup", 5, "", body, to)
    offsets = [(0, 5, "")]
    commit = commit_body(group, topic, offsets, member=member, generation=generation)
    await recorder.ask("OffsetCommit", 9, "", commit, to)
    dead = await recorder.broker(to)
    await recorder.kill(dead)
    await asyncio.sleep(_NOTICED_S)
    beat = heartbeat_body(group, member, generation)
    await recorder.settled("Heartbeat", 4, "at the next coordinator", beat, to)
    await recorder.ask("OffsetCommit", 9, "at the next coordinator", commit, to)
    body = offset_fetch_body(group, topic, [0])
    await recorder.ask("OffsetFetch", 9, "at the next coordinator", body, to)
    await recorder.ask("DescribeGroups", 6, "at the next coordinator", {"Groups": [group]}, to)
    await recorder.revive(dead)
    await asyncio.sleep(_BACK_S)


async def leader_without_followers(recorder: Recorder) -> None:
    """A partition whose one replica is dead."""
    topic = await recorder.topic("dl1", assignment=[[3]])
    produce = produce_body(topic, [(0, batch())])
    await recorder.ask("Produce", 12, "", produce, Leader(topic))
    await recorder.kill(3)
    await asyncio.sleep(_NOTICED_S)
    await _describe(recorder, topic, "dead")
    await recorder.ask("Produce", 12, "dead", produce, 1)
    await recorder.ask("Fetch", 12, "dead", fetch_body(topic, [(0, 0)]), 1)
    await recorder.ask("ListOffsets", 8, "dead", list_offsets_body(topic, [(0, -1)]), 1)
    partitions = [{"Topic": topic, "Partitions": [0]}]
    for kind in (0, 1):
        body = {"ElectionType": kind, "TopicPartitions": partitions, "TimeoutMs": 5_000}
        await recorder.ask("ElectLeaders", 2, f"type {kind}", body)
    await recorder.revive(3)
    await asyncio.sleep(_BACK_S)
    await recorder.ask("Fetch", 12, "back", fetch_body(topic, [(0, 0)]), Leader(topic))
    await _describe(recorder, topic, "back")


async def leader_with_followers(recorder: Recorder) -> None:
    """A partition that gets another leader, whose epoch is the next."""
    topic = await recorder.topic("dl3", assignment=[[3, 1, 2]])
    produce = produce_body(topic, [(0, batch())])
    await recorder.ask("Produce", 12, "", produce, Leader(topic))
    await recorder.kill(3)
    await asyncio.sleep(_NOTICED_S)
    await _describe(recorder, topic, "dead")
    leader = Leader(topic)
    await recorder.ask("Produce", 12, "next leader", produce, leader)
    for epoch in (0, 1, 2):
        asked = {"Partition": 0, "CurrentLeaderEpoch": -1, "LeaderEpoch": epoch}
        body = {"ReplicaId": -2, "Topics": [{"Topic": topic, "Partitions": [asked]}]}
        await recorder.ask("OffsetForLeaderEpoch", 4, f"epoch {epoch}", body, leader)
        partition = (0, 0, {"CurrentLeaderEpoch": epoch})
        body = fetch_body(topic, [partition])
        await recorder.ask("Fetch", 12, f"epoch {epoch}", body, leader)
    await recorder.revive(3)
    await asyncio.sleep(_BACK_S)
    await _describe(recorder, topic, "back")
    partitions = [{"Topic": topic, "Partitions": [0]}]
    body = {"ElectionType": 0, "TopicPartitions": partitions, "TimeoutMs": 5_000}
    await recorder.ask("ElectLeaders", 2, "preferred", body)
    await asyncio.sleep(1)
    await recorder.ask("Fetch", 12, "old leader", fetch_body(topic, [(0, 0)]), 3)
    await _describe(recorder, topic, "preferred")


async def too_few_replicas(recorder: Recorder) -> None:
    """Records of a partition that has too few replicas in sync, in a transaction and without."""
    settings = {"min.insync.replicas": "2"}
    topic = await recorder.topic("dtf", assignment=[[1, 3]], configs=settings)
    name, leader = recorder.name("dtf"), Leader(topic)
    to = Coordinator(name, TRANSACTION)
    found = await recorder.settled("InitProducerId", 5, "", init_body(name), to)
    producer = found["ProducerId"], found["ProducerEpoch"]
    await recorder.kill(3)
    await asyncio.sleep(_NOTICED_S)
    for acks in (-1, 1):
        body = produce_body(topic, [(0, batch())], acks=acks)
        await recorder.ask("Produce", 12, f"acks {acks}", body, leader)
    data = [(0, transactional_batch(producer, 0))]
    body = produce_body(topic, data, transactional_id=name)
    await recorder.ask("Produce", 12, "of a transaction", body, leader)
    asked = {"TransactionalIds": [name]}
    await recorder.ask("DescribeTransactions", 0, "refused", asked, to)
    await recorder.revive(3)
    await asyncio.sleep(_BACK_S)
    await recorder.ask("Produce", 12, "of a transaction, back", body, leader)
    await recorder.ask("DescribeTransactions", 0, "back", asked, to)
    await recorder.ask("EndTxn", 5, "back", end_body(name, producer), to)


async def _describe(recorder: Recorder, topic: str, when: str) -> None:
    body = {"Topics": [{"Name": topic}], "AllowAutoTopicCreation": False}
    await recorder.ask("Metadata", 12, when, body)
    body = {"Topics": [{"Name": topic}], "ResponsePartitionLimit": 10}
    await recorder.ask("DescribeTopicPartitions", 0, when, body)
    await recorder.ask("DescribeCluster", 2, when, {"IncludeFencedBrokers": True})
