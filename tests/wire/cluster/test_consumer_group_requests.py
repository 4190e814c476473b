"""Groups of the consumer protocol over the wire, request by request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from purgatory.cluster import Cluster, ClusterConfig, GroupConfig, TopicSpec
from purgatory.kafka import (
    OFFSETS_TOPIC,
    ErrorCode,
    TopicPartition,
    coordinator_log,
    group_partition,
)
from purgatory.kafka.groups.group_records import RecordKind
from tests.wire.cluster.raw_client import RawClient

_COMMIT, _FETCH, _JOIN, _DESCRIBE, _LIST, _DELETE = 8, 9, 11, 15, 16, 42
_OFFSET_DELETE = 47
_HEARTBEAT, _CONSUMER_DESCRIBE = 68, 69
_MINUTE = timedelta(minutes=1)
_FIRST = {
    "group_id": "g",
    "member_id": "m",
    "rebalance_timeout": _MINUTE,
    "subscribed_topic_names": ["t"],
    "topic_partitions": [],
}
_CLASSIC = {
    "group_id": "g",
    "session_timeout": timedelta(seconds=30),
    "rebalance_timeout": _MINUTE,
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b""}],
}


def _config(brokers: int = 1, data_dir: Path | None = None) -> ClusterConfig:
    return ClusterConfig(
        brokers=brokers,
        topics=[TopicSpec("t", 2)],
        offsets_partitions=1,
        groups=GroupConfig(initial_rebalance_delay_ms=0, consumer_heartbeat_interval_ms=1_234),
        data_dir=data_dir,
    )


def _run(test: Callable[[Cluster, RawClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Cluster(_config()) as cluster, await RawClient.to(cluster) as client:
            await test(cluster, client)

    asyncio.run(main())


def _offset(epoch: int, member_id: str = "m") -> dict[str, Any]:
    partition = {"partition_index": 0, "committed_offset": 5}
    return {
        "group_id": "g",
        "member_id": member_id,
        "generation_id_or_member_epoch": epoch,
        "topics": [{"name": "t", "partitions": [partition]}],
    }


async def _commit(client: RawClient, asked: dict[str, Any]) -> int:
    answer = await client.ask(_COMMIT, 9, asked)
    return int(answer.topics[0].partitions[0].error_code)


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_joins_and_is_described_and_leaves(version: int) -> None:
    async def test(cluster: Cluster, client: RawClient) -> None:
        topic = cluster.controller.topics["t"]
        joined = await client.ask(_HEARTBEAT, version, _FIRST)
        assert (joined.error_code, joined.member_id, joined.member_epoch) == (0, "m", 2)
        assert joined.heartbeat_interval == timedelta(milliseconds=1_234)
        [assigned] = joined.assignment.topic_partitions
        assert (assigned.topic_id, assigned.partitions) == (topic.topic_id, (0, 1))
        beat = {"group_id": "g", "member_id": "m", "member_epoch": 2, "topic_partitions": None}
        again = await client.ask(_HEARTBEAT, version, beat)
        assert (again.error_code, again.assignment) == (0, None)
        asked = {"group_ids": ["g", "none"], "include_authorized_operations": True}
        described, missing = (await client.ask(_CONSUMER_DESCRIBE, version, asked)).groups
        assert (described.group_state, described.group_epoch) == ("Stable", 2)
        assert (described.assignment_epoch, described.assignor_name) == (2, "uniform")
        [member] = described.members
        assert (member.member_id, member.client_id) == ("m", "a-test")
        assert member.client_host.startswith("/127.0.0.1")
        assert member.assignment == member.target_assignment
        [of_topic] = member.assignment.topic_partitions
        assert (of_topic.topic_name, of_topic.partitions) == ("t", (0, 1))
        assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        cluster.controller.delete_topic("t")
        described = (await client.ask(_CONSUMER_DESCRIBE, version, asked)).groups[0]
        assert described.members[0].assignment.topic_partitions == ()
        left = await client.ask(_HEARTBEAT, version, {**beat, "member_epoch": -1})
        assert (left.error_code, left.member_epoch) == (0, -1)

    _run(test)


def test_coordinator_generates_member_ids_in_version_0() -> None:
    async def test(_: Cluster, client: RawClient) -> None:
        joined = await client.ask(_HEARTBEAT, 0, {**_FIRST, "member_id": ""})
        assert joined.error_code == 0
        assert joined.member_id
        refused = await client.ask(_HEARTBEAT, 1, {**_FIRST, "member_id": ""})
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert "member_id" in refused.error_message

    _run(test)


def test_offsets_are_committed_and_fetched_with_member_epochs() -> None:
    async def test(_: Cluster, client: RawClient) -> None:
        await client.ask(_HEARTBEAT, 1, _FIRST)
        codes = [
            await _commit(client, asked)
            for asked in (_offset(2), _offset(1), _offset(2, "nobody"), _offset(-1, ""))
        ]
        assert codes == [
            0,
            ErrorCode.STALE_MEMBER_EPOCH,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.UNKNOWN_MEMBER_ID,
        ]
        topics = [{"name": "t", "partition_indexes": [0]}]
        told = {}
        for member_id, epoch in (("m", 2), ("m", 3), ("nobody", 2), (None, -1)):
            group = {"group_id": "g", "member_id": member_id, "member_epoch": epoch}
            asked = {"groups": [{**group, "topics": topics}]}
            [answer] = (await client.ask(_FETCH, 9, asked)).groups
            offsets = [topic.partitions[0].committed_offset for topic in answer.topics]
            told[member_id, epoch] = (answer.error_code, offsets)
        assert told == {
            ("m", 2): (0, [5]),
            ("m", 3): (ErrorCode.STALE_MEMBER_EPOCH, []),
            ("nobody", 2): (ErrorCode.UNKNOWN_MEMBER_ID, []),
            (None, -1): (0, [5]),
        }

    _run(test)


def test_groups_are_listed_and_described_by_type_and_state() -> None:
    async def test(_: Cluster, client: RawClient) -> None:
        await client.ask(_HEARTBEAT, 1, _FIRST)
        await client.ask(_JOIN, 3, {**_CLASSIC, "group_id": "c"})
        listed = {}
        for states, types in (([], []), (["stable"], []), ([], ["Classic"]), (["Empty"], [])):
            asked = {"states_filter": states, "types_filter": types}
            answer = await client.ask(_LIST, 5, asked)
            listed[(*states, *types)] = {(one.group_id, one.group_type) for one in answer.groups}
        both = {("g", "consumer"), ("c", "classic")}
        assert listed == {
            (): both,
            ("stable",): {("g", "consumer")},
            ("Classic",): {("c", "classic")},
            ("Empty",): set(),
        }
        for version, code in ((5, 0), (6, ErrorCode.GROUP_ID_NOT_FOUND)):
            answer = await client.ask(_DESCRIBE, version, {"groups": ["g", "none", "c"]})
            told = [(one.group_state, one.error_code) for one in answer.groups]
            assert told[:2] == [("Dead", code)] * 2
            assert told[2][1] == 0
        [other] = (await client.ask(_CONSUMER_DESCRIBE, 1, {"group_ids": ["c"]})).groups
        assert other.error_code == ErrorCode.GROUP_ID_NOT_FOUND

    _run(test)


def test_empty_group_takes_the_protocol_of_the_next_member() -> None:
    async def test(cluster: Cluster, client: RawClient) -> None:
        leave = {"group_id": "g", "member_id": "m", "member_epoch": -1, "topic_partitions": None}
        assert (await client.ask(_HEARTBEAT, 1, _FIRST)).error_code == 0
        refused = await client.ask(_JOIN, 3, _CLASSIC)
        assert refused.error_code == ErrorCode.UNKNOWN_SERVER_ERROR, "it tells of no topics"
        assert await _commit(client, _offset(2)) == 0
        await client.ask(_HEARTBEAT, 1, leave)
        joined = await client.ask(_JOIN, 3, _CLASSIC)
        assert (joined.error_code, joined.generation_id) == (0, 1)
        groups = cluster.brokers[1].groups
        assert not groups.consumers.groups
        [kept] = groups.offsets.records_of("g")
        assert kept.kind is RecordKind.CLASSIC
        assert groups.offset_metadata.committed("g")[TopicPartition("t", 0)].offset == 5, (
            "offsets stay"
        )
        refused = await client.ask(_HEARTBEAT, 1, _FIRST)
        assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        await client.ask(13, 1, {"group_id": "g", "member_id": joined.member_id})
        assert (await client.ask(_HEARTBEAT, 1, _FIRST)).member_epoch == 2

    _run(test)


def test_only_an_empty_group_is_deleted() -> None:
    async def test(cluster: Cluster, client: RawClient) -> None:
        await client.ask(_HEARTBEAT, 1, _FIRST)
        await _commit(client, _offset(2))
        leave = {"group_id": "g", "member_id": "m", "member_epoch": -1, "topic_partitions": None}
        codes = []
        for _ in range(3):
            answer = await client.ask(_DELETE, 2, {"groups_names": ["g"]})
            codes.append(answer.results[0].error_code)
            await client.ask(_HEARTBEAT, 1, leave)
        assert codes == [ErrorCode.NON_EMPTY_GROUP, 0, ErrorCode.GROUP_ID_NOT_FOUND]
        groups = cluster.brokers[1].groups
        assert not groups.consumers.groups
        assert groups.offsets.groups() == []

    _run(test)


def test_offsets_of_subscribed_topics_can_not_be_deleted() -> None:
    async def test(_: Cluster, client: RawClient) -> None:
        names = {**_FIRST, "subscribed_topic_names": ["none"]}
        delete = {
            "group_id": "g",
            "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}],
        }
        codes = []
        for joining in (_FIRST, names):
            await client.ask(_HEARTBEAT, 1, joining)
            answer = await client.ask(_OFFSET_DELETE, 0, delete)
            codes.append(answer.topics[0].partitions[0].error_code)
        assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0]

    _run(test)


def _coordinator(cluster: Cluster) -> int:
    partition = group_partition("g", cluster.offsets_partitions())
    state = cluster.controller.state_of(TopicPartition(OFFSETS_TOPIC, partition))
    assert state is not None
    return state.leader


async def _beat(cluster: Cluster, epoch: int) -> Any:
    beat = {"group_id": "g", "member_id": "m", "member_epoch": epoch, "topic_partitions": None}
    async with await RawClient.to(cluster, _coordinator(cluster)) as client:
        while True:
            answer = await client.ask(_HEARTBEAT, 1, beat)
            if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return answer
            await asyncio.sleep(0.002)


def test_next_coordinator_knows_the_members() -> None:
    async def main() -> None:
        async with Cluster(_config(brokers=3)) as cluster:
            first = _coordinator(cluster)
            async with await RawClient.to(cluster, first) as client:
                assert (await client.ask(_HEARTBEAT, 1, _FIRST)).member_epoch == 2
            async with await RawClient.to(cluster, first % 3 + 1) as client:
                refused = await client.ask(_HEARTBEAT, 1, _FIRST)
                assert refused.error_code == ErrorCode.NOT_COORDINATOR
                asked = {"group_ids": ["g"]}
                [refused] = (await client.ask(_CONSUMER_DESCRIBE, 1, asked)).groups
                assert refused.error_code == ErrorCode.NOT_COORDINATOR
            await cluster.kill(first)
            answer = await _beat(cluster, 2)
            assert (answer.error_code, answer.member_epoch) == (0, 2)
            assert not cluster.brokers[first].groups.classic.heartbeats.num_delayed
            await cluster.revive(first)
            assert (await _beat(cluster, 2)).error_code == 0

    asyncio.run(main())


def test_members_survive_a_restart_of_the_cluster(tmp_path: Path) -> None:
    async def main() -> None:
        config = _config(data_dir=tmp_path)
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            await client.ask(_HEARTBEAT, 1, _FIRST)
        async with Cluster(_config(data_dir=tmp_path)) as cluster:
            answer = await _beat(cluster, 2)
            assert (answer.error_code, answer.member_epoch) == (0, 2)
            assert cluster.brokers[1].groups.consumers.groups["g"].epoch == 2

    asyncio.run(main())


def test_members_survive_compaction_of_a_long_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_log, "_MIN_STALE_RECORDS", 20)

    async def main() -> None:
        async with Cluster(_config(brokers=3)) as cluster:
            first = _coordinator(cluster)
            async with await RawClient.to(cluster, first) as client:
                await client.ask(_HEARTBEAT, 1, _FIRST)
                for _ in range(60):
                    assert await _commit(client, _offset(2)) == 0
            partition = cluster.brokers[first].manager.partition(TopicPartition(OFFSETS_TOPIC, 0))
            assert partition is not None
            assert partition.log.start_offset > 10, "the member's records are cut off"
            await cluster.kill(first)
            answer = await _beat(cluster, 2)
            assert (answer.error_code, answer.member_epoch) == (0, 2)

    asyncio.run(main())


def test_offsets_are_committed_and_fetched_by_the_topics_ids() -> None:
    async def test(cluster: Cluster, client: RawClient) -> None:
        topic_id, gone = cluster.controller.topics["t"].topic_id, UUID(int=5)
        partition = {"partition_index": 1, "committed_offset": 5}
        topics = [{"topic_id": one, "partitions": [partition]} for one in (gone, topic_id)]
        asked = {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": topics}
        answer = await client.ask(_COMMIT, 10, asked)
        codes = {one.topic_id: one.partitions[0].error_code for one in answer.topics}
        assert codes == {gone: ErrorCode.UNKNOWN_TOPIC_ID, topic_id: ErrorCode.NONE}

        named = [{"topic_id": one, "partition_indexes": [1]} for one in (gone, topic_id)]
        for wanted in (named, None):
            group = {"group_id": "g", "topics": wanted}
            [answer] = (await client.ask(_FETCH, 10, {"groups": [group]})).groups
            found = {
                one.topic_id: (one.partitions[0].error_code, one.partitions[0].committed_offset)
                for one in answer.topics
            }
            known = {topic_id: (ErrorCode.NONE, 5)}
            unknown = {gone: (ErrorCode.UNKNOWN_TOPIC_ID, -1)}
            assert found == (known if wanted is None else {**unknown, **known})
        [by_name] = (await client.ask(_FETCH, 9, {"groups": [{**group}]})).groups
        assert [topic.name for topic in by_name.topics] == ["t"]

    _run(test)


def test_consumer_protocol_commit_needs_an_epoch() -> None:
    async def test(cluster: Cluster, client: RawClient) -> None:
        await client.ask(_HEARTBEAT, 1, _FIRST)
        for version, code in ((8, ErrorCode.UNSUPPORTED_VERSION), (9, ErrorCode.NONE)):
            answer = await client.ask(_COMMIT, version, _offset(2))
            assert answer.topics[0].partitions[0].error_code == code

    _run(test)
