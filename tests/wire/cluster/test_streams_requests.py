"""Streams groups over the wire: internal topics, their permissions, restarts, older Kafkas."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from purgatory.cluster import AclSpec, Authorization, Cluster, ClusterConfig, GroupConfig, TopicSpec
from purgatory.kafka.features import STREAMS
from tests.wire.cluster.raw_client import RawClient

_VERSIONS, _LIST, _HEARTBEAT, _DESCRIBE = 18, 16, 88, 89
_CHANGELOG = "g-counts-changelog"
_GROUPS = GroupConfig(streams_initial_rebalance_delay_ms=0, streams_heartbeat_interval_ms=1_234)
_STATUS_MISSING = 3


def _config(**more: Any) -> ClusterConfig:
    return ClusterConfig(brokers=1, topics=[TopicSpec("lines", 2)], groups=_GROUPS, **more)


def _joining(**more: Any) -> dict[str, Any]:
    changelog = {
        "name": _CHANGELOG,
        "partitions": 0,
        "replication_factor": 0,
        "topic_configs": [{"key": "cleanup.policy", "value": "compact"}],
    }
    subtopology = {
        "subtopology_id": "0",
        "source_topics": ["lines"],
        "state_changelog_topics": [changelog],
        "repartition_source_topics": [],
        "copartition_groups": [],
    }
    return {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 0,
        "endpoint_information_epoch": 0,
        "rebalance_timeout": timedelta(seconds=20),
        "topology": {"epoch": 0, "subtopologies": [subtopology]},
        "process_id": "p",
        **{f"{kind}_tasks": [] for kind in ("active", "standby", "warmup")},
        **more,
    }


def test_heartbeat_creates_internal_topics(tmp_path: Path) -> None:
    async def main() -> None:
        config = _config(data_dir=tmp_path)
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            first = await client.ask(_HEARTBEAT, 0, _joining())
            assert [one.status_code for one in first.status] == [_STATUS_MISSING]
            topic = cluster.controller.topics[_CHANGELOG]
            assert (len(topic.partitions), topic.configs["cleanup.policy"]) == (2, "compact")
            while not (told := await client.ask(_HEARTBEAT, 0, _joining())).active_tasks:
                await asyncio.sleep(0.1)
            assert told.active_tasks[0].partitions == (0, 1)
            assert told.heartbeat_interval == timedelta(milliseconds=1_234)
            listed = await client.ask(_LIST, 5, {"types_filter": ["Streams"]})
            assert [(one.group_id, one.group_type) for one in listed.groups] == [("g", "streams")]
            before = (await client.ask(_DESCRIBE, 0, {"group_ids": ["g"]})).groups
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            again = (await client.ask(_DESCRIBE, 0, {"group_ids": ["g"]})).groups
            assert again[0].members == before[0].members
            assert (again[0].group_epoch, again[0].group_state) == (before[0].group_epoch, "Stable")

    asyncio.run(main())


@pytest.mark.parametrize("may_create", [False, True])
def test_internal_topics_need_the_permission_to_create(may_create: bool) -> None:
    anybody = "User:ANONYMOUS"
    acls = [AclSpec(anybody, "READ", "GROUP", "g"), AclSpec(anybody, "DESCRIBE", "TOPIC", "*")]
    if may_create:
        acls.append(AclSpec(anybody, "CREATE", "TOPIC", _CHANGELOG))
    authorization = Authorization(allow_everyone_if_no_acl_found=False, acls=acls)

    async def main() -> None:
        config = _config(authorization=authorization)
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            answer = await client.ask(_HEARTBEAT, 0, _joining())
            assert (_CHANGELOG in cluster.controller.topics) == may_create
            text = f"Unauthorized to CREATE on topics {_CHANGELOG}."
            assert (text in answer.status[0].status_detail) != may_create
            cluster.security.change_acls([], [acls[1].acl])
            refused = await client.ask(_HEARTBEAT, 0, _joining())
            assert refused.error_code == 29, "its topics are not to be described"
            [group] = (await client.ask(_DESCRIBE, 0, {"group_ids": ["g"]})).groups
            assert (group.error_code, group.topology, group.members) == (29, None, ())

    asyncio.run(main())


def test_streams_groups_are_off_without_the_feature() -> None:
    async def main() -> None:
        async with Cluster(_config()) as cluster, await RawClient.to(cluster) as client:
            cluster.controller.feature_levels[STREAMS] = 0
            assert (await client.ask(_HEARTBEAT, 0, _joining())).error_code == 35
            [group] = (await client.ask(_DESCRIBE, 0, {"group_ids": ["g"]})).groups
            assert group.error_code == 35

    asyncio.run(main())


@pytest.mark.parametrize("kafka_version", ["4.0", "4.3"])
def test_older_kafka_shows_no_streams_groups(kafka_version: str) -> None:
    async def main() -> None:
        config = _config(kafka_version=kafka_version)
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            shown = {one.api_key for one in (await client.ask(_VERSIONS, 2)).api_keys}
            assert ({_HEARTBEAT, _DESCRIBE} <= shown) == (kafka_version == "4.3")

    asyncio.run(main())
