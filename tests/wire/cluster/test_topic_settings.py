"""The settings of topics: values that would be ignored are refused in one line."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from purgatory.cluster import Cluster, ClusterConfig, Fsync, GroupConfig, TopicSpec
from purgatory.kafka import LogConfig, TopicPartition
from purgatory.kafka.settings.topic_settings import NEVER, SETTINGS
from tests.wire.cluster.raw_client import RawClient

_INVALID_CONFIG = 40
_TOPIC, _BROKER = 2, 4

OF_KAFKA = [
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.ms",
    "unclean.leader.election.enable",
]
"""All settings of topics of Kafka 4.0, but those that could affect nothing here."""

OF_STREAMS: Mapping[str, Mapping[str, str]] = {
    "repartition": {
        "cleanup.policy": "delete",
        "segment.bytes": "52428800",
        "retention.ms": "-1",
        "message.timestamp.type": "CreateTime",
    },
    "changelog": {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"},
    "windowed-changelog": {
        "cleanup.policy": "compact,delete",
        "retention.ms": "86700000",
        "message.timestamp.type": "CreateTime",
    },
    "versioned-changelog": {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": "86700000",
        "message.timestamp.type": "CreateTime",
    },
}
"""The settings of Kafka Streams' internal topics."""


def _created(client: RawClient, name: str, settings: Mapping[str, str]) -> Any:
    configs = [{"name": one, "value": value} for one, value in settings.items()]
    asked = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": configs}
    return client.ask(19, 6, {"topics": [asked]})


async def _described(client: RawClient, kind: int, name: str) -> dict[str, str]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    answer = await client.ask(32, 3, {"resources": [resource]})
    assert answer.results[0].error_code == 0
    return {config.name: config.value for config in answer.results[0].configs}


def test_settings_include_those_of_kafka() -> None:
    assert SETTINGS.keys() >= set(OF_KAFKA)


def test_described_settings_create_an_equal_topic() -> None:
    async def main() -> None:
        async with (
            Cluster(ClusterConfig(brokers=1)) as cluster,
            await RawClient.to(cluster) as client,
        ):
            assert (await _created(client, "plain", {})).topics[0].error_code == 0
            plain = await _described(client, _TOPIC, "plain")
            assert plain.keys() == SETTINGS.keys()
            answer = await _created(client, "copy", plain)
            assert answer.topics[0].error_code == 0, answer.topics[0].error_message
            assert await _described(client, _TOPIC, "copy") == plain

    asyncio.run(main())


@pytest.mark.parametrize("kind", OF_STREAMS)
def test_internal_topics_of_kafka_streams_are_created(kind: str) -> None:
    async def main() -> None:
        async with (
            Cluster(ClusterConfig(brokers=1)) as cluster,
            await RawClient.to(cluster) as client,
        ):
            answer = await _created(client, kind, OF_STREAMS[kind])
            assert answer.topics[0].error_code == 0, answer.topics[0].error_message
            described = await _described(client, _TOPIC, kind)
            assert {name: described[name] for name in OF_STREAMS[kind]} == OF_STREAMS[kind]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("message.timestamp.type", "Now", "it is one of CreateTime, LogAppendTime"),
        ("message.timestamp.type", "CreateTime,LogAppendTime", "it is one of CreateTime, Log"),
        ("compression.type", "lz4,zstd", "it is one of producer, uncompressed, gzip, snappy"),
        ("unclean.leader.election.enable", "maybe", "it is one of false, true"),
        ("segment.ms", "0", "it is at least 1"),
        ("max.compaction.lag.ms", "0", "it is at least 1"),
        ("flush.messages", "0", "it is at least 1"),
        ("flush.ms", "-1", "it is at least 0"),
        ("preallocate", "maybe", "it is one of false, true"),
        ("remote.storage.enable", "true", "nothing else. There is no remote tier"),
        ("local.retention.ms", "-3", "it is at least -2"),
        ("leader.replication.throttled.replicas", "x", "it is *, or pairs of a partition and a br"),
        ("retention.ms", "soon", "it is a whole number"),
        ("retention.ms", "1_000", "it is a whole number"),
        ("retention.ms", "\u0663", "it is a whole number"),
        ("min.cleanable.dirty.ratio", "0_0.5", "it is a number"),
        ("retention.ms", "-2", "it is at least -1"),
        ("retention.ms", str(2**63), f"it is at most {2**63 - 1}"),
        ("segment.bytes", "1048575", "it is at least 1048576"),
        ("internal.segment.bytes", "13", "it is at least 14"),
        ("segment.bytes", str(2**31), f"it is at most {2**31 - 1}"),
        ("min.cleanable.dirty.ratio", "1.5", "it is at most 1"),
        ("min.cleanable.dirty.ratio", "nan", "it is at least 0"),
        ("compression.gzip.level", "10", "it is one of -1, 1, 2"),
        ("compression.gzip.level", "0", "it is one of -1, 1, 2"),
        ("message.format.version", "2.8", "Unknown topic config name: message.format.version"),
        ("cleanup.policy", "compact,keep", "it is one of delete, compact"),
        ("retention.hours", "1", "Unknown topic config name: retention.hours; "),
        ("Retention.mss", "1", 'name: Retention.mss; did you mean "retention.ms"?'),
        ("xyz", "1", "Unknown topic config name: xyz; there are "),
    ],
)
def test_value_that_would_be_ignored_is_refused_in_one_line(
    name: str, value: str, said: str
) -> None:
    async def main() -> None:
        async with (
            Cluster(ClusterConfig(brokers=1)) as cluster,
            await RawClient.to(cluster) as client,
        ):
            (topic,) = (await _created(client, "refused", {name: value})).topics
            assert topic.error_code == _INVALID_CONFIG
            assert said in topic.error_message
            assert name in topic.error_message
            assert "\n" not in topic.error_message
            assert cluster.controller.topics == {}

    asyncio.run(main())


def test_flush_settings_follow_the_clusters_fsync(tmp_path: Path) -> None:
    async def main() -> None:
        config = ClusterConfig(brokers=1, data_dir=tmp_path, fsync=Fsync.ALWAYS)
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            assert (await _created(client, "forced", {})).topics[0].error_code == 0
            assert (await _described(client, _TOPIC, "forced"))["flush.messages"] == "1"
            for settings in ({"flush.messages": NEVER}, {"flush.ms": "5", "preallocate": "FALSE"}):
                answer = await _created(client, f"t{len(settings)}", settings)
                assert answer.topics[0].error_code == 0

    asyncio.run(main())


def test_kerberos_setting_of_a_broker_is_kept() -> None:
    async def main() -> None:
        name = "sasl.kerberos.min.time.before.relogin"
        async with (
            Cluster(ClusterConfig(brokers=1)) as cluster,
            await RawClient.to(cluster) as client,
        ):
            configs = [{"name": name, "value": "58000"}]
            resource = {"resource_type": _BROKER, "resource_name": "1", "configs": configs}
            answer = await client.ask(33, 2, {"resources": [resource]})
            assert answer.responses[0].error_code == 0, answer.responses[0].error_message
            assert (await _described(client, _BROKER, "1"))[name] == "58000"

    asyncio.run(main())


def test_broker_describes_settings_by_its_own_names() -> None:
    async def main() -> None:
        groups = GroupConfig(min_session_timeout_ms=250)
        config = ClusterConfig(brokers=2, min_insync_replicas=2, retention_ms=7, groups=groups)
        async with Cluster(config) as cluster, await RawClient.to(cluster, 2) as client:
            described = await _described(client, _BROKER, "2")
            expected = {
                "broker.id": "2",
                "log.retention.ms": "7",
                "log.cleanup.policy": "delete",
                "log.message.timestamp.type": "CreateTime",
                "message.max.bytes": "1048588",
                "min.insync.replicas": "2",
                "compression.type": "producer",
                "group.min.session.timeout.ms": "250",
                "auto.create.topics.enable": "true",
            }
            assert {name: described.get(name) for name in expected} == expected
            shared = {"min.insync.replicas", "compression.type", "unclean.leader.election.enable"}
            levels = {name for name in SETTINGS if name.startswith("compression.")}
            assert described.keys() & SETTINGS.keys() == shared | levels

    asyncio.run(main())


def test_configured_settings_hold_for_all_logs() -> None:
    async def main() -> None:
        logs = LogConfig(
            compacts=True, is_log_append_time=True, min_compaction_lag_ms=7, segment_ms=9
        )
        config = ClusterConfig(brokers=1, topics=[TopicSpec("t")], log_config=logs)
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            described = await _described(client, _TOPIC, "t")
            expected = {
                "cleanup.policy": "compact,delete",
                "message.timestamp.type": "LogAppendTime",
                "min.compaction.lag.ms": "7",
                "segment.ms": "9",
                "retention.ms": "604800000",
            }
            assert {name: described[name] for name in expected} == expected
            partition = cluster.brokers[1].manager.partition(TopicPartition("t", 0))
            assert partition is not None
            assert partition.log.config == replace(
                logs, segment_bytes=cluster.log_config.segment_bytes
            )

    asyncio.run(main())


def test_logs_of_a_config_without_retention_keep_old_records() -> None:
    config = ClusterConfig(
        brokers=1, topics=[TopicSpec("t")], log_config=LogConfig(retention_ms=None)
    )

    async def main() -> None:
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            assert (await _described(client, _TOPIC, "t"))["retention.ms"] == "-1"

    asyncio.run(main())
