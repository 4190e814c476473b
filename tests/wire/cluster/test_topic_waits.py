"""Topics that are made and deleted while brokers do nothing: their clients wait, and get the
result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from purgatory.cluster import Cluster, ClusterConfig, ThreadedCluster, TopicSpec
from purgatory.cluster.trace import start_trace
from purgatory.kafka import TopicPartition
from tests.wire.cluster.conftest import eventually
from tests.wire.cluster.raw_client import RawClient

_CREATE, _DELETE, _CREATE_PARTITIONS, _ELECT, _ALTER = 19, 20, 37, 43, 44
_LONG = timedelta(minutes=1)
_SHORT = timedelta(milliseconds=50)


def _run(main: Callable[[Cluster, RawClient], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def run() -> None:
        config = ClusterConfig(**{"brokers": 3, **options})
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            await main(cluster, client)

    asyncio.run(run())


def _creation(timeout: timedelta, **leaders: int) -> dict[str, Any]:
    """Topics of one partition, each with the one replica that is said."""
    topics = [
        {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": 0, "broker_ids": (leader,)}],
        }
        for name, leader in leaders.items()
    ]
    return {"topics": topics, "timeout": timeout}


def _codes(results: Any) -> dict[str, int]:
    return {one.name: one.error_code for one in results}


def _outcomes(cluster: Cluster, name: str = "Topic") -> dict[str, int]:
    [purgatory] = [one for one in cluster.brokers[1].purgatories if one.name == name]
    return {outcome: count for outcome, count in purgatory.counters.outcomes.items() if count}


async def _waits(cluster: Cluster, name: str = "Topic") -> None:
    [purgatory] = [one for one in cluster.brokers[1].purgatories if one.name == name]
    await eventually(lambda: purgatory.core.num_delayed == 1)


def test_a_creation_waits_until_all_partitions_are_led() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        pause = cluster.fault.pause(2)
        asked = asyncio.ensure_future(client.ask(_CREATE, 7, _creation(_LONG, a=1, b=2)))
        await _waits(cluster)
        assert not asked.done()
        pause.end()
        assert _codes((await asked).topics) == {"a": 0, "b": 0}
        assert _outcomes(cluster) == {"completed": 1}

    _run(main)


def test_timed_out_creation_names_the_topic_and_holds() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        pause = cluster.fault.pause(2)
        answer = await client.ask(_CREATE, 7, _creation(_SHORT, a=1, b=2))
        assert _codes(answer.topics) == {"a": 0, "b": 7}
        late = answer.topics[1]
        assert late.error_message == "b was changed, but no leader leads all of it yet"
        assert set(cluster.controller.topics) == {"a", "b"}
        assert _outcomes(cluster) == {"expired": 1}
        pause.end()
        again = await client.ask(_CREATE, 7, _creation(_LONG, b=2))
        assert _codes(again.topics) == {"b": 36}

    _run(main)


def test_a_topic_on_dead_brokers_alone_is_refused() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        await cluster.kill(3)
        assert _codes((await client.ask(_CREATE, 7, _creation(_LONG, a=3))).topics) == {"a": 39}
        await cluster.revive(3)
        assert _codes((await client.ask(_CREATE, 7, _creation(_LONG, a=3))).topics) == {"a": 0}

    _run(main)


def test_validation_alone_does_not_wait() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        cluster.fault.pause(2)
        asked = {**_creation(_LONG, a=2), "validate_only": True}
        assert _codes((await client.ask(_CREATE, 7, asked)).topics) == {"a": 0}
        assert cluster.controller.topics == {} and _outcomes(cluster) == {}

    _run(main)


def test_creation_of_partitions_waits_for_new_ones_only() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        assert _codes((await client.ask(_CREATE, 7, _creation(_LONG, a=2, b=1))).topics) == {
            "a": 0,
            "b": 0,
        }
        cluster.fault.pause(2)

        def more(name: str, leader: int) -> dict[str, Any]:
            return {"name": name, "count": 2, "assignments": [{"broker_ids": (leader,)}]}

        asked = {"topics": [more("a", 3), more("b", 2), more("z", 1)], "timeout": _SHORT}
        answer = await client.ask(_CREATE_PARTITIONS, 3, asked)
        assert _codes(answer.results) == {"a": 0, "b": 7, "z": 3}

    _run(main)


@pytest.mark.parametrize("ends", [True, False])
def test_deletion_waits_until_no_live_broker_has_the_topic(ends: bool) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        pause = cluster.fault.pause(3)
        named = [{"name": name, "topic_id": None} for name in ("one", "all", "none")]
        asked = asyncio.ensure_future(
            client.ask(_DELETE, 6, {"topics": named, "timeout": _LONG if ends else _SHORT})
        )
        if ends:
            await _waits(cluster)
            pause.end()
        answer = await asked
        assert _codes(answer.responses) == {"one": 0, "all": 0 if ends else 7, "none": 3}
        assert "one" not in cluster.controller.topics and "all" not in cluster.controller.topics

    replicated = [TopicSpec("one", replication=1), TopicSpec("all", replication=3)]
    _run(main, topics=replicated)


def test_a_deletion_does_not_wait_for_a_broker_that_dies() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        cluster.fault.pause(3)
        named = [{"name": "all", "topic_id": None}]
        asked = asyncio.ensure_future(client.ask(_DELETE, 6, {"topics": named, "timeout": _LONG}))
        await _waits(cluster)
        await cluster.fault.kill(3)
        assert _codes((await asked).responses) == {"all": 0}

    _run(main, topics=[TopicSpec("all", replication=3)])


@pytest.mark.parametrize("ends", [True, False])
def test_an_election_waits_until_the_leader_leads(ends: bool) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        first = TopicPartition("all", 0)
        state = cluster.controller.state_of(first)
        assert state is not None
        cluster.controller.reassign(first, (2, 1, 3))
        await eventually(lambda: state.replicas == (2, 1, 3) and 2 in state.isr)
        pause = cluster.fault.pause(2)
        topics = [{"topic": "all", "partitions": (0,)}, {"topic": "none", "partitions": (0,)}]
        asked = asyncio.ensure_future(
            client.ask(
                _ELECT, 2, {"topic_partitions": topics, "timeout": _LONG if ends else _SHORT}
            )
        )
        if ends:
            await _waits(cluster, "ElectLeader")
            pause.end()
        found = {
            topic.topic: topic.partition_result[0].error_code
            for topic in (await asked).replica_election_results
        }
        assert found == {"all": 0 if ends else 7, "none": 3}
        assert _outcomes(cluster, "ElectLeader") == {"completed" if ends else "expired": 1}

    _run(main, topics=[TopicSpec("all", replication=3)])


def test_unclean_election_is_a_setting_of_topics() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        state = cluster.controller.state_of(TopicPartition("all", 0))
        assert state is not None
        leader, follower, other = state.replicas
        await cluster.kill(other)
        cluster.fault.shrink_isr("all", 0, follower)
        await cluster.kill(leader)
        assert state.leader == -1
        async with await RawClient.to(cluster, follower) as another:
            changed = {"name": "unclean.leader.election.enable", "value": "true"}
            resource = {"resource_type": 2, "resource_name": "all", "configs": [changed]}
            answer = await another.ask(_ALTER, 1, {"resources": [resource]})
            assert answer.responses[0].error_code == 0
        assert (state.leader, state.isr) == (follower, (follower,))

    _run(main, topics=[TopicSpec("all", replication=3)])


def test_trace_has_the_waits(tmp_path: Path) -> None:
    async def main() -> None:
        trace, writer = start_trace(tmp_path / "trace", "waits")
        async with (
            Cluster(ClusterConfig(brokers=3), trace) as cluster,
            await RawClient.to(cluster) as client,
        ):
            cluster.fault.pause(2)
            await client.ask(_CREATE, 7, _creation(_SHORT, a=1, b=2))
        trace.close()
        writer.finish(trace.duration_ms, {})

    asyncio.run(main())
    rows = parquet.read_table(tmp_path / "trace" / "operations").to_pylist()
    [row] = [row for row in rows if row["purgatory"] == "Topic"]
    assert (row["kind"], row["outcome"], row["timeout_ms"], row["keys"]) == (
        "admin",
        "expired",
        50,
        2,
    )


def test_a_client_waits_for_its_topic_to_be_led() -> None:
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    with ThreadedCluster(ClusterConfig(brokers=2)) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers.split(",")[0]})
        admin.list_topics(timeout=30)
        with cluster.fault.pause(2):
            topic = NewTopic("late", num_partitions=1, replica_assignment=[[2]])
            [created] = admin.create_topics([topic], operation_timeout=0.2).values()
            with pytest.raises(Exception, match="no leader leads all of it yet"):
                created.result(30)
        assert "late" in admin.list_topics(timeout=30).topics
