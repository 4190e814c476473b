"""The state that a cluster tells, by requests of its newest versions."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from purgatory.cluster.records import Record
from purgatory.kafka.errors import ErrorCode
from tests.world.acts import CHANGED_CONFIG, COMPACTED_CONFIG, PARTITIONS
from tests.world.history import Description, History, Partition
from tests.world.pairwise import Row
from tests.world.reading import fetch
from tests.world.wire_client import (
    CONSUMER_DESCRIBE,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    GROUP,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
    SHARE_DESCRIBE,
    SHARE_OFFSETS,
    STREAMS_DESCRIBE,
    TRANSACTION,
    NoAnswerError,
    TransactionState,
    WireClient,
)
from tests.world.wire_members import GROUP_ID, TOPIC
from tests.world.wire_producer import SIDE_TOPIC, TRANSACTIONAL_ID
from tests.world.wiretap import WireTap, read_assignment, read_tasks

_TOPIC_RESOURCE = 2
_WATCH_S = 4.0
_EARLIEST, _LATEST = -2, -1
_CLASSIC = ("classic", "static")
_DESCRIBE = {"consumer": CONSUMER_DESCRIBE, "share": SHARE_DESCRIBE, "streams": STREAMS_DESCRIBE}

# Records.


async def read_all(client: WireClient, row: Row) -> dict[int, tuple[int, int, str]]:
    """Read the topic to its ends; return each partition's end, records, and their hash.

    Of a compacted topic, whose replicas are compacted each by itself, the last records of keys
    count alone, and with transactions none: aborted ones go as well.
    """
    count = (await client.refresh([TOPIC]))[TOPIC]
    ends = await _offsets(client, count, _LATEST)
    positions = await _offsets(client, count, _EARLIEST)
    records: dict[int, dict[object, Record]] = {number: {} for number in ends}
    is_compacted = row["topic"] == "compacted"
    async with asyncio.timeout(120):
        while left := {one: at for one, at in positions.items() if at < ends[one]}:
            for number, fetched in (await fetch(client, TOPIC, left, 500)).items():
                positions[number] = max(positions[number], fetched.next_offset)
                for record in fetched.records:
                    records[number][record.key if is_compacted else record.offset] = record
    if is_compacted and row["producer"] == "transactional":
        records = {number: {} for number in ends}
    return {
        number: (end, len(records[number]), _hash(records[number].values()))
        for number, end in ends.items()
    }


def _hash(records: Iterable[Record]) -> str:
    return hashlib.sha256(repr(sorted(records)).encode()).hexdigest()[:12]


async def _offsets(client: WireClient, count: int, timestamp: int) -> dict[int, int]:
    found = {}
    for number in range(count):
        one = {"partition_index": number, "current_leader_epoch": -1, "timestamp": timestamp}
        asked = {"replica_id": -1, "topics": [{"name": TOPIC, "partitions": [one]}]}
        answer = await client.ask(await client.leader(TOPIC, number), LIST_OFFSETS, asked)
        [partition] = answer.topics[0].partitions
        assert partition.error_code == ErrorCode.NONE, partition
        found[number] = partition.offset
    return found


# Groups.


async def watch_offsets(admin: WireClient, row: Row) -> None:
    """Ask for the group's offsets again and again; the wiretap reads the answers."""
    if row["group"] in ("none", "share"):
        return
    while True:
        await asyncio.sleep(_WATCH_S)
        try:
            await _committed(admin)
        except NoAnswerError:
            admin.forget()


async def _committed(admin: WireClient) -> dict[Partition, int]:
    """Return the committed offsets of the group, by partition."""
    counts = await admin.refresh([TOPIC, SIDE_TOPIC])
    topics = [
        {"topic_id": admin.topic_ids[name], "partition_indexes": list(range(count))}
        for name, count in counts.items()
    ]
    group = {"group_id": GROUP_ID, "member_id": None, "member_epoch": -1, "topics": topics}
    answer = await admin.ask_coordinator(GROUP_ID, GROUP, OFFSET_FETCH, {"groups": [group]})
    [of_group] = answer.groups
    if of_group.error_code != ErrorCode.NONE:
        admin.forget_coordinator(GROUP_ID, GROUP)
        raise NoAnswerError(f"the offsets of {GROUP_ID}: {of_group.error_code}")
    return {
        (str(topic.topic_id), one.partition_index): one.committed_offset
        for topic in of_group.topics
        for one in topic.partitions
        if one.error_code == ErrorCode.NONE and one.committed_offset >= 0
    }


async def _group(admin: WireClient, row: Row) -> Any:
    """Describe the group, by the request of its type."""
    if row["group"] in _CLASSIC:
        asked: dict[str, Any] = {"groups": [GROUP_ID]}
        api_key = DESCRIBE_GROUPS
    else:
        asked = {"group_ids": [GROUP_ID]}
        api_key = _DESCRIBE[row["group"]]
    answer = await admin.ask_coordinator(GROUP_ID, GROUP, api_key, asked)
    return answer.groups[0]


async def _share_offsets(admin: WireClient) -> dict[int, int]:
    return {number: one.start_offset for number, one in (await _share_states(admin)).items()}


async def _share_states(admin: WireClient) -> dict[int, Any]:
    counts = await admin.refresh([TOPIC])
    topic = {"topic_name": TOPIC, "partitions": list(range(counts[TOPIC]))}
    asked = {"groups": [{"group_id": GROUP_ID, "topics": [topic]}]}
    answer = await admin.ask_coordinator(GROUP_ID, GROUP, SHARE_OFFSETS, asked)
    return {
        one.partition_index: one
        for of_topic in answer.groups[0].topics
        for one in of_topic.partitions
    }


# Descriptions, beside what was told.


async def descriptions(
    admin: WireClient, row: Row, tap: WireTap, history: History
) -> list[Description]:
    """Return what the cluster says of groups, producers and topics, beside what it has told."""
    admin.forget()
    await admin.refresh([TOPIC, SIDE_TOPIC])
    found = [*await _topics(admin, row)]
    if row["group"] != "none":
        found += await _members(admin, row, tap)
    if row["group"] not in ("none", "share"):
        told = {
            offset.partition: offset.offset
            for offset in sorted(history.offsets, key=lambda one: one.told_s)
            if offset.is_commit
        }
        known = await _committed(admin)
        topics = {str(topic_id) for topic_id in admin.topic_ids.values()}
        current = {key: offset for key, offset in told.items() if key[0] in topics}
        found.append(Description("group offsets", "committed offsets", current, known))
    if row["group"] != "none":
        found.append(await _unread(admin, row))
    if row["producer"] == "transactional":
        found.append(await _transaction(admin, tap))
    return found


async def _unread(admin: WireClient, row: Row) -> Description:
    """The partitions whose ends the group has not reached, of which there are none."""
    ends = await _offsets(admin, (await admin.refresh([TOPIC]))[TOPIC], _LATEST)
    if (row["group"], row["membership"], row["topic"]) == ("static", "return", "partitions-added"):
        # In Kafka, too, a leader that is back takes the partitions added meanwhile for known.
        ends = {number: end for number, end in ends.items() if number < PARTITIONS}
    if row["group"] == "share":
        # A start offset lags by a write, as in Kafka; the lag counts what was acknowledged too.
        reached = {
            number: ends[number] - one.lag for number, one in (await _share_states(admin)).items()
        }
    else:
        topic_id = str(admin.topic_ids[TOPIC])
        reached = {
            number: offset
            for (of, number), offset in (await _committed(admin)).items()
            if of == topic_id
        }
    unread = {
        number: f"up to {reached.get(number)} of {end}"
        for number, end in ends.items()
        if reached.get(number, 0) < end
    }
    return Description(f"{row['group']} group", "unread records", {}, unread)


async def _members(admin: WireClient, row: Row, tap: WireTap) -> list[Description]:
    group = await _group(admin, row)
    live = tap.live_members(GROUP_ID)
    told = {member: sorted(tap.assigned.get((GROUP_ID, member), ())) for member in live}
    if row["group"] in _CLASSIC:
        described = {
            one.member_id: sorted(read_assignment(one.member_assignment)) for one in group.members
        }
        return [
            Description("classic group coordinator", "assignments", told, described),
            Description("classic group coordinator", "state", "Stable", group.group_state),
        ]
    part = f"{row['group']} group coordinator"
    described = {
        one.member_id: sorted(read_tasks(one.assignment.active_tasks))
        if row["group"] == "streams"
        else sorted(
            (str(topic.topic_id), number)
            for topic in one.assignment.topic_partitions
            for number in topic.partitions
        )
        for one in group.members
        if (GROUP_ID, one.member_id) not in tap.untold
    }
    told = {member: of for member, of in told.items() if (GROUP_ID, member) not in tap.untold}
    epochs = {one.member_id: one.member_epoch for one in group.members}
    told_epochs = {member: tap.member_epochs[GROUP_ID, member] for member in live}
    return [
        Description(part, "assignments", told, described),
        Description(part, "member epochs", told_epochs, epochs),
        Description(part, "state", "Stable", group.group_state),
    ]


async def _transaction(admin: WireClient, tap: WireTap) -> Description:
    one = await _described_transaction(admin)
    told = tap.producers.get(TRANSACTIONAL_ID)
    known = (one.producer_id, one.producer_epoch)
    return Description("transaction coordinator", "producer id and epoch", told, known)


async def _described_transaction(admin: WireClient) -> TransactionState:
    asked = {"transactional_ids": [TRANSACTIONAL_ID]}
    found = await admin.ask_coordinator(TRANSACTIONAL_ID, TRANSACTION, DESCRIBE_TRANSACTIONS, asked)
    state: TransactionState = found[0]
    return state


async def initialize_producer(admin: WireClient) -> None:
    """Begin anew with the transactional id, as the next process of a producer does."""
    asked = {
        "transactional_id": TRANSACTIONAL_ID,
        "transaction_timeout": timedelta(seconds=30),
        "producer_id": -1,
        "producer_epoch": -1,
    }
    for _ in range(30):
        answer = await admin.ask_coordinator(TRANSACTIONAL_ID, TRANSACTION, INIT_PRODUCER_ID, asked)
        if answer.error_code == ErrorCode.NONE:
            return
        admin.forget()
        await asyncio.sleep(1)
    raise NoAnswerError(f"{TRANSACTIONAL_ID} can't begin anew: {answer}")


async def _topics(admin: WireClient, row: Row) -> list[Description]:
    """Each broker's description of the topic, beside the first one's and the request's."""
    by_broker = {}
    asked = {"topics": [{"name": TOPIC, "topic_id": None}]}
    for broker in admin.cluster.brokers:
        [topic] = (await admin.ask(broker, METADATA, asked)).topics
        by_broker[broker] = [
            (one.partition_index, one.leader_id, one.leader_epoch, sorted(one.isr_nodes))
            for one in topic.partitions
        ]
    first = by_broker[min(by_broker)]
    found = [
        Description("metadata", f"partitions by broker {broker}", first, known)
        for broker, known in by_broker.items()
    ]
    changes = {"config-changed": CHANGED_CONFIG, "compacted": COMPACTED_CONFIG}
    wanted = changes.get(row["topic"], {})
    configs = await _configs(admin)
    known_configs = {name: configs.get(name) for name in wanted}
    return [*found, Description("topic settings", TOPIC, dict(wanted), known_configs)]


async def _configs(admin: WireClient) -> dict[str, str | None]:
    resource = {
        "resource_type": _TOPIC_RESOURCE,
        "resource_name": TOPIC,
        "configuration_keys": None,
    }
    broker = next(iter(admin.cluster.brokers))
    answer = await admin.ask(broker, DESCRIBE_CONFIGS, {"resources": [resource]})
    return {one.name: one.value for one in answer.results[0].configs}


# The state before and after a restart.


async def snapshot(admin: WireClient, row: Row) -> Mapping[str, Any]:
    """Return all that a restart must not change, by part of the product and name."""
    counts = await admin.refresh([TOPIC, SIDE_TOPIC])
    found: dict[str, Any] = {
        f"controller: {name}": (str(admin.topic_ids[name]), count) for name, count in counts.items()
    }
    found["topic settings: data"] = await _configs(admin)
    for number, read in (await read_all(admin, row)).items():
        found[f"log: data-{number}"] = read
        found[f"producer state: data-{number}"] = await _producers(admin, number)
    if row["group"] in ("classic", "static", "consumer", "streams"):
        found["group offsets: readers"] = await _committed(admin)
    if row["group"] in _DESCRIBE:
        group = await _group(admin, row)
        part = f"{row['group']} group coordinator"
        found[f"{part}: readers"] = (group.group_state, group.group_epoch, group.error_code)
    if row["group"] == "share":
        found["share partitions: start offsets"] = await _share_offsets(admin)
    if row["producer"] == "transactional":
        found["transaction coordinator: writer"] = await _described_transaction(admin)
    admin.cut()
    return found


async def _producers(admin: WireClient, number: int) -> list[tuple[int, int, int]]:
    asked = {"topics": [{"name": TOPIC, "partition_indexes": [number]}]}
    answer = await admin.ask(await admin.leader(TOPIC, number), DESCRIBE_PRODUCERS, asked)
    [one] = answer.topics[0].partitions
    return sorted(
        (producer.producer_id, producer.producer_epoch, producer.last_sequence)
        for producer in one.active_producers
    )
