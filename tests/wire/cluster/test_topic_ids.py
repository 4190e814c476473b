"""Topics by their ids: told by Metadata, another one for each topic, and kept over a restart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from purgatory.cluster import Cluster, ClusterConfig, TopicSpec
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import request_frame

_UNKNOWN_SERVER_ERROR = -1
_UNKNOWN_TOPIC, _INVALID_REQUEST, _UNKNOWN_TOPIC_ID = 3, 42, 100


async def _metadata(cluster: Cluster, version: int, *topics: dict[str, Any]) -> list[Any]:
    async with await RawClient.to(cluster) as client:
        answer = await client.ask(
            3, version, {"topics": topics or None, "allow_auto_topic_creation": False}
        )
        return list(answer.topics)


def _config(data_dir: Path | None = None) -> ClusterConfig:
    return ClusterConfig(brokers=1, topics=[TopicSpec("a"), TopicSpec("b")], data_dir=data_dir)


def test_recreated_topic_has_another_id() -> None:
    async def main() -> None:
        async with Cluster(_config()) as cluster:
            by_name = {one.name: one.topic_id for one in await _metadata(cluster, 12)}
            assert by_name.keys() == {"a", "b"}
            assert isinstance(by_name["a"], UUID)
            assert by_name["a"] != by_name["b"]
            [found] = await _metadata(cluster, 12, {"name": None, "topic_id": by_name["b"]})
            assert (found.error_code, found.name, len(found.partitions)) == (0, "b", 1)
            cluster.controller.delete_topic("b")
            cluster.controller.create_topic("b", 1, 1)
            [gone] = await _metadata(cluster, 12, {"name": None, "topic_id": by_name["b"]})
            assert (gone.error_code, gone.name) == (_UNKNOWN_TOPIC_ID, None)
            [new] = await _metadata(cluster, 10, {"name": "b", "topic_id": None})
            assert new.topic_id not in (None, by_name["b"])

    asyncio.run(main())


def test_unknown_ids_and_ids_in_early_versions_are_refused() -> None:
    async def main() -> None:
        async with Cluster(_config()) as cluster:
            [neither] = await _metadata(cluster, 12, {"name": None, "topic_id": None})
            [early] = await _metadata(cluster, 11, {"name": None, "topic_id": uuid4()})
            assert [neither.error_code, early.error_code] == [-1, _INVALID_REQUEST], "as in Kafka"
            [unknown] = await _metadata(cluster, 12, {"name": "none", "topic_id": None})
            assert (unknown.error_code, unknown.topic_id) == (_UNKNOWN_TOPIC, None)

    asyncio.run(main())


def test_topic_ids_are_saved_and_stable(tmp_path: Path) -> None:
    async def ids() -> dict[str, UUID]:
        async with Cluster(_config(tmp_path)) as cluster:
            return {one.name: one.topic_id for one in cluster.controller.topics.values()}

    first = asyncio.run(ids())
    assert asyncio.run(ids()) == first
    file = tmp_path / "cluster.json"
    saved = json.loads(file.read_text())
    for topic in saved["topics"]:
        del topic["id"]
    file.write_text(json.dumps(saved))
    former = asyncio.run(ids())
    assert len(set(former.values())) == 2
    file.write_text(json.dumps(saved))
    assert asyncio.run(ids()) == former


def test_bytes_behind_a_request_are_ignored() -> None:
    async def main() -> None:
        async with Cluster(_config()) as cluster, await RawClient.to(cluster) as client:
            frame = request_frame(3, 12, 1, {"topics": None})
            for count in (3, 100):
                client.send(frame + bytes(count))
                await client.receive()

    asyncio.run(main())
