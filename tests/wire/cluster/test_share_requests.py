"""Share groups over the wire, request by request."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.records.readers import read_batch

from purgatory.cluster import Cluster, ClusterConfig, GroupConfig, TopicSpec
from purgatory.cluster.api.response_future import response_future
from purgatory.cluster.coordinator_records import ShareStateRecords
from purgatory.cluster.records import new_batch
from purgatory.cluster.trace import ClusterTrace
from purgatory.kafka import ErrorCode, TopicPartition
from purgatory.kafka.share_groups.share_state import RecordState, ShareKey, ShareState, StateBatch
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.test_cluster_trace import Rows

_PRODUCE, _FIND, _LIST, _DELETE = 0, 10, 16, 42
_CONFIGS, _ALTER_CONFIGS = 32, 44
_HEARTBEAT, _DESCRIBE, _FETCH, _ACKNOWLEDGE = 76, 77, 78, 79
_DESCRIBE_OFFSETS, _ALTER_OFFSETS, _DELETE_OFFSETS = 90, 91, 92
_GROUP = 32
ACCEPT, RELEASE, REJECT = 1, 2, 3
DONE = RecordState.ACKNOWLEDGED
_MEMBER = {"group_id": "g", "member_id": "m"}
Said = dict[int, list[tuple[int, int, int]]]


def config(brokers: int = 1, data_dir: Path | None = None) -> ClusterConfig:
    return ClusterConfig(
        brokers=brokers,
        topics=[TopicSpec("t", 2)],
        groups=GroupConfig(share_heartbeat_interval_ms=1_234),
        data_dir=data_dir,
    )


def _run(test: Callable[[Cluster, RawClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Cluster(config()) as cluster, await RawClient.to(cluster) as client:
            await test(cluster, client)

    asyncio.run(main())


@asynccontextmanager
async def _one_client(data_dir: Path) -> AsyncIterator[tuple[Cluster, RawClient]]:
    async with Cluster(config(data_dir=data_dir)) as cluster, await RawClient.to(cluster) as client:
        yield cluster, client


async def set_start(client: RawClient, start: str, group: str = "g") -> int:
    change = {"name": "share.auto.offset.reset", "config_operation": 0, "value": start}
    resource = {"resource_type": _GROUP, "resource_name": group, "configs": [change]}
    answer = await client.ask(_ALTER_CONFIGS, 1, {"resources": [resource]})
    return int(answer.responses[0].error_code)


async def initialize(cluster: Cluster, group: str = "g") -> None:
    """Have the state of a group's partitions, as after a member's heartbeat."""
    topic_id = cluster.controller.topics["t"].topic_id
    states = cluster.brokers[1].share_states
    for number in range(2):
        key = ShareKey(group, topic_id, number)
        assert await response_future(partial(states.initialize, key, 2, -1)) == ErrorCode.NONE


async def begin(client: RawClient, cluster: Cluster) -> None:
    """Let the group read from the first record on."""
    await set_start(client, "earliest")
    await initialize(cluster)


async def produce(client: RawClient, cluster: Cluster, *values: bytes, partition: int = 0) -> None:
    for value in values:
        records = new_batch([(b"key", value)]).to_bytes()
        data = {"index": partition, "records": records}
        asked = {"acks": -1, "topic_data": [{"name": "t", "partition_data": [data]}]}
        answer = await client.ask(_PRODUCE, 9, {**asked, "timeout": timedelta(seconds=5)})
        assert answer.responses[0].partition_responses[0].error_code == 0


def _topics(cluster: Cluster, said: Said) -> list[dict[str, Any]]:
    return [
        {
            "topic_id": cluster.controller.topics["t"].topic_id,
            "partitions": [
                {
                    "partition_index": partition,
                    "acknowledgement_batches": [
                        {"first_offset": first, "last_offset": last, "acknowledge_types": [of]}
                        for first, last, of in of_partition
                    ],
                }
                for partition, of_partition in said.items()
            ],
        }
    ]


async def fetch(
    client: RawClient, cluster: Cluster, epoch: int, said: Said | None = None, **more: Any
) -> Any:
    """Fetch; ``said`` names partitions, with their acknowledgements."""
    asked = {
        **_MEMBER,
        "share_session_epoch": epoch,
        "max_wait": timedelta(milliseconds=200),
        "min_bytes": 1,
        "max_bytes": 1_000_000,
        "max_records": 100,
        "batch_size": 100,
        "topics": _topics(cluster, said) if said else [],
        **more,
    }
    return await client.ask(_FETCH, 2, asked)


async def acknowledge(client: RawClient, cluster: Cluster, epoch: int, said: Said) -> Any:
    asked = {**_MEMBER, "share_session_epoch": epoch, "topics": _topics(cluster, said)}
    return await client.ask(_ACKNOWLEDGE, 2, asked)


def read(answer: Any) -> list[tuple[int, int, bytes, int]]:
    """Return the content of a response: partition, offset, value, how often delivered."""
    assert answer.error_code == 0, answer
    found = []
    for topic in answer.responses:
        for one in topic.partitions:
            counts = {
                offset: got.delivery_count
                for got in one.acquired_records
                for offset in range(got.first_offset, got.last_offset + 1)
            }
            data = bytes(one.records or b"")
            while data:
                size = 12 + int.from_bytes(data[8:12], "big")
                base = int.from_bytes(data[:8], "big")
                batch = read_batch(data[:size], 0)[0]
                for number, record in enumerate(batch.records):
                    if base + number in counts:
                        value = record.value or b""
                        found.append(
                            (one.partition_index, base + number, value, counts[base + number])
                        )
                data = data[size:]
    return found


def test_a_member_joins_and_is_described_and_leaves() -> None:
    async def test(cluster: Cluster, client: RawClient) -> None:
        topic = cluster.controller.topics["t"]
        first = {**_MEMBER, "member_epoch": 0, "subscribed_topic_names": ["t"]}
        joined = await client.ask(_HEARTBEAT, 1, first)
        assert (joined.error_code, joined.member_id, joined.member_epoch) == (0, "m", 2)
        assert joined.heartbeat_interval == timedelta(milliseconds=1_234)
        assert joined.assignment.topic_partitions == (), "they have no state yet"
        while not await _offsets(client):
            await asyncio.sleep(0.001)
        beat = {**_MEMBER, "member_epoch": 2, "subscribed_topic_names": None}
        given = await client.ask(_HEARTBEAT, 1, beat)
        [assigned] = given.assignment.topic_partitions
        assert (assigned.topic_id, assigned.partitions) == (topic.topic_id, (0, 1))
        beat["member_epoch"] = 3
        again = await client.ask(_HEARTBEAT, 1, beat)
        assert (again.error_code, again.member_epoch, again.assignment) == (0, 3, None)
        wrong = await client.ask(_HEARTBEAT, 1, {**beat, "member_epoch": 5})
        assert wrong.error_code == ErrorCode.FENCED_MEMBER_EPOCH
        asked = {"group_ids": ["g", "none"], "include_authorized_operations": False}
        described = await client.ask(_DESCRIBE, 1, asked)
        group, none = described.groups
        assert (group.group_state, group.assignor_name, group.group_epoch) == (
            "Stable",
            "simple",
            3,
        )
        [member] = group.members
        assert (member.member_id, member.subscribed_topic_names) == ("m", ("t",))
        assert member.assignment.topic_partitions[0].partitions == (0, 1)
        assert none.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        listed = await client.ask(_LIST, 5, {"types_filter": ["share"]})
        assert [(one.group_id, one.protocol_type) for one in listed.groups] == [("g", "share")]
        consumer = {
            **_MEMBER,
            "rebalance_timeout": timedelta(minutes=1),
            "subscribed_topic_names": ["t"],
            "topic_partitions": [],
        }
        refused = await client.ask(68, 1, consumer)
        assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        left = await client.ask(_HEARTBEAT, 1, {**beat, "member_epoch": -1})
        assert (left.error_code, left.member_epoch) == (0, -1)
        deleted = await client.ask(_DELETE, 2, {"groups_names": ["g"]})
        assert deleted.results[0].error_code == 0
        assert (await client.ask(_LIST, 5)).groups == ()

    _run(test)


def test_share_fetch_may_acknowledge_records() -> None:
    async def test(cluster: Cluster, client: RawClient) -> None:
        await begin(client, cluster)
        await produce(client, cluster, b"a", b"b", b"c")
        answer = await fetch(client, cluster, 0, {0: [], 1: []})
        assert read(answer) == [(0, 0, b"a", 1), (0, 1, b"b", 1), (0, 2, b"c", 1)]
        assert answer.acquisition_lock_timeout == timedelta(seconds=30)
        told = await acknowledge(client, cluster, 1, {0: [(0, 0, ACCEPT), (1, 1, RELEASE)]})
        assert told.responses[0].partitions[0].error_code == 0
        answer = await fetch(client, cluster, 2, {0: [(2, 2, REJECT)]})
        assert read(answer) == [(0, 1, b"b", 2)]
        assert answer.responses[0].partitions[0].acknowledge_error_code == 0
        again = await acknowledge(client, cluster, 3, {0: [(2, 2, ACCEPT)]})
        code = again.responses[0].partitions[0].error_code
        assert code == ErrorCode.INVALID_RECORD_STATE
        ended = await fetch(client, cluster, -1, {0: [(1, 1, ACCEPT)]})
        assert ended.responses[0].partitions[0].acknowledge_error_code == 0
        assert not len(cluster.brokers[1].shares.sessions)

    _run(test)


def test_share_fetch_completes_when_records_arrive() -> None:
    async def test(cluster: Cluster, client: RawClient) -> None:
        await begin(client, cluster)
        async with await RawClient.to(cluster) as other:
            asked = fetch(other, cluster, 0, {0: [], 1: []}, max_wait=timedelta(minutes=1))
            waiting = asyncio.create_task(asked)
            purgatory = cluster.brokers[1].manager.share_fetch_purgatory
            while purgatory is None or not purgatory.watched:
                await asyncio.sleep(0.01)
            await produce(client, cluster, b"a", partition=1)
            assert read(await waiting) == [(1, 0, b"a", 1)]

    _run(test)


def test_share_fetch_waits_for_at_most_a_full_response() -> None:
    async def test(cluster: Cluster, client: RawClient) -> None:
        await begin(client, cluster)
        await produce(client, cluster, b"a")
        limits = {"max_wait": timedelta(minutes=10), "min_bytes": 10_000, "max_bytes": 10}
        assert read(await fetch(client, cluster, 0, {0: []}, **limits)) == [(0, 0, b"a", 1)]

    _run(test)


def test_invalid_sessions_and_requests_are_refused() -> None:
    async def test(cluster: Cluster, client: RawClient) -> None:
        async def code(epoch: int, said: Said | None = None, **more: Any) -> int:
            return int((await fetch(client, cluster, epoch, said, **more)).error_code)

        assert await code(1) == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert await code(0, {0: [(0, 0, ACCEPT)]}) == ErrorCode.INVALID_REQUEST
        assert await code(0, {0: []}, member_id="") == ErrorCode.INVALID_REQUEST
        assert await code(0, {0: []}, group_id=None) == ErrorCode.INVALID_REQUEST
        assert await code(0, {0: []}) == ErrorCode.NONE
        assert await code(7) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        answer = await acknowledge(client, cluster, 0, {0: []})
        assert answer.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        answer = await fetch(client, cluster, 1, {0: [(0, 2**62, 9)], 77: []})
        by_partition = {one.partition_index: one for one in answer.responses[0].partitions}
        assert by_partition[0].acknowledge_error_code == ErrorCode.INVALID_REQUEST
        assert by_partition[77].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        other = [
            {
                "topic_id": UUID(int=5),
                "partitions": [{"partition_index": 0, "acknowledgement_batches": []}],
            }
        ]
        answer = await fetch(client, cluster, 2, topics=other)
        unknown = [one for one in answer.responses if one.topic_id == UUID(int=5)]
        assert unknown[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    _run(test)


def test_closed_connection_releases_its_records() -> None:
    async def test(cluster: Cluster, client: RawClient) -> None:
        await begin(client, cluster)
        await produce(client, cluster, b"a")
        async with await RawClient.to(cluster) as other:
            assert read(await fetch(other, cluster, 0, {0: []})) == [(0, 0, b"a", 1)]
        again = await fetch(
            client, cluster, 0, {0: []}, member_id="n", max_wait=timedelta(minutes=1)
        )
        assert read(again) == [(0, 0, b"a", 2)]

    _run(test)


async def _offsets(client: RawClient, version: int = 1) -> list[tuple[int, int, int]]:
    """Return how far the group is, of each partition that it has begun."""
    answer = await client.ask(
        _DESCRIBE_OFFSETS, version, {"groups": [{"group_id": "g", "topics": None}]}
    )
    [group] = answer.groups
    assert group.error_code == 0, group
    return [
        (one.partition_index, one.start_offset, getattr(one, "lag", -1))
        for topic in group.topics
        for one in topic.partitions
    ]


async def _read_once(cluster: Cluster) -> list[tuple[int, int, bytes, int]]:
    """Read in a session of a connection of its own, with which the broker forgets the state."""
    async with await RawClient.to(cluster) as client:
        found = read(await fetch(client, cluster, 0, {0: []}))
        await fetch(client, cluster, -1)
        return found


async def _join(client: RawClient) -> None:
    """Join the group, and wait until its partitions have a state."""
    joining = {**_MEMBER, "member_epoch": 0, "subscribed_topic_names": ["t"]}
    await client.ask(_HEARTBEAT, 1, joining)
    while not await _offsets(client):
        await asyncio.sleep(0.001)


def test_offsets_of_an_empty_share_group_are_administered() -> None:
    async def test(cluster: Cluster, client: RawClient) -> None:
        await set_start(client, "earliest")
        await produce(client, cluster, b"a", b"b", b"c")
        await _join(client)
        async with await RawClient.to(cluster) as reader:
            read(await fetch(reader, cluster, 0, {0: []}))
            await acknowledge(reader, cluster, 1, {0: [(0, 0, ACCEPT), (2, 2, ACCEPT)]})
            await fetch(reader, cluster, -1)
        assert await _offsets(client) == [(0, 1, 1), (1, -1, -1)]
        one = {"partition_index": 0, "start_offset": 2}
        change = {"group_id": "g", "topics": [{"topic_name": "t", "partitions": [one]}]}
        refused = await client.ask(_ALTER_OFFSETS, 0, change)
        assert refused.error_code == ErrorCode.NON_EMPTY_GROUP
        await client.ask(_HEARTBEAT, 1, {**_MEMBER, "member_epoch": -1})
        for partition, offset, code in (
            (0, -1, ErrorCode.NONE),
            (2, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ):
            wrong = {"partition_index": partition, "start_offset": offset}
            asked = {"group_id": "g", "topics": [{"topic_name": "t", "partitions": [wrong]}]}
            answer = await client.ask(_ALTER_OFFSETS, 0, asked)
            assert answer.responses[0].partitions[0].error_code == code
        altered = await client.ask(_ALTER_OFFSETS, 0, change)
        assert altered.responses[0].partitions[0].error_code == 0
        assert await _offsets(client) == [(0, 2, 1), (1, -1, -1)]
        assert await _read_once(cluster) == [(0, 2, b"c", 1)]
        asked = {"group_id": "g", "topics": [{"topic_name": "t"}, {"topic_name": "none"}]}
        forgotten = await client.ask(_DELETE_OFFSETS, 0, asked)
        codes = [one.error_code for one in forgotten.responses]
        assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        again = await client.ask(_DELETE_OFFSETS, 0, asked)
        codes = [one.error_code for one in again.responses]
        assert codes == 2 * [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await _offsets(client, 0) == []
        await _join(client)
        assert len(await _read_once(cluster)) == 3

    _run(test)


def test_settings_of_a_share_group_are_described_and_checked(tmp_path: Path) -> None:
    asked = {
        "resources": [{"resource_type": _GROUP, "resource_name": "g", "configuration_keys": None}]
    }

    async def main() -> None:
        async with _one_client(tmp_path) as (cluster, client):
            assert await set_start(client, "sometimes") == ErrorCode.INVALID_CONFIG
            for days in ("9" * 400, "\u0663"):
                assert await set_start(client, f"by_duration:P{days}D") == ErrorCode.INVALID_CONFIG
            assert await set_start(client, "by_duration:PT1H") == 0
        async with _one_client(tmp_path) as (cluster, client):
            answer = await client.ask(_CONFIGS, 4, asked)
            values = {one.name: one.value for one in answer.results[0].configs}
            assert values["share.auto.offset.reset"] == "by_duration:PT1H"
            assert values["share.record.lock.duration.ms"] == "30000"
            sources = {one.name: one.config_source for one in answer.results[0].configs}
            assert sources.pop("share.auto.offset.reset") == 8, "the group's"
            assert sources.pop("share.heartbeat.interval.ms") == 4, "the brokers'"
            assert set(sources.values()) == {5}, "defaults"
            await initialize(cluster)
            await produce(client, cluster, b"new")
            assert read(await fetch(client, cluster, 0, {0: []})) == [(0, 0, b"new", 1)]

    asyncio.run(main())


def test_acknowledgements_survive_a_restart(tmp_path: Path) -> None:
    async def first() -> None:
        async with _one_client(tmp_path) as (cluster, client):
            await begin(client, cluster)
            await produce(client, cluster, b"a", b"b", b"c")
            await fetch(client, cluster, 0, {0: []})
            await acknowledge(client, cluster, 1, {0: [(0, 1, ACCEPT)]})

    async def second() -> None:
        async with _one_client(tmp_path) as (cluster, client):
            assert read(await fetch(client, cluster, 0, {0: []})) == [(0, 2, b"c", 2)]

    asyncio.run(first())
    asyncio.run(second())


def test_find_coordinator_returns_that_of_a_share_partition() -> None:
    async def test(cluster: Cluster, client: RawClient) -> None:
        topic_id = cluster.controller.topics["t"].topic_id
        key = ShareKey("g", topic_id, 0)
        broker = cluster.brokers[1]
        named = f"g:{urlsafe_b64encode(topic_id.bytes).decode().rstrip('=')}:0"
        answer = await client.ask(_FIND, 6, {"key_type": 2, "coordinator_keys": [named]})
        assert [(one.error_code, one.node_id) for one in answer.coordinators] == [(0, 1)]
        assert broker.share_coordinator.partition_of_coordinator_key(
            named
        ) == broker.share_coordinator.coordinator_partition(key)

    _run(test)


@pytest.mark.parametrize(
    "state",
    [
        ShareState(),
        ShareState(3, 70_000, 2**40, (StateBatch(2**40 + 1, 2**40 + 9, RecordState.ARCHIVED, 5),)),
        ShareState(
            0, 0, 5, tuple(StateBatch(n, n, RecordState.ACKNOWLEDGED, 1) for n in range(6, 600, 2))
        ),
    ],
)
def test_state_records_of_share_partitions_round_trip(state: ShareState) -> None:
    records = ShareStateRecords()
    key = ShareKey("gröup", UUID(int=9), 12)
    entries = [(key, state), (key._replace(partition=13), None)]
    assert list(records.entries(records.batch(entries))) == entries


def test_trace_has_share_fetches_and_locks_by_partition() -> None:
    rows = Rows()

    async def main() -> None:
        trace: Any = ClusterTrace(rows)
        async with Cluster(config(), trace) as cluster, await RawClient.to(cluster) as client:
            await begin(client, cluster)
            await produce(client, cluster, b"a")
            await fetch(client, cluster, 0, {0: []})
            await fetch(client, cluster, 1, {0: [(0, 0, ACCEPT)]})

    asyncio.run(main())
    found = [(row[1], row[8], row[10]) for row in rows.operations]
    place = (TopicPartition("t", 0),)
    assert ("ShareFetch", "completed", place) in found, "it was loaded meanwhile"
    assert ("ShareFetch", "expired", place) in found
    assert ("AcquisitionLock", "completed", place) in found


@pytest.mark.parametrize("dies", ["coordinator", "leader", "both"])
def test_acknowledgements_survive_any_death(dies: str) -> None:
    async def main() -> None:
        async with Cluster(config(brokers=3)) as cluster:
            key = ShareKey("g", cluster.controller.topics["t"].topic_id, 0)
            place = TopicPartition("t", 0)

            def leader_of(where: TopicPartition) -> int:
                state = cluster.controller.state_of(where)
                assert state is not None
                return state.leader

            leader = leader_of(place)
            kept_in = cluster.brokers[leader].share_coordinator.coordinator_partition(key)
            coordinator = leader_of(kept_in)
            async with await RawClient.to(cluster, leader) as client:
                await begin(client, cluster)
                await produce(client, cluster, b"a", b"b", b"c")
                assert len(read(await fetch(client, cluster, 0, {0: []}))) == 3
                told = await acknowledge(client, cluster, 1, {0: [(0, 0, ACCEPT)]})
                assert told.responses[0].partitions[0].error_code == 0
                if dies == "coordinator" and coordinator != leader:
                    # The coordinator dies during the request, which goes to the next one.
                    asked = acknowledge(client, cluster, 2, {0: [(1, 1, ACCEPT)]})
                    waiting = asyncio.create_task(asked)
                    await cluster.kill(coordinator)
                    assert (await waiting).responses[0].partitions[0].error_code == 0
                else:
                    asked = acknowledge(client, cluster, 2, {0: [(1, 1, ACCEPT)]})
                    assert (await asked).responses[0].partitions[0].error_code == 0
                    for broker in {leader, coordinator} if dies == "both" else {leader}:
                        if len([one for one in cluster.brokers.values() if one.alive]) > 1:
                            await cluster.kill(broker)
            async with await RawClient.to(cluster, leader_of(place)) as client:
                patience = {"member_id": "n", "max_wait": timedelta(seconds=50)}
                again = read(await fetch(client, cluster, 0, {0: []}, **patience))
                assert [(offset, value) for _, offset, value, _ in again] == [(2, b"c")]

    asyncio.run(main())
