"""Every API in every version, over a connection: `kio` reads each answer back."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from purgatory.cluster import Cluster, ClusterConfig, GroupConfig, TopicSpec
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import ALL_VERSIONS, record_batch, request_frame

_SECOND = timedelta(seconds=1)
_GROUP = {"group_id": "g", "member_id": ""}
_TRANSACTION = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0}

_CHANGED = [
    {
        "resource_type": kind,
        "resource_name": name,
        "configs": [{"name": "min.insync.replicas", "value": "1", "config_operation": 0}],
    }
    for kind, name in ((2, "t"), (2, "none"), (4, "1"), (4, ""), (8, "1"))
]


_UNKNOWN_ID = UUID(int=7)


def _named(cluster: Cluster, name: str) -> dict[str, Any]:
    topic = cluster.controller.topics.get(name)
    return {"topic": name, "name": name, "topic_id": topic.topic_id if topic else _UNKNOWN_ID}


def _values(cluster: Cluster, api_key: int) -> dict[str, Any]:
    """Requests in which each array has an element, known or not, for long responses."""
    partition = {"partition": 0, "partition_index": 0, "index": 0}
    both = [{**_named(cluster, name), "partitions": [partition]} for name in ("t", "none")]
    values: dict[int, dict[str, Any]] = {
        0: {
            "acks": -1,
            "timeout": _SECOND,
            "topic_data": [
                {
                    **_named(cluster, name),
                    "partition_data": [{"index": 0, "records": record_batch([b"x"])}],
                }
                for name in ("t", "none")
            ],
        },
        1: {
            "topics": [
                {**one, "partitions": [{"partition": 0, "partition_max_bytes": 999}]}
                for one in both
            ]
        },
        2: {"topics": both},
        3: {"topics": [{"name": name} for name in ("t", "none", "not a name")]},
        8: {**_GROUP, "generation_id_or_member_epoch": -1, "topics": both},
        9: {
            "group_id": "g",
            "topics": [{"name": "t", "partition_indexes": [0]}],
            "groups": [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]}],
        },
        10: {"key": "g", "coordinator_keys": ["g", "h"]},
        11: {
            **_GROUP,
            "session_timeout": _SECOND,
            "rebalance_timeout": _SECOND,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"what I subscribe to"}],
        },
        12: _GROUP,
        13: {**_GROUP, "members": [{"member_id": "m"}]},
        14: _GROUP,
        15: {"groups": ["g", "none"]},
        17: {"mechanism": "PLAIN"},
        19: {
            "topics": [
                {"name": "u", "num_partitions": 2, "replication_factor": 1},
                {"name": "t", "num_partitions": 1, "replication_factor": 1},
            ],
            "timeout": _SECOND,
        },
        20: {"topic_names": ["none"], "topics": [{"name": "none"}, {"topic_id": _UNKNOWN_ID}]},
        21: {"topics": both, "timeout": _SECOND},
        23: {"topics": both},
        24: {
            **{f"v3_and_below_{key}": value for key, value in _TRANSACTION.items()},
            "v3_and_below_topics": [{"name": "t", "partitions": [0]}],
            "transactions": [
                {**_TRANSACTION, "topics": [{"name": "t", "partitions": [0]}]},
                {**_TRANSACTION, "verify_only": True, "topics": [{"name": "t", "partitions": [0]}]},
            ],
        },
        25: {**_TRANSACTION, "group_id": "g"},
        26: {**_TRANSACTION, "committed": True},
        27: {
            "markers": [
                {
                    "producer_id": 1,
                    "producer_epoch": 0,
                    "transaction_result": True,
                    "coordinator_epoch": 0,
                    "topics": [{"name": name, "partition_indexes": [0]} for name in ("t", "none")],
                }
            ]
        },
        28: {**_TRANSACTION, "group_id": "g", "topics": both},
        32: {
            "resources": [
                {"resource_type": 2, "resource_name": "t", "configuration_keys": None},
                {"resource_type": 4, "resource_name": "1", "configuration_keys": None},
                {"resource_type": 2, "resource_name": "none", "configuration_keys": None},
            ]
        },
        33: {"resources": _CHANGED},
        35: {"topics": [{"topic": "t", "partitions": [0]}]},
        37: {"topics": [{"name": name, "count": 1} for name in ("t", "none")]},
        42: {"groups_names": ["none"]},
        43: {"topic_partitions": [{"topic": name, "partitions": [0]} for name in ("t", "none")]},
        68: {
            "group_id": "h",
            "member_id": "m",
            "rebalance_timeout": _SECOND,
            "subscribed_topic_names": ["t"],
            "topic_partitions": [],
        },
        69: {"group_ids": ["h", "none"]},
        44: {"resources": _CHANGED},
        45: {
            "topics": [
                {"name": name, "partitions": [{"partition_index": 0, "replicas": [1]}]}
                for name in ("t", "none")
            ]
        },
        46: {"topics": [{"name": "t", "partition_indexes": [0]}]},
        47: {"group_id": "g", "topics": both},
        60: {"endpoint_type": 1},
        61: {"topics": [{"name": name, "partition_indexes": [0]} for name in ("t", "none")]},
        65: {"transactional_ids": ["x", "none"]},
        66: {"state_filters": ["Ongoing", "Odd"], "producer_id_filters": [1]},
        75: {"topics": [{"name": name} for name in ("t", "none", "not a name")]},
    }
    return values.get(api_key, {})


def _config() -> ClusterConfig:
    groups = GroupConfig(initial_rebalance_delay_ms=0, min_session_timeout_ms=100)
    return ClusterConfig(
        brokers=1, topics=[TopicSpec("t")], groups=groups, auto_create_topics=False
    )


@pytest.fixture(scope="module")
def loop_runner() -> Any:
    with asyncio.Runner() as runner:
        cluster = Cluster(_config())
        runner.run(cluster.start())
        yield runner, cluster
        runner.run(cluster.stop())


@pytest.mark.parametrize("how", ["with what is usual in it", "with nothing in it"])
@pytest.mark.parametrize(("api_key", "version"), ALL_VERSIONS)
def test_every_version_has_a_response(
    loop_runner: Any, api_key: int, version: int, how: str
) -> None:
    runner, cluster = loop_runner

    async def main() -> None:
        async with await RawClient.to(cluster) as client:
            values = _values(cluster, api_key) if "usual" in how else {}
            if api_key == 0:
                values.setdefault("acks", -1)
            body = await client.ask(api_key, version, values)
            assert body is not None
            # The connection serves on.
            await client.ask(18, 0)

    runner.run(main())


def test_a_record_is_written_and_read_in_every_version(loop_runner: Any) -> None:
    runner, cluster = loop_runner

    async def main() -> None:
        async with await RawClient.to(cluster) as client:
            for version in [version for key, version in ALL_VERSIONS if key == 0]:
                answer = await client.ask(0, version, _values(cluster, 0))
                codes = [one.partition_responses[0].error_code for one in answer.responses]
                assert sorted(codes) == [0, 100 if version >= 13 else 3]
            for version in [version for key, version in ALL_VERSIONS if key == 1]:
                answer = await client.ask(1, version, _values(cluster, 1))
                partitions = [topic.partitions[0] for topic in answer.responses]
                read, unknown = sorted(partitions, key=lambda one: int(one.error_code))
                assert read.error_code == 0
                assert read.records, version
                assert unknown.error_code == (100 if version >= 13 else 3)

    runner.run(main())


KAFKA_4_1 = {
    0: (0, 13),  # told so, and served from 3 on
    1: (4, 18),
    3: (0, 13),
    8: (2, 10),
    9: (1, 10),
    11: (0, 9),
    19: (2, 7),
    20: (1, 6),
    22: (0, 5),
    23: (2, 4),
    24: (0, 5),
    25: (0, 4),
    26: (0, 5),
    28: (0, 5),
    32: (1, 4),
    60: (0, 2),
}
"""The output of `kafka-broker-api-versions.sh` for APIs whose versions Kafka 4 changed."""


def test_apis_are_served_in_kafka_4_s_versions(loop_runner: Any) -> None:
    runner, cluster = loop_runner

    async def main() -> None:
        async with await RawClient.to(cluster) as client:
            served = (await client.ask(18, 0)).api_keys
            told = {one.api_key: (one.min_version, one.max_version) for one in served}
            assert {key: told[key] for key in KAFKA_4_1} == KAFKA_4_1

    runner.run(main())


def test_empty_topics_mean_all_in_metadata_v0_and_none_in_v1(
    loop_runner: Any,
) -> None:
    runner, cluster = loop_runner

    async def main() -> None:
        async with await RawClient.to(cluster) as client:

            async def names(version: int, topics: list[dict[str, str]] | None) -> list[str]:
                answer = await client.ask(3, version, {"topics": topics})
                assert [one.node_id for one in answer.brokers] == [1]
                return [one.name for one in answer.topics if not one.name.startswith("__")]

            assert "t" in (every := await names(1, None))  # other tests made more
            assert await names(0, []) == every
            assert await names(1, []) == []
            assert await names(0, [{"name": "t"}]) == ["t"]
            [unknown] = (await client.ask(3, 0, {"topics": [{"name": "never-made"}]})).topics
            assert (unknown.name, unknown.error_code) == ("never-made", 3)

    runner.run(main())


def test_session_timeout_stands_for_a_missing_rebalance_timeout(
    loop_runner: Any,
) -> None:
    runner, cluster = loop_runner

    async def main() -> None:
        async with await RawClient.to(cluster) as client:
            protocols = [{"name": "range", "metadata": b""}]
            values = {
                "group_id": "of old",
                "session_timeout": timedelta(milliseconds=7_000),
                "protocol_type": "consumer",
                "protocols": protocols,
            }
            answer = await client.ask(11, 0, values)
            assert (answer.error_code, answer.generation_id) == (0, 1), "it needs no id first"
            group = cluster.brokers[1].groups.classic.groups["of old"]
            assert group.rebalance_timeout_ms == 7_000

    runner.run(main())


def test_produce_with_acks_0_has_no_response_and_is_stored(loop_runner: Any) -> None:
    runner, cluster = loop_runner

    async def main() -> None:
        async with await RawClient.to(cluster) as client:
            end = {"partition_index": 0, "timestamp": -1}
            where = {"topics": [{"name": "t", "partitions": [end]}]}
            before = (await client.ask(2, 1, where)).topics[0].partitions[0].offset
            values = _values(cluster, 0)
            known = [one for one in values["topic_data"] if one["name"] == "t"]
            client.send(request_frame(0, 9, 1, {**values, "topic_data": known, "acks": 0}))
            # The next response is that to this request, and no other.
            after = (await client.ask(2, 1, where)).topics[0].partitions[0].offset
            assert after == before + 1

    runner.run(main())
