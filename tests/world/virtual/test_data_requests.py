"""Bare Produce, Fetch, ListOffsets and offsets' requests: the fields of their answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from purgatory.cluster import ClusterConfig, TopicSpec
from purgatory.cluster.records import new_batch, packed_batch, records_data, whole_batches
from purgatory.kafka import ErrorCode
from purgatory.virtual import World
from tests.world.security import Security
from tests.world.wire_client import (
    END_TXN,
    FETCH,
    GROUP,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PRODUCE,
    TRANSACTION,
    TXN_OFFSET_COMMIT,
    WireClient,
)

_TRANSACTIONAL = 0x10
_TIMEOUT = timedelta(seconds=10)
_DESCRIBE_GROUPS, _DELETE_GROUPS = 15, 42
_NOBODY = (-1, -1, -1)


class _Client:
    """Requests about the partition 0 of the topic "t"."""

    def __init__(self, client: WireClient) -> None:
        self.wire = client

    async def produce(
        self,
        count: int = 1,
        producer: tuple[int, int, int] = _NOBODY,
        transactional_id: str | None = None,
        header: dict[int, int] | None = None,
        records: bytes | None = None,
    ) -> Any:
        """Produce a batch, with these numbers in its header, and return the partition's answer."""
        now_ms = time.time_ns() // 1_000_000
        attributes = 0 if transactional_id is None else _TRANSACTIONAL
        fields = [0, 0, 0, 2, 0, attributes, count - 1, now_ms, now_ms, *producer, count]
        for at, number in (header or {}).items():
            fields[at] = number
        if records is None:
            records = records_data(new_batch([(b"k", b"v")] * count))
        of_topic = {
            "topic_id": self.wire.topic_ids["t"],
            "partition_data": [{"index": 0, "records": packed_batch(fields, records).to_bytes()}],
        }
        asked = {
            "acks": -1,
            "timeout": _TIMEOUT,
            "topic_data": [of_topic],
            "transactional_id": transactional_id,
        }
        answer = await self.wire.ask(await self.wire.leader("t", 0), PRODUCE, asked)
        return answer.responses[0].partition_responses[0]

    async def fetch(self, broker: int, offset: int, committed_only: bool = False) -> Any:
        """Fetch from a broker, and return the partition's answer."""
        partition = {
            "partition": 0,
            "fetch_offset": offset,
            "partition_max_bytes": 1 << 20,
            "current_leader_epoch": -1,
            "last_fetched_epoch": -1,
        }
        asked = {
            "max_wait": timedelta(seconds=5),
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "isolation_level": int(committed_only),
            "session_epoch": -1,
            "topics": [{"topic_id": self.wire.topic_ids["t"], "partitions": [partition]}],
        }
        return (await self.wire.ask(broker, FETCH, asked)).responses[0].partitions[0]

    async def list_offset(self, timestamp: int, committed_only: bool = False) -> tuple[int, int]:
        """Return the offset and the time of a special timestamp."""
        partition = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
        asked = {
            "replica_id": -1,
            "isolation_level": int(committed_only),
            "topics": [{"name": "t", "partitions": [partition]}],
        }
        answer = await self.wire.ask(await self.wire.leader("t", 0), LIST_OFFSETS, asked)
        found = answer.topics[0].partitions[0]
        assert found.error_code == ErrorCode.NONE
        return found.offset, found.timestamp

    async def begin(self) -> tuple[int, int]:
        """Return a transactional producer's id and epoch."""
        asked = {
            "transactional_id": "w",
            "transaction_timeout": timedelta(seconds=30),
            "producer_id": -1,
            "producer_epoch": -1,
        }
        answer = await self.wire.ask_coordinator("w", TRANSACTION, INIT_PRODUCER_ID, asked)
        assert answer.error_code == ErrorCode.NONE
        return answer.producer_id, answer.producer_epoch

    async def end(self, producer: tuple[int, int], committed: bool) -> None:
        """End a transaction."""
        asked = {
            "transactional_id": "w",
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "committed": committed,
        }
        answer = await self.wire.ask_coordinator("w", TRANSACTION, END_TXN, asked)
        assert answer.error_code == ErrorCode.NONE
        await asyncio.sleep(1)  # until its markers are written

    async def commit(self, offset: int, producer: tuple[int, int] | None = None) -> None:
        """Commit an offset of the group "g", in a transaction or not."""
        partition = {"partition_index": 0, "committed_offset": offset}
        asked: dict[str, Any] = {"group_id": "g"}
        topic: dict[str, Any]
        if producer is None:
            api_key, topic = OFFSET_COMMIT, {"topic_id": self.wire.topic_ids["t"]}
            asked |= {"generation_id_or_member_epoch": -1, "member_id": ""}
        else:
            api_key, topic = TXN_OFFSET_COMMIT, {"name": "t"}
            asked |= {
                "transactional_id": "w",
                "producer_id": producer[0],
                "producer_epoch": producer[1],
                "generation_id": -1,
                "member_id": "",
            }
        asked["topics"] = [{**topic, "partitions": [partition]}]
        answer = await self.wire.ask_coordinator("g", GROUP, api_key, asked)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE

    async def committed(self) -> tuple[int, int]:
        """Return the error code and the stable offset of the group "g"."""
        topic = {"topic_id": self.wire.topic_ids["t"], "partition_indexes": [0]}
        group = {"group_id": "g", "member_id": None, "member_epoch": -1, "topics": [topic]}
        asked = {"groups": [group], "require_stable": True}
        answer = await self.wire.ask_coordinator("g", GROUP, OFFSET_FETCH, asked)
        found = answer.groups[0].topics[0].partitions[0]
        return found.error_code, found.committed_offset


def _run(world: World, story: Callable[[_Client], Awaitable[None]]) -> None:
    config = ClusterConfig(topics=[TopicSpec("t", 1, 2)])
    cluster = world.cluster(brokers=2, config=config)

    async def main() -> None:
        client = WireClient(cluster, "client", True, Security())
        await client.refresh(["t"])
        await story(_Client(client))
        client.cut()

    world.run(main())


def test_followers_serve_consumers_without_a_rack(world: World) -> None:
    async def story(client: _Client) -> None:
        await client.produce(3)
        follower = 3 - await client.wire.leader("t", 0)
        answer = await client.fetch(follower, 0)
        assert (answer.error_code, answer.high_watermark) == (ErrorCode.NONE, 3)
        assert [batch.record_count for batch in whole_batches(bytes(answer.records))] == [3]
        answer = await client.fetch(follower, 9)
        assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    _run(world, story)


def test_offset_out_of_range_has_no_bounds(world: World) -> None:
    async def story(client: _Client) -> None:
        await client.produce()
        answer = await client.fetch(await client.wire.leader("t", 0), 9)
        assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        bounds = answer.high_watermark, answer.last_stable_offset, answer.log_start_offset
        assert bounds == (-1, -1, -1)

    _run(world, story)


def test_uncommitted_reads_list_no_aborted_transactions(world: World) -> None:
    async def story(client: _Client) -> None:
        producer = await client.begin()
        await client.produce(1, (*producer, 0), "w")
        await client.end(producer, committed=False)
        leader = await client.wire.leader("t", 0)
        assert (await client.fetch(leader, 0)).aborted_transactions is None
        aborted = (await client.fetch(leader, 0, committed_only=True)).aborted_transactions
        assert [(one.producer_id, one.first_offset) for one in aborted] == [(producer[0], 0)]

    _run(world, story)


def test_refused_records_come_with_the_logs_start(world: World) -> None:
    async def story(client: _Client) -> None:
        answer = await client.produce(records=b"\x0enonsense")
        assert (answer.error_code, answer.log_start_offset) == (ErrorCode.INVALID_RECORD, 0)

    _run(world, story)


def test_duplicate_comes_with_the_time_of_its_original(world: World) -> None:
    async def story(client: _Client) -> None:
        producer = (77, 0, 0)
        begun_ms = time.time_ns() // 1_000_000
        first = await client.produce(1, producer)
        await asyncio.sleep(5)
        again = await client.produce(1, producer)
        assert (first.error_code, again.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
        assert first.log_append_time is None
        assert again.base_offset == first.base_offset
        assert 0 <= again.log_append_time.timestamp() * 1_000 - begun_ms < 1_000

    _run(world, story)


def test_largest_time_is_hidden_while_it_is_uncommitted(world: World) -> None:
    async def story(client: _Client) -> None:
        await client.produce()
        await asyncio.sleep(5)
        producer = await client.begin()
        await client.produce(1, (*producer, 0), "w")
        assert (await client.list_offset(-3, committed_only=True)) == (-1, -1)
        assert (await client.list_offset(-3))[0] == 1
        await client.end(producer, committed=True)
        assert (await client.list_offset(-3, committed_only=True))[0] > 0

    _run(world, story)


@pytest.mark.parametrize("committed", [True, False])
def test_plain_commit_is_unstable_while_a_transaction_is_open(
    world: World, committed: bool
) -> None:
    async def story(client: _Client) -> None:
        producer = await client.begin()
        await client.commit(5, producer)
        await client.commit(7)
        assert await client.committed() == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
        await client.end(producer, committed)
        assert await client.committed() == (ErrorCode.NONE, 7)

    _run(world, story)


def test_group_of_pending_offsets_is_empty_and_deletable(world: World) -> None:
    async def story(client: _Client) -> None:
        producer = await client.begin()
        await client.commit(5, producer)
        wire = client.wire
        asked: dict[str, Any] = {"groups": ["g"]}
        answer = await wire.ask_coordinator("g", GROUP, _DESCRIBE_GROUPS, asked)
        assert (answer.groups[0].error_code, answer.groups[0].group_state) == (0, "Empty")
        asked = {"groups_names": ["g"]}
        answer = await wire.ask_coordinator("g", GROUP, _DELETE_GROUPS, asked)
        assert answer.results[0].error_code == ErrorCode.NONE
        assert await client.committed() == (ErrorCode.NONE, -1)
        await client.end(producer, committed=True)
        assert await client.committed() == (ErrorCode.NONE, -1), "the deletion holds"

    _run(world, story)
