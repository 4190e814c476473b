"""Fetches of bare requests: from the leaders of partitions, in any version."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple

from purgatory.cluster.records import Record, read_records, whole_batches
from purgatory.kafka.errors import ErrorCode
from tests.world.wire_client import FETCH, NoAnswerError, WireClient

_MAX_BYTES = 1 << 20
_NO_SESSION = -1


class Fetched(NamedTuple):
    """The records of one partition.

    Args:
        records: those of whole batches, but for control batches.
        next_offset: where to go on.
    """

    error: int
    records: list[Record]
    next_offset: int


async def fetch(
    client: WireClient, topic: str, positions: Mapping[int, int], max_wait_ms: int = 1_000
) -> dict[int, Fetched]:
    """Fetch committed records of partitions, from their offsets on, from one leader after another.

    Raises:
        NoAnswerError: a partition has no leader, or a leader doesn't answer.
    """
    by_leader: dict[int, dict[int, int]] = {}
    for number, offset in positions.items():
        by_leader.setdefault(await client.leader(topic, number), {})[number] = offset
    found: dict[int, Fetched] = {}
    for leader, asked in by_leader.items():
        wait_ms = max_wait_ms // len(by_leader)
        found |= await _fetch_from(client, leader, topic, asked, wait_ms)
    return found


async def _fetch_from(
    client: WireClient, leader: int, topic: str, positions: Mapping[int, int], wait_ms: int
) -> dict[int, Fetched]:
    partitions = [
        {
            "partition": number,
            "fetch_offset": offset,
            "partition_max_bytes": _MAX_BYTES,
            "current_leader_epoch": -1,
            "last_fetched_epoch": -1,
        }
        for number, offset in positions.items()
    ]
    of_topic = {
        "topic": topic,
        "topic_id": client.topic_ids.get(topic),
        "partitions": partitions,
    }
    asked = {
        "replica_id": -1,
        "max_wait": timedelta(milliseconds=wait_ms),
        "min_bytes": 1,
        "max_bytes": _MAX_BYTES,
        "isolation_level": 1,
        "session_epoch": _NO_SESSION,
        "topics": [of_topic],
    }
    answer = await client.ask(leader, FETCH, asked)
    found = {}
    for of_answer in answer.responses:
        for one in of_answer.partitions:
            offset = positions[one.partition_index]
            if one.error_code != ErrorCode.NONE:
                client.forget()
                found[one.partition_index] = Fetched(one.error_code, [], offset)
                continue
            records: list[Record] = []
            next_offset = offset
            for batch in whole_batches(bytes(one.records or b"")):
                next_offset = batch.next_offset
                if batch.control is None:
                    records += [one for one in read_records(batch) if one.offset >= offset]
            found[one.partition_index] = Fetched(0, records, next_offset)
    if not found and answer.throttle_time:  # it is empty, and the next one is served later
        return {number: Fetched(0, [], offset) for number, offset in positions.items()}
    if not found:
        raise NoAnswerError(f"broker {leader} knows no partition of {topic}")
    return found
