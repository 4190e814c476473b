"""Committed offsets: as records, and after another broker took them over."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.cluster import Cluster, ClusterConfig, TopicSpec
from purgatory.cluster.coordinator_records import OffsetsRecords
from purgatory.kafka import (
    OFFSETS_TOPIC,
    CommittedOffset,
    ErrorCode,
    LogConfig,
    OffsetEntry,
    OffsetKey,
    TopicPartition,
    coordinator_log,
    group_partition,
)
from tests.wire.cluster.raw_client import RawClient

ORDERS = TopicPartition("orders", 0)

_names = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
_keys = st.builds(OffsetKey, _names, _names, st.integers(0, 2**31 - 1))
_longs = st.integers(-1, 2**63 - 1)
_epochs = st.integers(-1, 2**31 - 1)
# Clients that set the time when an offset expires know no leader epochs.
_offsets = st.builds(CommittedOffset, _longs, _epochs, _names, _longs, st.just(-1)) | st.builds(
    CommittedOffset, _longs, st.just(-1), _names, _longs, _longs
)


@settings(max_examples=100)
@given(st.lists(st.tuples(_keys, st.none() | _offsets), min_size=1, max_size=5))
def test_offsets_are_read_back_as_they_were_written(
    entries: list[OffsetEntry],
) -> None:
    codec = OffsetsRecords()
    assert list(codec.entries(codec.batch(entries))) == entries


def _commit(offset: int, group_id: str = "g") -> dict[str, Any]:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "why"}
    return {
        "group_id": group_id,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "orders", "partitions": [partition]}],
    }


_FETCH = {"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0]}]}
_JOIN = {"group_id": "g", "member_id": "m", "generation_id": 1}


def _coordinator(cluster: Cluster) -> int:
    partition = group_partition("g", cluster.offsets_partitions())
    state = cluster.controller.state_of(TopicPartition(OFFSETS_TOPIC, partition))
    assert state is not None
    return state.leader


async def _committed(cluster: Cluster, broker: int) -> tuple[int, int, str]:
    async with await RawClient.to(cluster, broker) as client:
        while True:
            answer = await client.ask(9, 7, _FETCH)
            if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                break
            await asyncio.sleep(0.002)
        if answer.error_code:
            assert not answer.topics, "the group has the error, and its partitions aren't named"
            return answer.error_code, -1, ""
        committed = answer.topics[0].partitions[0]
        return committed.error_code, committed.committed_offset, committed.metadata


def test_offsets_survive_their_coordinator() -> None:
    async def main() -> None:
        config = ClusterConfig(brokers=3, topics=[TopicSpec("orders")], offsets_partitions=1)
        async with Cluster(config) as cluster:
            first = _coordinator(cluster)
            async with await RawClient.to(cluster, first) as client:
                answer = await client.ask(8, 8, _commit(41))
                answer = await client.ask(8, 8, _commit(42))
                assert answer.topics[0].partitions[0].error_code == 0
            assert await _committed(cluster, first) == (0, 42, "why")
            for broker in cluster.brokers:
                if broker != first:
                    assert (await _committed(cluster, broker))[0] == 16
            await cluster.kill(first)
            second = _coordinator(cluster)
            assert second != first
            assert await _committed(cluster, second) == (0, 42, "why")
            async with await RawClient.to(cluster, second) as client:
                await client.ask(8, 8, _commit(43))
            await cluster.revive(first)
            assert (await _committed(cluster, first))[0] == 16, "it coordinates no more"
            await cluster.kill(second)
            assert await _committed(cluster, _coordinator(cluster)) == (0, 43, "why")

    asyncio.run(main())


def test_deleted_groups_stay_deleted_at_the_next_coordinator() -> None:
    async def main() -> None:
        config = ClusterConfig(brokers=3, topics=[TopicSpec("orders")], offsets_partitions=1)
        async with Cluster(config) as cluster:
            first = _coordinator(cluster)
            async with await RawClient.to(cluster, first) as client:
                await client.ask(8, 8, _commit(42))
                answer = await client.ask(42, 2, {"groups_names": ["g", "none"]})
                codes = {result.group_id: result.error_code for result in answer.results}
                assert codes == {"g": 0, "none": 69}
                offsets = cluster.brokers[first].groups.offsets
                assert (offsets._by_group, offsets._loaded) == ({}, {0: {}}), "nothing is left"
                assert await _committed(cluster, first) == (0, -1, "")
            await cluster.kill(first)
            assert await _committed(cluster, _coordinator(cluster)) == (0, -1, "")

    asyncio.run(main())


def test_invalid_commits_fail_one_by_one() -> None:
    async def main() -> None:
        config = ClusterConfig(brokers=1, topics=[TopicSpec("orders", 2)])
        async with Cluster(config) as cluster:
            long = {"partition_index": 1, "committed_offset": 5, "committed_metadata": "x" * 4_097}
            asked = _commit(7)
            asked["topics"][0]["partitions"].append(long)
            asked["topics"].append({"name": "none", "partitions": [{"partition_index": 0}]})
            async with await RawClient.to(cluster) as client:
                answer = await client.ask(8, 8, asked)
                codes = [
                    (topic.name, one.partition_index, one.error_code)
                    for topic in answer.topics
                    for one in topic.partitions
                ]
                assert codes == [("orders", 0, 0), ("orders", 1, 12), ("none", 0, 3)]
            assert await _committed(cluster, 1) == (0, 7, "why")

    asyncio.run(main())


def test_members_get_not_coordinator_after_a_change() -> None:
    async def main() -> None:
        config = ClusterConfig(brokers=2, topics=[TopicSpec("orders")], offsets_partitions=1)
        async with Cluster(config) as cluster:
            first = _coordinator(cluster)
            async with await RawClient.to(cluster, 3 - first) as client:
                assert (await client.ask(12, 4, _JOIN)).error_code == 16
            async with await RawClient.to(cluster, first) as client:
                assert (await client.ask(12, 4, _JOIN)).error_code == 25

    asyncio.run(main())


def test_compacted_offsets_survive_their_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator_log, "_MIN_STALE_RECORDS", 20)
    monkeypatch.setattr(coordinator_log, "_PER_BATCH", 2)

    async def main() -> None:
        config = ClusterConfig(brokers=3, topics=[TopicSpec("orders")], offsets_partitions=1)
        async with Cluster(config) as cluster:
            first = _coordinator(cluster)
            async with await RawClient.to(cluster, first) as client:
                for other in ("x", "y", "z"):
                    await client.ask(8, 8, _commit(7, other))
                for offset in range(100):
                    await client.ask(8, 8, _commit(offset))
                partition = cluster.brokers[first].manager.partition(
                    TopicPartition(OFFSETS_TOPIC, 0)
                )
                assert partition is not None
                log = partition.log
                # Many records, and the live ones, again and again.
                assert log.end_offset > 110
                assert log.end_offset - log.start_offset <= 20 + 4 + 1
            await cluster.kill(first)
            second = _coordinator(cluster)
            assert await _committed(cluster, second) == (0, 99, "why")
            offsets = cluster.brokers[second].groups.offsets
            assert {offsets.group_offsets(group_id)[ORDERS].offset for group_id in "xyz"} == {7}
            assert sorted(offsets.groups()) == ["g", "x", "y", "z"]

    asyncio.run(main())


def test_commits_are_split_into_batches_that_fit_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_log, "_MIN_STALE_RECORDS", 50)

    def commit(count: int, metadata: str) -> dict[str, Any]:
        partitions = [
            {"partition_index": number, "committed_offset": 5, "committed_metadata": metadata}
            for number in range(count)
        ]
        return {**_commit(0), "topics": [{"name": "orders", "partitions": partitions}]}

    async def main() -> None:
        config = ClusterConfig(
            brokers=1,
            topics=[TopicSpec("orders", 20)],
            offsets_partitions=1,
            log_config=LogConfig(max_batch_bytes=1_000),
        )
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:

            async def codes(asked: dict[str, Any]) -> set[int]:
                [topic] = (await client.ask(8, 8, asked)).topics
                return {one.error_code for one in topic.partitions}

            for _ in range(10):
                assert await codes(commit(20, "x" * 200)) == {0}
            partition = cluster.brokers[1].manager.partition(TopicPartition(OFFSETS_TOPIC, 0))
            assert partition is not None and partition.log.start_offset > 0, "it is compacted, too"
            too_large = commit(1, "x" * 1_000)
            assert await codes(too_large) == {ErrorCode.UNKNOWN_SERVER_ERROR}, "no retry helps"

    asyncio.run(main())


def test_deleted_topic_loses_its_committed_offsets() -> None:
    async def main() -> None:
        topics = [TopicSpec("orders"), TopicSpec("other")]
        config = ClusterConfig(brokers=2, topics=topics, offsets_partitions=1)
        async with Cluster(config) as cluster:
            first = _coordinator(cluster)
            async with await RawClient.to(cluster, first) as client:
                asked = _commit(42)
                asked["topics"].append({**asked["topics"][0], "name": "other"})
                await client.ask(8, 8, asked)
                await client.ask(
                    20, 5, {"topic_names": ["orders"], "timeout": timedelta(seconds=5)}
                )
                await client.ask(8, 8, {**asked, "topics": asked["topics"][1:]})
            await cluster.kill(first)
            offsets = cluster.brokers[_coordinator(cluster)].groups.offsets
            assert list(offsets.group_offsets("g")) == [("other", 0)]

    asyncio.run(main())
