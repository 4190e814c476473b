"""Settings that change while the cluster runs: by real clients, at once, and over a restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource as AiokafkaResource
from aiokafka.admin.config_resource import ConfigResourceType as AiokafkaType
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)
from confluent_kafka.admin._resource import ResourceType
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource as KafkaPythonResource
from kafka.admin import ConfigResourceType as KafkaPythonType

from purgatory.cluster import Cluster, ClusterConfig, ThreadedCluster, TopicSpec
from purgatory.kafka import LogConfig, TopicPartition
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.wire.cluster.kafka_client import TIMEOUT_S
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_client import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS, WireClient
from tests.wire.cluster.wire_values import RECORD_TIME_MS, record_batch

_OF_TOPIC, _OF_BROKER, _OF_ALL = 1, 2, 3
_SET, _DELETE = 0, 1
_TOPIC, _BROKER = ResourceType.TOPIC, ResourceType.BROKER


@pytest.fixture
def admin(cluster: ThreadedCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers})


def _described(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    (future,) = admin.describe_configs([ConfigResource(kind, name)]).values()
    found: dict[str, ConfigEntry] = future.result(TIMEOUT_S)
    return found


def _source(entry: ConfigEntry) -> int:
    return ConfigSource(entry.source).value


def _alter(
    admin: AdminClient,
    kind: ResourceType,
    name: str,
    values: dict[str, str | None],
    how: AlterConfigOpType = AlterConfigOpType.SET,
    **options: bool,
) -> None:
    entries = [ConfigEntry(one, value, incremental_operation=how) for one, value in values.items()]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    (future,) = admin.incremental_alter_configs([resource], **options).values()
    future.result(TIMEOUT_S)


def test_confluent_kafka_changes_a_topic_step_by_step(
    cluster: ThreadedCluster, admin: AdminClient, name: str
) -> None:
    cluster.create_topic(name)
    _alter(admin, _TOPIC, name, {"retention.ms": "60000", "min.insync.replicas": "3"})
    _alter(admin, _TOPIC, name, {"cleanup.policy": "compact"}, AlterConfigOpType.APPEND)
    _alter(admin, _TOPIC, name, {"retention.ms": None}, AlterConfigOpType.DELETE)
    found = _described(admin, _TOPIC, name)
    assert found["cleanup.policy"].value == "delete,compact"
    assert found["min.insync.replicas"].value == "3"
    assert _source(found["min.insync.replicas"]) == _OF_TOPIC
    assert found["retention.ms"].is_default


def test_confluent_kafka_replaces_or_validates_settings(
    cluster: ThreadedCluster, admin: AdminClient, name: str
) -> None:
    cluster.create_topic(name)
    _alter(admin, _TOPIC, name, {"retention.ms": "60000"})
    _alter(admin, _TOPIC, name, {"retention.ms": "1"}, validate_only=True)
    assert _described(admin, _TOPIC, name)["retention.ms"].value == "60000"
    replaced = ConfigResource(_TOPIC, name, set_config={"segment.bytes": "5000000"})
    with pytest.warns(DeprecationWarning, match="incremental_alter_configs"):
        (future,) = admin.alter_configs([replaced]).values()
    future.result(TIMEOUT_S)
    found = _described(admin, _TOPIC, name)
    assert found["segment.bytes"].value == "5000000"
    assert found["retention.ms"].is_default, "a setting that isn't named has its default"
    with pytest.raises(KafkaException, match=r"segment\.bytes=13: it is at least 1048576"):
        _alter(admin, _TOPIC, name, {"segment.bytes": "13"}, validate_only=True)
    with pytest.raises(KafkaException, match="there is no topic 'nowhere'"):
        _alter(admin, _TOPIC, "nowhere", {"segment.bytes": "5000000"})


def test_confluent_kafka_changes_one_broker_and_all(
    cluster: ThreadedCluster, admin: AdminClient, name: str
) -> None:
    cluster.create_topic(name)

    def bounds() -> dict[int, int]:
        return {
            number: partition.log.config.max_batch_bytes
            for number, broker in cluster.running.brokers.items()
            for partition in broker.manager.partitions()
            if partition.topic_partition.topic == name
        }

    def change_all(operation: int) -> None:
        # confluent-kafka takes no empty name, which stands for all brokers.
        config = {"name": "message.max.bytes", "value": "2000", "config_operation": operation}
        resource = {"resource_type": 4, "resource_name": "", "configs": [config]}
        with WireClient(int(cluster.bootstrap_servers.split(",")[0].split(":")[1])) as client:
            client.send(INCREMENTAL_ALTER_CONFIGS, {"resources": [resource]})
            _, answer = client.receive()
        assert answer.responses[0].error_code == 0, answer

    change_all(_SET)
    _alter(admin, _BROKER, "2", {"message.max.bytes": "3000"})
    try:
        assert cluster.call(bounds) == {1: 2000, 2: 3000, 3: 2000}
        of_two = _described(admin, _BROKER, "2")["message.max.bytes"]
        assert _source(of_two) == _OF_BROKER
        of_one = _described(admin, _BROKER, "1")["message.max.bytes"]
        assert (of_one.value, _source(of_one)) == ("2000", _OF_ALL)
        _alter(admin, _TOPIC, name, {"max.message.bytes": "4000"})
        assert cluster.call(bounds) == {1: 4000, 2: 4000, 3: 4000}
    finally:
        change_all(_DELETE)
        _alter(admin, _BROKER, "2", {"message.max.bytes": None}, AlterConfigOpType.DELETE)
    assert _described(admin, _BROKER, "1")["message.max.bytes"].value == "1048588"
    _alter(admin, _BROKER, "1", {"num.partitions": "1"})
    with pytest.raises(KafkaException, match=r"num\.partitions can't be changed while"):
        _alter(admin, _BROKER, "1", {"num.partitions": "2"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log.retention.ms", "600000"),
        ("sasl.kerberos.min.time.before.relogin", "58000"),
    ],
)
def test_confluent_kafka_changes_dynamic_broker_settings(
    admin: AdminClient, name: str, value: str
) -> None:
    by_default = _described(admin, _BROKER, "1")[name]
    assert not by_default.is_read_only
    _alter(admin, _BROKER, "1", {name: value})
    try:
        found = _described(admin, _BROKER, "1")[name]
        assert (found.value, _source(found)) == (value, _OF_BROKER)
        assert _described(admin, _BROKER, "2")[name].value == by_default.value
    finally:
        _alter(admin, _BROKER, "1", {name: None}, AlterConfigOpType.DELETE)
    assert _described(admin, _BROKER, "1")[name].value == by_default.value


def test_unknown_broker_setting_is_accepted_and_forgotten(admin: AdminClient) -> None:
    _alter(admin, _BROKER, "1", {"cleanup.policy": "compact", "nope": "1"})
    assert not {"cleanup.policy", "nope"} & _described(admin, _BROKER, "1").keys()


def test_threads_of_a_broker_change_to_their_double_at_most(admin: AdminClient) -> None:
    name = "num.io.threads"
    _alter(admin, _BROKER, "1", {name: "16"})
    assert _described(admin, _BROKER, "1")[name].value == "16"
    for refused in ("7", "33", "x"):
        with pytest.raises(KafkaException, match=f"{name}={refused}"):
            _alter(admin, _BROKER, "1", {name: refused})
    with pytest.raises(KafkaException, match=r"log\.dir can't be changed"):
        _alter(admin, _BROKER, "1", {"log.dir": "/x"})


def test_topic_may_have_no_cleanup_policy(
    cluster: ThreadedCluster, admin: AdminClient, name: str
) -> None:
    cluster.create_topic(name, settings={"retention.ms": "1", "segment.ms": "1"})
    _alter(admin, _TOPIC, name, {"cleanup.policy": "delete"}, AlterConfigOpType.SUBTRACT)
    assert _described(admin, _TOPIC, name)["cleanup.policy"].value == ""

    def logs() -> list[LogConfig]:
        return [
            partition.log.config
            for broker in cluster.running.brokers.values()
            for partition in broker.manager.partitions()
            if partition.topic_partition.topic == name
        ]

    assert {(log.deletes, log.compacts) for log in cluster.call(logs)} == {(False, False)}
    ConfluentClient(cluster.bootstrap_servers).produce(name, [b"without a key", b"and old"])
    _alter(admin, _TOPIC, name, {"cleanup.policy": "compact"}, AlterConfigOpType.APPEND)
    assert _described(admin, _TOPIC, name)["cleanup.policy"].value == "compact"


def test_size_of_segments_in_memory_is_described_as_default(
    cluster: ThreadedCluster, admin: AdminClient, name: str
) -> None:
    cluster.create_topic(name)
    of_topic = _described(admin, _TOPIC, name)["segment.bytes"]
    of_broker = _described(admin, _BROKER, "1")["log.segment.bytes"]
    assert of_topic.is_default and of_broker.is_default
    assert of_topic.value == of_broker.value
    assert int(of_topic.value or 0) == 1 << 30, "segments in memory are smaller than that"


def test_empty_list_of_keys_describes_all_settings_as_null_does(
    cluster: ThreadedCluster, name: str
) -> None:
    cluster.create_topic(name)

    def told(kind: int, resource: str, keys: list[str] | None) -> set[str]:
        asked = {"resource_type": kind, "resource_name": resource, "configuration_keys": keys}
        port = int(cluster.bootstrap_servers.split(",")[0].split(":")[1])
        with WireClient(port) as client:
            client.send(DESCRIBE_CONFIGS, {"resources": [asked]})
            _, answer = client.receive()
        return {config.name for config in answer.results[0].configs}

    for kind, resource in ((2, name), (4, "1"), (32, name)):
        of_all = told(kind, resource, None)
        assert of_all
        assert told(kind, resource, []) == of_all
        one = min(of_all)
        assert told(kind, resource, [one, "no.such.setting"]) == {one}


def test_changed_topic_settings_apply_to_the_next_produce(
    cluster: ThreadedCluster, admin: AdminClient, name: str
) -> None:
    cluster.create_topic(name)
    client = ConfluentClient(cluster.bootstrap_servers)
    client.produce(name, [b"x" * 500])
    _alter(admin, _TOPIC, name, {"max.message.bytes": "400"})
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        client.produce(name, [b"x" * 500])
    client.produce(name, [b"x" * 100])
    _alter(admin, _TOPIC, name, {"max.message.bytes": "2000", "cleanup.policy": "compact"})
    with pytest.raises(KafkaException, match="INVALID_RECORD"):
        client.produce(name, [b"x" * 500])
    _alter(admin, _TOPIC, name, {"cleanup.policy": "delete"})
    client.produce(name, [b"x" * 500])
    assert len(client.read(name, 0, 3)) == 3


def test_leader_stamps_its_time_with_log_append_time(
    cluster: ThreadedCluster, admin: AdminClient, name: str
) -> None:
    cluster.create_topic(name)
    _alter(admin, _TOPIC, name, {"message.timestamp.type": "LogAppendTime"})
    began_ms = time.time_ns() // 1_000_000
    told: list[tuple[int, int]] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "compression.type": "lz4"})
    producer.produce(
        name,
        b"x" * 1_000,
        timestamp=RECORD_TIME_MS,
        on_delivery=lambda error, message: told.append(message.timestamp()),
    )
    assert producer.flush(TIMEOUT_S) == 0
    consumer = ConfluentClient(cluster.bootstrap_servers)._consumer(name)
    try:
        consumer.subscribe([name])
        message = consumer.poll(TIMEOUT_S)
        assert message is not None and message.value() == b"x" * 1_000
        kind, time_ms = message.timestamp()
    finally:
        consumer.close()
    assert kind == 2, "the time of the append"
    assert began_ms <= time_ms <= time.time_ns() // 1_000_000
    assert told == [(kind, time_ms)], "the producer gets the same time"


def test_records_too_far_from_the_broker_s_time_are_refused(
    cluster: ThreadedCluster, admin: AdminClient, name: str
) -> None:
    cluster.create_topic(name)
    _alter(admin, _TOPIC, name, {"message.timestamp.before.max.ms": "3600000"})
    client = ConfluentClient(cluster.bootstrap_servers)
    with pytest.raises(KafkaException, match="INVALID_TIMESTAMP"):
        client.produce(name, [b"old"], times_ms=[RECORD_TIME_MS])
    now_ms = time.time_ns() // 1_000_000
    with pytest.raises(KafkaException, match="INVALID_TIMESTAMP"):
        client.produce(name, [b"in microseconds"], times_ms=[now_ms * 1_000])
    client.produce(name, [b"new"], times_ms=[now_ms + 3_500_000])
    _alter(admin, _TOPIC, name, {"message.timestamp.after.max.ms": "10000"})
    with pytest.raises(KafkaException, match="INVALID_TIMESTAMP"):
        client.produce(name, [b"of the future"], times_ms=[now_ms + 3_500_000])
    assert [record.value for record in client.read(name, 0, 1)] == [b"new"]


@pytest.fixture
def kafka_python_admin(cluster: ThreadedCluster) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(","))
    yield admin
    admin.close()


def test_kafka_python_changes_a_topic(
    cluster: ThreadedCluster, kafka_python_admin: KafkaAdminClient, admin: AdminClient, name: str
) -> None:
    cluster.create_topic(name)
    resource = KafkaPythonResource(KafkaPythonType.TOPIC, name, {"retention.ms": "60000"})
    kafka_python_admin.alter_configs([resource])
    assert _described(admin, _TOPIC, name)["retention.ms"].value == "60000"


def test_aiokafka_changes_a_topic(cluster: ThreadedCluster, admin: AdminClient, name: str) -> None:
    cluster.create_topic(name)

    async def main() -> Any:
        client = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
        await client.start()
        try:
            resource = AiokafkaResource(AiokafkaType.TOPIC, name, {"retention.ms": "60000"})
            return await client.alter_configs([resource])
        finally:
            await client.close()

    asyncio.run(main())
    assert _described(admin, _TOPIC, name)["retention.ms"].value == "60000"


def _set(kind: int, name: str, value: str) -> dict[str, Any]:
    key = "retention.ms" if kind == 2 else "log.retention.ms"
    config = {"name": key, "value": value, "config_operation": 0}
    return {"resource_type": kind, "resource_name": name, "configs": [config]}


def test_settings_survive_a_restart_and_the_death_of_a_broker(tmp_path: Path) -> None:
    def kept(cluster: Cluster) -> dict[int, dict[str, int | None]]:
        return {
            number: {
                one.topic_partition.topic: one.log.config.retention_ms
                for one in broker.manager.partitions()
            }
            for number, broker in cluster.brokers.items()
            if broker.alive
        }

    async def main() -> None:
        topics = [TopicSpec("own"), TopicSpec("other")]
        config = ClusterConfig(brokers=2, topics=topics, data_dir=tmp_path)
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            async with await RawClient.to(cluster, 2) as other:
                answer = await other.ask(44, 1, {"resources": [_set(4, "2", "80000")]})
                assert answer.responses[0].error_code == 0
            await cluster.kill(2)
            changes = [_set(2, "own", "60000"), _set(4, "", "70000"), _set(4, "2", "90000")]
            answer = await client.ask(44, 1, {"resources": changes})
            assert [one.error_code for one in answer.responses] == [0, 0, 42]
            assert kept(cluster) == {1: {"own": 60_000, "other": 70_000}}
            await cluster.revive(2)
            expected = {
                1: {"own": 60_000, "other": 70_000},
                2: {"own": 60_000, "other": 80_000},
            }
            assert kept(cluster) == expected
        async with Cluster(config) as cluster:
            assert kept(cluster) == expected

    asyncio.run(main())


def test_shorter_retention_deletes_records_at_once() -> None:
    async def main() -> None:
        config = ClusterConfig(brokers=1, topics=[TopicSpec("t")])
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            data = {"name": "t", "partition_data": [{"index": 0, "records": record_batch([b"x"])}]}
            for _ in range(3):
                await client.ask(0, 9, {"acks": 1, "topic_data": [data]})
            partition = cluster.brokers[1].manager.partition(TopicPartition("t", 0))
            assert partition is not None and partition.log_start_offset == 0
            await client.ask(44, 1, {"resources": [_set(2, "t", "1000")]})
            assert partition.log_start_offset == 3

    asyncio.run(main())


def test_setting_named_twice_is_refused() -> None:
    async def main() -> None:
        config = ClusterConfig(brokers=1, topics=[TopicSpec("t")])
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            configs = [{"name": "retention.ms", "value": value} for value in ("7", "9")]
            resource = {"resource_type": 2, "resource_name": "t", "configs": configs}
            answer = await client.ask(33, 1, {"resources": [resource]})
            assert answer.responses[0].error_code == 42
            assert cluster.controller.topics["t"].configs == {}

    asyncio.run(main())


def test_resources_with_settings_are_listed_by_type() -> None:
    async def main() -> None:
        config = ClusterConfig(brokers=2, topics=[TopicSpec("t")])
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:

            async def listed(version: int, *types: int) -> tuple[int, set[tuple[int, str]]]:
                answer = await client.ask(74, version, {"resource_types": types})
                found = {(one.resource_type, one.resource_name) for one in answer.config_resources}
                return answer.error_code, found

            assert await listed(1, 4) == (0, {(4, "1"), (4, "2")})
            assert await listed(1, 2, 4, 4) == (0, {(2, "t"), (4, "1"), (4, "2")})
            assert await listed(1) == await listed(1, 2, 4, 8, 16, 32)
            assert await listed(1, 2, 99) == (35, set())

    asyncio.run(main())


def test_repeated_or_unknown_resource_is_refused_alone() -> None:
    async def main() -> None:
        config = ClusterConfig(brokers=1, topics=[TopicSpec("t"), TopicSpec("u")])
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            twice = [_set(2, "t", "1"), _set(2, "t", "2")]
            others = [_set(8, "1", "3"), _set(4, "9", "3"), _set(2, "u", "4")]
            answer = await client.ask(44, 1, {"resources": [*twice, *others]})
            assert [one.error_code for one in answer.responses] == [42, 42, 40, 42, 0]
            assert "'t' is there 2 times" in answer.responses[0].error_message
            assert "no loggers" in answer.responses[2].error_message
            assert "'9' was asked for" in answer.responses[3].error_message
            assert cluster.controller.topics["t"].configs == {}

    asyncio.run(main())
