"""Clusters that are older Kafkas: their versions, features, refusals and defaults."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from purgatory.cluster import ClusterConfig, ClusterError
from purgatory.cluster.api.registry import APIS, apis_of
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.kafka_versions import KAFKA_VERSIONS, OLDER_KAFKAS
from purgatory.virtual import World
from purgatory.virtual.cluster import WorldCluster
from tests.world.security import security_of
from tests.world.wire_client import (
    CONSUMER_HEARTBEAT,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    METADATA,
    NoAnswerError,
    WireClient,
)

_API_VERSIONS = 18


def _run(
    kafka_version: str,
    main: Callable[[WorldCluster, WireClient], Coroutine[Any, Any, None]],
    brokers: int = 1,
) -> None:
    with World(1) as world:
        cluster = world.cluster(brokers, topics=["orders"], kafka_version=kafka_version)
        client = WireClient(cluster, "test", False, security_of("none"))
        world.run(main(cluster, client))
        client.cut()


async def _versions(client: WireClient, version: int = 0) -> tuple[int, Mapping[int, Any]]:
    software = {"client_software_name": "test", "client_software_version": "1"}
    answer = await client.ask(1, _API_VERSIONS, software, version=version)
    listed = {int(one.api_key): (one.min_version, one.max_version) for one in answer.api_keys}
    return int(answer.error_code), listed


@pytest.mark.parametrize(
    ("kafka_version", "newest"),
    [
        # Produce, Fetch, Metadata, OffsetCommit, FindCoordinator, DeleteGroups, CreateTopics
        ("0.11", (3, 5, 4, 3, 1, None, 2)),
        ("1.1", (5, 7, 5, 3, 1, 0, 2)),
        ("2.0", (6, 8, 6, 4, 2, 1, 3)),
        ("2.8", (9, 12, 11, 8, 3, 2, 7)),
        ("3.0", (9, 12, 11, 8, 4, 2, 7)),
        ("3.9", (11, 17, 12, 9, 6, 2, 7)),
        ("4.0", (12, 17, 13, 9, 6, 2, 7)),
        ("4.3", (13, 18, 13, 10, 6, 2, 7)),
    ],
)
def test_versions_are_those_of_the_kafka(kafka_version: str, newest: tuple[Any, ...]) -> None:
    async def main(cluster: WorldCluster, client: WireClient) -> None:
        _, listed = await _versions(client)
        keys = (0, 1, 3, 8, 10, 42, 19)
        assert tuple(listed[key][1] if key in listed else None for key in keys) == newest
        assert all(listed[key][0] <= listed[key][1] for key in listed)
        assert {76, 78, 91}.isdisjoint(listed) == (kafka_version != "4.3")

    _run(kafka_version, main)


def test_newest_kafka_has_all_rows_and_each_older_no_more() -> None:
    assert apis_of(KAFKA_VERSIONS[-1]) is APIS
    for older, newer in pairwise(KAFKA_VERSIONS):
        for key, api in apis_of(older).items():
            assert api.versions[1] <= apis_of(newer)[key].versions[1]


@pytest.mark.parametrize("kafka_version", ["1.1", "3.0"])
def test_newer_versions_end_the_connection(kafka_version: str) -> None:
    async def main(cluster: WorldCluster, client: WireClient) -> None:
        _, listed = await _versions(client)
        newest = listed[METADATA][1]
        asked = {"topics": [{"name": "orders", "topic_id": None}]}
        assert (await client.ask(1, METADATA, asked, version=newest)).topics
        with pytest.raises(NoAnswerError):
            await client.ask(1, METADATA, asked, version=newest + 1)
        with pytest.raises(NoAnswerError):
            await client.ask(1, CONSUMER_HEARTBEAT, {"group_id": "g"}, version=0)

    _run(kafka_version, main)


@pytest.mark.parametrize(("kafka_version", "named"), [("2.0", {}), ("2.8", {18: (0, 3)})])
def test_unknown_version_of_api_versions_is_answered_in_the_oldest(
    kafka_version: str, named: Mapping[int, Any]
) -> None:
    async def main(cluster: WorldCluster, client: WireClient) -> None:
        # The answer to version 4 is encoded as one of version 0, which its reader has to know.
        with suppress(Exception):
            await _versions(client, 4)
        answer = cluster.requests(api="ApiVersions")[0].answer
        listed = {int(one.api_key): (one.min_version, one.max_version) for one in answer.api_keys}
        assert (answer.error_code, listed) == (ErrorCode.UNSUPPORTED_VERSION, named)

    _run(kafka_version, main)


def test_new_protocol_of_consumers_is_off_in_3_9() -> None:
    async def main(cluster: WorldCluster, client: WireClient) -> None:
        _, listed = await _versions(client)
        assert listed[CONSUMER_HEARTBEAT] == (0, 0)
        answer = await client.ask(1, CONSUMER_HEARTBEAT, {"group_id": "g"}, version=0)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION

    _run("3.9", main)


@pytest.mark.parametrize(
    ("kafka_version", "levels"),
    [
        ("2.8", {}),
        ("3.9", {"metadata.version": 21}),
        ("4.0", {"metadata.version": 25, "group.version": 1, "transaction.version": 2}),
    ],
)
def test_features_are_those_of_the_kafka(kafka_version: str, levels: Mapping[str, int]) -> None:
    async def main(cluster: WorldCluster, client: WireClient) -> None:
        software = {"client_software_name": "test", "client_software_version": "1"}
        answer = await client.ask(1, _API_VERSIONS, software, version=3)
        assert {one.name: one.max_version_level for one in answer.finalized_features} == levels

    _run(kafka_version, main)


@pytest.mark.parametrize(
    ("kafka_version", "ahead_ms", "most_bytes"),
    [("2.0", 2**63 - 1, 1_000_012), ("3.9", 2**63 - 1, 1_048_588), ("4.0", 3_600_000, 1_048_588)],
)
def test_defaults_are_those_of_the_kafka(
    kafka_version: str, ahead_ms: int, most_bytes: int
) -> None:
    async def main(cluster: WorldCluster, client: WireClient) -> None:
        resource = {"resource_type": 2, "resource_name": "orders", "configuration_keys": None}
        answer = await client.ask(1, DESCRIBE_CONFIGS, {"resources": [resource]})
        values = {one.name: one.value for one in answer.results[0].configs}
        assert values["message.timestamp.after.max.ms"] == str(ahead_ms)
        assert values["max.message.bytes"] == str(most_bytes)

    _run(kafka_version, main)


@pytest.mark.parametrize("kafka_version", ["2.8", "3.9"])
def test_kafkas_with_zookeeper_have_one_controller(kafka_version: str) -> None:
    async def main(cluster: WorldCluster, client: WireClient) -> None:
        cluster.move.controller(to=2)
        codes = []
        for broker in (1, 2):
            topic = {"name": f"new-{broker}", "num_partitions": 1, "replication_factor": 1}
            asked = {"topics": [topic], "timeout": timedelta(seconds=1)}
            answer = await client.ask(broker, CREATE_TOPICS, asked)
            codes.append(answer.topics[0].error_code)
        assert codes == [ErrorCode.NOT_CONTROLLER if kafka_version == "2.8" else 0, 0]

    _run(kafka_version, main, brokers=2)


def test_unknown_kafkas_are_refused() -> None:
    with World() as world, pytest.raises(ClusterError, match="must be one of 0"):
        world.cluster(kafka_version="2.7")
    assert ClusterConfig().kafka_version not in OLDER_KAFKAS
