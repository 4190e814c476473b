"""The remote tier: what is only there is read by real clients, waited for, deleted, and kept."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from purgatory.cluster import ClusterConfig, RemoteConfig, ThreadedCluster
from purgatory.kafka import Log, TopicPartition
from tests.cluster.confluent_client import ConfluentClient
from tests.cluster.conftest import CLIENTS, require_client
from tests.cluster.kafka_client import TIMEOUT_S

_TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "2000",
    "local.retention.bytes": "0",
}
_SMALL: Any = {"batch.num.messages": 5}
_VALUES = [b"%04d" % number * 25 for number in range(300)]


def create(cluster: ThreadedCluster, name: str, **settings: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    config = {**_TIERED, **{key.replace("_", "."): value for key, value in settings.items()}}
    topic = NewTopic(name, num_partitions=1, replication_factor=2, config=config)
    admin.create_topics([topic])[name].result(TIMEOUT_S)


def logs(cluster: ThreadedCluster, name: str) -> list[Log]:
    key = TopicPartition(name, 0)

    def find() -> list[Log]:
        found = [b.manager.partition(key) for b in cluster.running.brokers.values() if b.alive]
        return [partition.log for partition in found if partition is not None]

    found: list[Log] = cluster.call(find)
    return found


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s, "it never came so"
        time.sleep(0.01)


def fill(cluster: ThreadedCluster, name: str) -> None:
    """Produce, and wait until all brokers have the end alone."""
    ConfluentClient(cluster.bootstrap_servers).produce(name, _VALUES, idempotent=True, **_SMALL)
    until(lambda: all(log.local_start_offset > 200 for log in logs(cluster, name)))


@pytest.fixture(params=["memory", "disk"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ThreadedCluster]:
    config = ClusterConfig(
        brokers=2,
        data_dir=tmp_path / "data" if request.param == "disk" else None,
        remote=RemoteConfig(tmp_path / "remote", copy_interval_ms=20),
    )
    with ThreadedCluster(config) as running:
        yield running


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_read_everything_though_the_local_log_is_gone(
    cluster: ThreadedCluster, name: str
) -> None:
    require_client(name)
    create(cluster, "t")
    fill(cluster, "t")
    for log in logs(cluster, "t"):
        assert log.start_offset == 0 and log.local_start_offset > 200
    records = CLIENTS[name](cluster.bootstrap_servers).read("t", 0, len(_VALUES))
    assert [record.value for record in records] == _VALUES
    assert [record.offset for record in records] == list(range(len(_VALUES)))


def test_a_lookup_by_time_finds_what_is_in_the_tier_alone(cluster: ThreadedCluster) -> None:
    create(cluster, "t")
    client = ConfluentClient(cluster.bootstrap_servers)
    times_ms = [1_700_000_000_000 + 10 * number for number in range(len(_VALUES))]
    client.produce("t", _VALUES, times_ms=times_ms, **_SMALL)
    until(lambda: all(log.local_start_offset > 200 for log in logs(cluster, "t")))
    for number in (0, 7, 123, 299):
        found = client.read_from_time("t", times_ms[number] - 5, 1)
        assert (found[0].offset, found[0].value) == (number, _VALUES[number])


def test_a_share_consumer_reads_what_is_in_the_tier_alone(cluster: ThreadedCluster) -> None:
    from confluent_kafka import AcknowledgeType, ShareConsumer
    from confluent_kafka.cimpl import KafkaException

    create(cluster, "t")
    fill(cluster, "t")
    settings = {"share.auto.offset.reset": "earliest"}
    cluster.call(lambda: cluster.running.controller.change_group_settings("g", settings))
    consumer = ShareConsumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "g",
            "share.acknowledgement.mode": "explicit",
        }
    )
    consumer.subscribe(["t"])
    read: set[bytes] = set()
    failing = cluster.fault.fail_remote(operation="read", count=1)
    try:
        end_s = time.monotonic() + TIMEOUT_S
        while read != set(_VALUES):
            assert time.monotonic() < end_s, f"{len(read)} records came"
            for message in consumer.poll(0.1):
                if message.error() is None:
                    read.add(message.value() or b"")
                    consumer.acknowledge(message, AcknowledgeType.ACCEPT)
            with contextlib.suppress(KafkaException):
                consumer.commit_sync(5.0)
    finally:
        consumer.close()
    assert not failing.active


def test_a_share_group_begins_at_a_time_in_the_tier(cluster: ThreadedCluster) -> None:
    from confluent_kafka import ShareConsumer

    create(cluster, "t")
    hour_ago_ms = time.time_ns() // 1_000_000 - 3_600_000
    times_ms = [hour_ago_ms + 10_000 * number for number in range(len(_VALUES))]
    client = ConfluentClient(cluster.bootstrap_servers)
    client.produce("t", _VALUES, times_ms=times_ms, **_SMALL)
    until(lambda: all(log.local_start_offset > 200 for log in logs(cluster, "t")))
    settings = {"share.auto.offset.reset": "by_duration:PT40M"}
    cluster.call(lambda: cluster.running.controller.change_group_settings("g", settings))
    consumer = ShareConsumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"})
    consumer.subscribe(["t"])
    failing = cluster.fault.fail_remote(operation="read", count=1)
    offsets: list[int] = []
    try:
        end_s = time.monotonic() + TIMEOUT_S
        while len(_VALUES) - 1 not in offsets:
            assert time.monotonic() < end_s, f"{len(offsets)} records came"
            for message in consumer.poll(0.1):
                if message.error() is None:
                    offsets.append(message.offset() or 0)
    finally:
        consumer.close()
    assert not failing.active
    assert 120 <= min(offsets) < 150  # the record of 40 minutes ago is number 120


def test_a_transaction_that_was_aborted_stays_unread(cluster: ThreadedCluster) -> None:
    from confluent_kafka import Producer

    create(cluster, "t")
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": "t",
            "batch.num.messages": 5,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    kept = []
    for number in range(40):
        producer.begin_transaction()
        for _ in range(10):
            producer.produce("t", b"%03d" % number * 30, partition=0)
        if number % 3 == 1:
            producer.flush(TIMEOUT_S)
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
            kept += [b"%03d" % number * 30] * 10
    until(lambda: all(log.local_start_offset > 300 for log in logs(cluster, "t")))
    client = ConfluentClient(cluster.bootstrap_servers)
    assert [record.value for record in client.read("t", 0, len(kept))] == kept


def test_records_are_deleted_in_the_tier(cluster: ThreadedCluster, tmp_path: Path) -> None:
    from confluent_kafka import TopicPartition as Partition

    create(cluster, "t")
    fill(cluster, "t")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    [deleted] = admin.delete_records([Partition("t", 0, 100)]).values()
    assert deleted.result(TIMEOUT_S).low_watermark == 100
    assert all(log.local_start_offset > 200 for log in logs(cluster, "t"))
    until(lambda: _first_in(tmp_path) > 80)
    records = ConfluentClient(cluster.bootstrap_servers).read("t", 0, 200)
    assert [record.offset for record in records] == list(range(100, 300))
    cluster.call(lambda: cluster.running.controller.delete_topic("t"))
    until(lambda: not _segments(tmp_path))


def test_retention_takes_away_what_is_in_the_tier(cluster: ThreadedCluster, tmp_path: Path) -> None:
    create(cluster, "t", retention_bytes="20000")
    client = ConfluentClient(cluster.bootstrap_servers)
    client.produce("t", _VALUES, **_SMALL)
    until(lambda: all(log.start_offset > 50 for log in logs(cluster, "t")))
    until(lambda: _first_in(tmp_path) > 50)
    [start] = {log.start_offset for log in logs(cluster, "t")}
    records = client.read("t", start, len(_VALUES) - start)
    assert [record.value for record in records] == _VALUES[start:]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    _alter(admin, "t", {"retention.bytes": "-1", "retention.ms": "1", "local.retention.ms": "-2"})
    until(lambda: all(log.start_offset > 250 for log in logs(cluster, "t")))
    until(lambda: not _segments(tmp_path))


def test_a_topic_can_be_taken_out_of_the_tier_with_what_is_there(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    create(cluster, "t")
    fill(cluster, "t")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    with pytest.raises(Exception, match=r"remote\.log\.delete\.on\.disable=true with it"):
        _alter(admin, "t", {"remote.storage.enable": "false"})
    _alter(admin, "t", {"remote.log.copy.disable": "true"})
    ConfluentClient(cluster.bootstrap_servers).produce("t", _VALUES)
    _alter(admin, "t", {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"})
    until(lambda: not _segments(tmp_path))
    until(lambda: all(log.start_offset == log.local_start_offset for log in logs(cluster, "t")))


def test_a_new_replica_begins_where_the_leader_s_own_log_does_and_may_lead(
    cluster: ThreadedCluster,
) -> None:
    create(cluster, "t", min_insync_replicas="1")
    key = TopicPartition("t", 0)

    def state() -> Any:
        found = cluster.running.controller.state_of(key)
        assert found is not None
        return found

    first, second = cluster.call(state).replicas
    cluster.call(lambda: cluster.running.controller.reassign(key, (first,)))
    until(lambda: cluster.call(state).replicas == (first,))
    ConfluentClient(cluster.bootstrap_servers).produce("t", _VALUES, **_SMALL)
    until(lambda: all(log.local_start_offset > 200 for log in logs(cluster, "t")))
    cluster.call(lambda: cluster.running.controller.reassign(key, (first, second)))
    until(lambda: second in cluster.call(state).isr)
    assert all(log.local_start_offset > 200 and log.start_offset == 0 for log in logs(cluster, "t"))
    with cluster.fault.kill(first):
        until(lambda: cluster.call(state).leader == second)
        records = ConfluentClient(cluster.bootstrap_servers).read("t", 0, len(_VALUES))
        assert [record.value for record in records] == _VALUES


def test_brokers_that_die_and_a_tier_that_fails_lose_no_record(
    cluster: ThreadedCluster,
) -> None:
    """Produced with acks=all while one broker after the other dies; then read from the start."""
    from confluent_kafka import Producer

    create(cluster, "t", min_insync_replicas="1")
    cluster.fault.fail_remote(share=0.3, seed=1)
    cluster.fault.slow_remote(by_ms=5, distribution="lognormal", p75_ms=20, seed=2)
    acknowledged: set[bytes] = set()

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            acknowledged.add(message.value())

    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 1, **_SMALL})
    number = 0
    for round_ in range(6):
        until(lambda: all(len(state.isr) == 2 for state in _states(cluster)))
        with cluster.fault.kill(1 + round_ % 2):
            for _ in range(200):
                producer.produce("t", b"%06d" % number * 20, partition=0, on_delivery=delivered)
                producer.poll(0.002)
                number += 1
        producer.poll(0.2)
    producer.flush(TIMEOUT_S)
    assert len(acknowledged) > 1_000
    cluster.fault.end_all()
    until(lambda: all(log.local_start_offset > 1_000 for log in logs(cluster, "t")))
    [end] = {log.end_offset for log in logs(cluster, "t")}
    records = ConfluentClient(cluster.bootstrap_servers).read("t", 0, end)
    assert [record.offset for record in records] == list(range(end))
    assert acknowledged <= {record.value for record in records}


def _states(cluster: ThreadedCluster) -> list[Any]:
    found: list[Any] = cluster.call(lambda: cluster.running.controller.topics["t"].partitions)
    return found


def _alter(admin: AdminClient, name: str, settings: Mapping[str, str]) -> None:
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
    )

    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in settings.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
    [altered] = admin.incremental_alter_configs([resource]).values()
    altered.result(TIMEOUT_S)


def _segments(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "remote").glob("*/*"))


def _first_in(tmp_path: Path) -> int:
    return min((int(name.partition("-")[0]) for name in _segments(tmp_path)), default=0)
