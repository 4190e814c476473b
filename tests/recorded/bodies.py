"""Bodies of requests that several programs send."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from tests.recorded.batches import batch
from tests.recorded.codec import Message, message_bytes

IDS_IN_PRODUCE = IDS_IN_FETCH = 13
IDS_IN_OFFSETS = 10
"""The versions since which topics stand by id."""


def _topic(name: str, topic_id: UUID | None, by_id: bool, key: str = "Name") -> Message:
    return {"TopicId": topic_id} if by_id else {key: name}


def produce_body(
    topic: str,
    batches: Iterable[tuple[int, bytes]],
    *,
    version: int = 12,
    topic_id: UUID | None = None,
    acks: int = -1,
    transactional_id: str | None = None,
) -> Message:
    """Return a Produce request of batches by partition."""
    return {
        "TransactionalId": transactional_id,
        "Acks": acks,
        "TimeoutMs": 10_000,
        "TopicData": [
            {
                **_topic(topic, topic_id, version >= IDS_IN_PRODUCE),
                "PartitionData": [{"Index": index, "Records": data} for index, data in batches],
            }
        ],
    }


def fetch_body(
    topic: str,
    partitions: Iterable[tuple[int, int] | tuple[int, int, Mapping[str, Any]]] = (),
    *,
    version: int = 12,
    topic_id: UUID | None = None,
    wait_ms: int = 10,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_bytes: int = 1 << 20,
    isolation: int = 0,
    session: tuple[int, int] = (0, -1),
    forgotten: Sequence[int] = (),
    rack: str = "",
) -> Message:
    """Return a Fetch request.

    Args:
        topic: the topic.
        partitions: each partition's index and offset, and more of its fields.
        version: the request's version.
        topic_id: the topic's id, where that is asked for.
        wait_ms: the longest wait.
        min_bytes: the bytes that end it.
        max_bytes: the most bytes.
        partition_bytes: the most bytes of a partition.
        isolation: 1: committed records alone.
        session: the session's id and epoch.
        forgotten: the partitions that leave the session.
        rack: the consumer's rack.
    """
    by_id = version >= IDS_IN_FETCH
    named = _topic(topic, topic_id, by_id, "Topic")
    asked = [
        {
            "Partition": index,
            "FetchOffset": offset,
            "PartitionMaxBytes": partition_bytes,
            **(more[0] if more else {}),
        }
        for index, offset, *more in partitions
    ]
    return {
        "MaxWaitMs": wait_ms,
        "MinBytes": min_bytes,
        "MaxBytes": max_bytes,
        "IsolationLevel": isolation,
        "SessionId": session[0],
        "SessionEpoch": session[1],
        "RackId": rack,
        "Topics": [{**named, "Partitions": asked}] if asked else [],
        "ForgottenTopicsData": [{**named, "Partitions": list(forgotten)}] if forgotten else [],
    }


def list_offsets_body(
    topic: str,
    timestamps: Iterable[tuple[int, int] | tuple[int, int, Mapping[str, Any]]],
    isolation: int = 0,
    **more: Any,
) -> Message:
    """Return a ListOffsets request of timestamps by partition."""
    partitions = [
        {"PartitionIndex": index, "Timestamp": timestamp, **(fields[0] if fields else {})}
        for index, timestamp, *fields in timestamps
    ]
    topics = [{"Name": topic, "Partitions": partitions}]
    return {"ReplicaId": -1, "IsolationLevel": isolation, "Topics": topics, **more}


def commit_body(
    group: str,
    topic: str,
    offsets: Iterable[tuple[int, int, str | None]],
    *,
    member: str = "",
    generation: int = -1,
    version: int = 9,
    topic_id: UUID | None = None,
) -> Message:
    """Return an OffsetCommit request of partitions, offsets and metadata."""
    partitions = [
        {"PartitionIndex": index, "CommittedOffset": offset, "CommittedMetadata": metadata}
        for index, offset, metadata in offsets
    ]
    named = _topic(topic, topic_id, version >= IDS_IN_OFFSETS)
    return {
        "GroupId": group,
        "GenerationIdOrMemberEpoch": generation,
        "MemberId": member,
        "Topics": [{**named, "Partitions": partitions}],
    }


def offset_fetch_body(
    group: str,
    topic: str,
    partitions: Sequence[int] | None,
    *,
    version: int = 9,
    topic_id: UUID | None = None,
    stable: bool = False,
    member: str | None = None,
    epoch: int = -1,
) -> Message:
    """Return an OffsetFetch request; without partitions it asks for all."""
    topics = None
    if partitions is not None:
        named = _topic(topic, topic_id, version >= IDS_IN_OFFSETS)
        topics = [{**named, "PartitionIndexes": list(partitions)}]
    asked: Message = {"GroupId": group, "Topics": topics}
    needs_stable = {"RequireStable": stable} if version >= 7 else {}
    if version < 8:
        return asked | needs_stable
    if version >= 9:
        asked |= {"MemberId": member, "MemberEpoch": epoch}
    return {"Groups": [asked], **needs_stable}


# Classic groups.

RANGE = (("range", b"\0" * 8),)


def subscription(*topics: str) -> bytes:
    """Return what a classic consumer says about its topics."""
    return message_bytes("ConsumerProtocolSubscription", 0, {"Topics": list(topics)})


def assignment(topic: str, *partitions: int) -> bytes:
    """Return what a classic leader gives a consumer."""
    assigned = [{"Topic": topic, "Partitions": list(partitions)}]
    return message_bytes("ConsumerProtocolAssignment", 0, {"AssignedPartitions": assigned})


def join_body(
    group: str,
    member: str = "",
    *,
    protocols: Sequence[tuple[str, bytes]] = RANGE,
    protocol_type: str = "consumer",
    session_ms: int = 10_000,
    rebalance_ms: int = 20_000,
    instance: str | None = None,
) -> Message:
    """Return a JoinGroup request."""
    body: Message = {
        "GroupId": group,
        "SessionTimeoutMs": session_ms,
        "RebalanceTimeoutMs": rebalance_ms,
        "MemberId": member,
        "ProtocolType": protocol_type,
        "Protocols": [{"Name": name, "Metadata": data} for name, data in protocols],
    }
    return body if instance is None else body | {"GroupInstanceId": instance}


def sync_body(
    group: str,
    member: str,
    generation: int,
    assignments: Mapping[str, bytes] | None = None,
    *,
    version: int = 5,
    protocol_type: str | None = "consumer",
    protocol: str | None = "range",
    instance: str | None = None,
) -> Message:
    """Return a SyncGroup request."""
    body: Message = {
        "GroupId": group,
        "GenerationId": generation,
        "MemberId": member,
        "Assignments": [
            {"MemberId": one, "Assignment": data} for one, data in (assignments or {}).items()
        ],
    }
    if version >= 5:
        body |= {"ProtocolType": protocol_type, "ProtocolName": protocol}
    return body if instance is None else body | {"GroupInstanceId": instance}


def heartbeat_body(
    group: str, member: str, generation: int, instance: str | None = None
) -> Message:
    """Return a Heartbeat request."""
    body = {"GroupId": group, "GenerationId": generation, "MemberId": member}
    return body if instance is None else body | {"GroupInstanceId": instance}


def leave_body(group: str, *members: tuple[str, str | None]) -> Message:
    """Return a LeaveGroup request of members by id and instance."""
    named = [{"MemberId": member, "GroupInstanceId": instance} for member, instance in members]
    return {"GroupId": group, "Members": named}


# Transactions.


def init_body(
    transactional_id: str | None, timeout_ms: int = 60_000, producer: tuple[int, int] = (-1, -1)
) -> Message:
    """Return an InitProducerId request."""
    return {
        "TransactionalId": transactional_id,
        "TransactionTimeoutMs": timeout_ms,
        "ProducerId": producer[0],
        "ProducerEpoch": producer[1],
    }


def add_partitions_body(
    transactional_id: str, producer: tuple[int, int], topic: str, *partitions: int
) -> Message:
    """Return an AddPartitionsToTxn request of a client."""
    return {
        "V3AndBelowTransactionalId": transactional_id,
        "V3AndBelowProducerId": producer[0],
        "V3AndBelowProducerEpoch": producer[1],
        "V3AndBelowTopics": [{"Name": topic, "Partitions": list(partitions)}],
    }


def end_body(transactional_id: str, producer: tuple[int, int], commits: bool = True) -> Message:
    """Return an EndTxn request."""
    return {
        "TransactionalId": transactional_id,
        "ProducerId": producer[0],
        "ProducerEpoch": producer[1],
        "Committed": commits,
    }


def txn_commit_body(
    transactional_id: str,
    producer: tuple[int, int],
    group: str,
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    member: str = "",
    generation: int = -1,
    version: int = 5,
) -> Message:
    """Return a TxnOffsetCommit request of one partition."""
    committed: Message = {"PartitionIndex": partition, "CommittedOffset": offset}
    committed["CommittedMetadata"] = "metadata"
    body: Message = {
        "TransactionalId": transactional_id,
        "GroupId": group,
        "ProducerId": producer[0],
        "ProducerEpoch": producer[1],
        "Topics": [{"Name": topic, "Partitions": [committed]}],
    }
    if version >= 3:
        body |= {"GenerationId": generation, "MemberId": member}
    return body


def transactional_batch(producer: tuple[int, int], sequence: int, records: int = 1) -> bytes:
    """Return a batch of a transaction."""
    pairs = [(b"k", b"%d" % number) for number in range(records)]
    return batch(pairs, producer=(*producer, sequence), attributes=16)
