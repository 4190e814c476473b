"""Compaction of logs with bytes: all codecs, disk and memory, restarts, followers, real clients."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from purgatory.cluster import Cluster, ClusterConfig, ThreadedCluster
from purgatory.cluster.records import StoredContents, read_records
from purgatory.kafka import Log, RecordBatch, TopicPartition
from tests.wire.cluster.conftest import PYTHON_CLIENTS, eventually
from tests.wire.cluster.kafka_client import TIMEOUT_S

_PARTITION = TopicPartition("t", 0)
_SETTINGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "1000",
    "min.cleanable.dirty.ratio": "0",
}


def _produce(cluster: Any, topic: str, records: list[tuple[bytes, bytes | None]]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
    for key, value in records:
        producer.produce(topic, value, key, partition=0)
        assert producer.flush(TIMEOUT_S) == 0


def _records(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    found = []
    offset = log.start_offset
    while offset < log.end_offset:
        batches = log.read(offset, 1 << 30)
        for batch in batches:
            found += [(one.offset, one.key, one.value) for one in read_records(batch)]
        offset = batches[-1].next_offset
    return found


def _log(cluster: Cluster, broker: int) -> Log:
    partition = cluster.brokers[broker].manager.partition(_PARTITION)
    assert partition is not None
    return partition.log


def _latest(records: list[tuple[bytes, bytes | None]]) -> dict[bytes, tuple[int, bytes | None]]:
    return {key: (offset, value) for offset, (key, value) in enumerate(records)}


_WRITTEN: list[tuple[bytes, bytes | None]] = [
    (b"key-%d" % (number % 7), None if number % 31 == 0 else b"value-%d" % number * 3)
    for number in range(150)
]


def _check_compacted(log: Log, written: list[tuple[bytes, bytes | None]]) -> None:
    log._check()
    there = _records(log)
    active = log.active_base_offset
    closed = [one for one in there if one[0] < active]
    newest = _latest(written[:active])
    assert closed == sorted((offset, key, value) for key, (offset, value) in newest.items())
    assert [offset for offset, _, _ in there if offset >= active] == [*range(active, len(written))]


def test_compacted_logs_are_loaded_and_copied(tmp_path: Path) -> None:
    async def main(data_dir: Path | None) -> None:
        config = ClusterConfig(brokers=3, data_dir=data_dir, replica_max_lag_ms=60_000)
        async with Cluster(config) as cluster:
            cluster.controller.create_assigned_topic("t", [(1, 2)], _SETTINGS)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, lambda: _produce(cluster, "t", _WRITTEN))
            before = _log(cluster, 1).size_bytes
            for broker in (1, 2):
                one = cluster.brokers[broker]
                await one.compact(one.now_ms())
                _check_compacted(_log(cluster, broker), _WRITTEN)
            assert _log(cluster, 1).size_bytes < before / 3
            assert len(_log(cluster, 1).segment_bases) < 5
            if data_dir is not None:
                files = list((data_dir / "broker-1" / "t-0").glob("*.log"))
                size_bytes = sum(file.stat().st_size for file in files)
                assert size_bytes == _log(cluster, 1).size_bytes
            # An empty follower copies the remaining records.
            cluster.controller.reassign(_PARTITION, (1, 2, 3))
            await eventually(lambda: _has_all(cluster))
            assert _records(_log(cluster, 3)) == _records(_log(cluster, 1))
            await cluster.kill(2)
            await cluster.revive(2)
            _check_compacted(_log(cluster, 2), _WRITTEN)
        if data_dir is not None:
            (data_dir / "broker-1" / "t-0" / f"{0:020}.compacted").write_bytes(b"half of it")
            async with Cluster(config) as cluster:
                for broker in (1, 2):
                    _check_compacted(_log(cluster, broker), _WRITTEN)
                assert _records(_log(cluster, 3)) == _records(_log(cluster, 1))
                assert not list(data_dir.glob("broker-*/*/*.compacted"))

    def _has_all(cluster: Cluster) -> bool:
        copy = cluster.brokers[3].manager.partition(_PARTITION)
        return copy is not None and copy.log_end_offset == len(_WRITTEN)

    for folder in (None, tmp_path):
        asyncio.run(main(folder))


def test_crash_while_files_are_replaced_loses_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        config = ClusterConfig(brokers=1, data_dir=tmp_path)
        folder = tmp_path / "broker-1" / "t-0"
        async with Cluster(config) as cluster:
            cluster.controller.create_assigned_topic("t", [(1,)], _SETTINGS)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, lambda: _produce(cluster, "t", _WRITTEN))
            former = {path.name: path.read_bytes() for path in folder.glob("*.log")}
            await cluster.brokers[1].compact(cluster.brokers[1].now_ms())
            there = _records(_log(cluster, 1))
            compacted = {path.name for path in folder.glob("*.log")}
        # As if the process had ended before the files went that others replaced.
        gone = former.keys() - compacted
        assert gone
        for name in gone:
            (folder / name).write_bytes(former[name])
        async with Cluster(config) as cluster:
            assert _records(_log(cluster, 1)) == there
            assert {path.name for path in folder.glob("*.log")} == compacted

    asyncio.run(main())


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_real_clients_read_the_remaining_records(
    cluster: ThreadedCluster, name: str, codec: str
) -> None:
    written = [(key, value or b"x") for key, value in _WRITTEN]

    def create() -> None:
        cluster.running.controller.create_assigned_topic(name, [(1, 2)], _SETTINGS)

    async def compact() -> int:
        for broker in cluster.running.brokers.values():
            await broker.compact(broker.now_ms())
        partition = cluster.running.brokers[1].manager.partition(TopicPartition(name, 0))
        assert partition is not None
        return partition.log.active_base_offset

    cluster.call(create)
    how = {"compression.type": codec, "linger.ms": 50, "batch.num.messages": 4}
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, **how})
    for key, value in written:
        producer.produce(name, value, key, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    active = cluster.call(compact)
    assert active > 50
    newest = _latest(list(written[:active]))
    expected = sorted((offset, value) for offset, value in newest.values())
    expected += [(offset, value) for offset, (_, value) in enumerate(written) if offset >= active]
    for client in PYTHON_CLIENTS.values():
        read = client(cluster.bootstrap_servers).read(name, 0, len(expected))
        assert [(one.offset, one.value) for one in read] == expected


def test_client_passes_offsets_without_records(cluster: ThreadedCluster, name: str) -> None:
    """Offsets from which on no record is left until the next batch don't stop a client."""

    def create() -> None:
        settings = {**_SETTINGS, "delete.retention.ms": "0"}
        cluster.running.controller.create_assigned_topic(name, [(1, 2)], settings)

    async def compact() -> list[Any]:
        broker = cluster.running.brokers[1]
        partition = broker.manager.partition(TopicPartition(name, 0))
        assert partition is not None
        partition.log.roll()
        for later_ms in (0, 1):
            await broker.compact(broker.now_ms() + later_ms)
        return [batch.record_count for batch in partition.log.read(0, 1)]

    cluster.call(create)
    _produce(cluster, name, [(b"k", b"v"), *[(b"k", None)] * 20])
    _produce(cluster, name, [(b"other", b"there")])
    assert cluster.call(compact) == [0]
    for client in PYTHON_CLIENTS.values():
        read = client(cluster.bootstrap_servers).read(name, 0, 1)
        assert read[0].offset > 0


def test_compacted_batch_differs_only_by_its_removed_records() -> None:
    from tests.wire.cluster.wire_values import record_batch

    contents = StoredContents()
    batch = RecordBatch.from_bytes(record_batch([b"a", b"b", b"c"], 7, 3, 1)).with_offset(10, 2)
    kept = contents.retain_records(batch, {11})
    assert [(one.offset, one.value) for one in read_records(kept)] == [(11, b"b")]
    assert (kept.base_offset, kept.next_offset, kept.record_count) == (10, 13, 1)
    assert (kept.last_sequence, kept.producer_id, kept.leader_epoch) == (5, 7, 2)
    nothing = contents.retain_records(batch, ())
    assert (nothing.record_count, nothing.last_sequence, list(read_records(nothing))) == (0, 5, [])
    empty = contents.empty(10, 13, 2)
    assert (empty.base_offset, empty.next_offset, empty.producer_id) == (10, 13, -1)
