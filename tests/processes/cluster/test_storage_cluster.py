"""A cluster with its logs on disk: restarts, deletions, full disks and refused folders."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from purgatory.cluster import Cluster, ClusterConfig, ClusterError, TopicSpec
from purgatory.cluster.storage.disk import RealDisk
from purgatory.kafka import TopicPartition
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import record_batch

_ORDERS = TopicPartition("orders", 0)


def _config(folder: Path, brokers: int = 1, **options: Any) -> ClusterConfig:
    topics = [TopicSpec("orders")]
    return ClusterConfig(brokers=brokers, topics=topics, data_dir=folder, **options)


def _produce(values: list[bytes]) -> dict[str, Any]:
    data = [{"name": "orders", "partition_data": [{"index": 0, "records": record_batch(values)}]}]
    return {"acks": -1, "timeout": timedelta(seconds=10), "topic_data": data}


async def _append(cluster: Cluster, values: list[bytes]) -> tuple[int, int]:
    """Return the error code and the base offset."""
    state = cluster.controller.state_of(_ORDERS)
    assert state is not None
    async with await RawClient.to(cluster, state.leader) as client:
        answer = await client.ask(0, 9, _produce(values))
        answered = answer.responses[0].partition_responses[0]
        return answered.error_code, answered.base_offset


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("orders-*"))


def test_restarted_cluster_continues_with_its_records(tmp_path: Path) -> None:
    async def main() -> None:
        for run in range(3):
            async with Cluster(_config(tmp_path, brokers=3)) as cluster:
                assert await _append(cluster, [b"one", b"two"]) == (0, 2 * run)

    asyncio.run(main())


def test_restarted_cluster_has_its_leaders_spread_as_before(tmp_path: Path) -> None:
    topics = [TopicSpec("many", 6)]

    async def main() -> None:
        for _ in range(2):
            config = ClusterConfig(brokers=3, topics=topics, data_dir=tmp_path)
            async with Cluster(config) as cluster:
                leaders = [state.leader for _, state in cluster.controller.partitions()]
                assert sorted(leaders) == [1, 1, 2, 2, 3, 3]

    asyncio.run(main())


def test_full_disk_fails_a_produce_and_its_retry_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> int:
        raise OSError(28, "No space left on device")

    async def main() -> None:
        async with Cluster(_config(tmp_path)) as cluster:
            assert await _append(cluster, [b"one"]) == (0, 0)
            with monkeypatch.context() as patch:
                patch.setattr(RealDisk, "pwrite", staticmethod(no_space))
                patch.setattr(RealDisk, "replace", staticmethod(no_space))
                assert (await _append(cluster, [b"two"]))[0] == 56
                async with await RawClient.to(cluster) as client:
                    assert (await client.ask(22, 4)).error_code == 56
                    made = {"name": "more", "num_partitions": 1, "replication_factor": 1}
                    answer = await client.ask(19, 6, {"topics": [made]})
                    assert answer.topics[0].error_code == 0, (
                        "the topic is in memory, and saved later"
                    )
            assert await _append(cluster, [b"two"]) == (0, 1)
            cluster.new_producer_id()
        async with Cluster(_config(tmp_path)) as cluster:
            assert "more" in cluster.controller.topics
            assert await _append(cluster, [b"three"]) == (0, 2)

    asyncio.run(main())


def test_recreated_topic_begins_empty_on_disk(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with Cluster(_config(tmp_path, brokers=3)) as cluster:
            assert await _append(cluster, [b"old"] * 5) == (0, 0)
            assert len(_files(tmp_path)) == 3
            leader = cluster.controller.topics["orders"].partitions[0].leader
            last = max(broker for broker in cluster.brokers if broker != leader)
            await cluster.kill(last)
            cluster.controller.delete_topic("orders")
            assert _files(tmp_path) == [], "not on the dead broker either"
            cluster.controller.create_topic("orders", 1, 3)
            assert await _append(cluster, [b"new"]) == (0, 0)
            await cluster.revive(last)
            async with asyncio.timeout(20):
                partition = cluster.brokers[last].manager.partition(_ORDERS)
                assert partition is not None
                while partition.log_end_offset != 1:
                    await asyncio.sleep(0.005)

    asyncio.run(main())


def test_dead_broker_does_not_restore_a_deleted_topic() -> None:
    async def main() -> None:
        config = ClusterConfig(brokers=2, topics=[TopicSpec("orders", 1, 2)])
        async with Cluster(config) as cluster:
            await _append(cluster, [b"old"] * 5)
            await cluster.kill(2)
            cluster.controller.delete_topic("orders")
            cluster.controller.create_topic("orders", 1, 2)
            await cluster.revive(2)
            partition = cluster.brokers[2].manager.partition(_ORDERS)
            assert partition is not None
            assert partition.log_end_offset == 0

    asyncio.run(main())


async def _fails_to_start(config: ClusterConfig) -> str:
    with pytest.raises(ClusterError) as refused:
        async with Cluster(config):
            pass
    return str(refused.value)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '"x"', "{}", '{"version": 1, "brokers": 3}', "\x00" * 50, "\udcff"],
    ids=["empty", "torn", "a list", "null", "a word", "nothing", "a number", "zeros", "no text"],
)
def test_invalid_metadata_is_refused_with_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    message = asyncio.run(_fails_to_start(_config(tmp_path)))
    assert "cluster.json can't be read as a cluster's metadata" in message


def test_torn_metadata_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster(_config(tmp_path)):
            pass
        whole = (tmp_path / "cluster.json").read_bytes()
        json.loads(whole)
        for end in range(0, len(whole), 7):
            (tmp_path / "cluster.json").write_bytes(whole[:end])
            assert "can't be read" in await _fails_to_start(_config(tmp_path))

    asyncio.run(main())


def test_folder_of_other_brokers_is_refused_with_their_ids(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster(_config(tmp_path, brokers=3)):
            pass
        message = await _fails_to_start(_config(tmp_path, brokers=2))
        assert "[1, 2, 3]" in message
        assert "[1, 2]" in message

    asyncio.run(main())


def test_a_folder_that_another_cluster_uses_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster(_config(tmp_path)):
            assert "in use by another cluster" in await _fails_to_start(_config(tmp_path))
        async with Cluster(_config(tmp_path)):
            pass

    asyncio.run(main())


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    assert "can't be written to" in asyncio.run(_fails_to_start(_config(file)))


class _Process:
    """``purgatory cluster`` on a folder, as a process of its own."""

    def __init__(self, folder: Path, fsync: str) -> None:
        command = [sys.executable, "-m", "purgatory", "cluster", "--brokers", "3", "--port", "0"]
        command += ["--control-port", "0", "--topic", "orders:1", "--min-insync", "2"]
        command += ["--data-dir", str(folder), "--fsync", fsync]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
        assert self._process.stdout is not None
        name, _, self.servers = self._process.stdout.readline().strip().partition("=")
        assert name == "bootstrap.servers", self._process.communicate()

    def end(self, number: signal.Signals) -> str:
        """End the process, and return its standard error."""
        self._process.send_signal(number)
        return self._process.communicate(timeout=60)[1]


@pytest.mark.slow
def test_process_killed_under_load_loses_no_acknowledged_record(tmp_path: Path) -> None:
    """Also if the log of a broker is damaged before the restart."""
    acknowledged: list[bytes] = []
    for kill, fsync in enumerate(("never", "always")):
        cluster = _Process(tmp_path, fsync)
        stop = threading.Event()

        def load(kill: int = kill, stop: threading.Event = stop, at: str = cluster.servers) -> None:
            asyncio.run(_load(at, b"%d-" % kill, acknowledged, stop))

        thread = threading.Thread(target=load)
        thread.start()
        enough = len(acknowledged) + 150
        while len(acknowledged) < enough and thread.is_alive():
            thread.join(0.01)
        assert thread.is_alive(), "the producer still writes"
        cluster.end(signal.SIGKILL)
        stop.set()
        thread.join()
        (segment,) = (tmp_path / f"broker-{kill + 1}" / "orders-0").glob("*.log")
        os.truncate(segment, segment.stat().st_size // 2)
    cluster = _Process(tmp_path, "never")
    found = asyncio.run(_read_all(cluster.servers, len(acknowledged)))
    cluster.end(signal.SIGTERM)
    assert len(acknowledged) >= 300
    assert set(acknowledged) <= set(found)
    once = [value for value in found if value in set(acknowledged)]
    assert once == acknowledged, "in order, and no record twice"


def test_command_prints_addresses_and_logs_to_stderr(
    tmp_path: Path,
) -> None:
    cluster = _Process(tmp_path, "never")
    asyncio.run(_append_to(cluster.servers, [b"one", b"two"]))
    assert cluster.end(signal.SIGTERM) == ""
    (segment,) = (tmp_path / "broker-1" / "orders-0").glob("*.log")
    os.truncate(segment, 10)
    cluster = _Process(tmp_path, "never")  # which reads the first line of standard output
    logged = cluster.end(signal.SIGTERM)
    assert "log_cut" in logged
    assert "out_of_sync_at_start" in logged


async def _append_to(servers: str, values: list[bytes]) -> None:
    client, _ = await _connect_to_leader(servers)
    async with client:
        answer = await client.ask(0, 9, _produce(values))
        assert answer.responses[0].partition_responses[0].error_code == 0


async def _connect_to_leader(servers: str) -> tuple[RawClient, int]:
    """Return a connection to the leader of the partition, and its id."""
    addresses = [server.rpartition(":") for server in servers.split(",")]
    clients = [RawClient(*await asyncio.open_connection(a, int(p))) for a, _, p in addresses]
    answer = await clients[0].ask(3, 8, {"topics": [{"name": "orders"}]})
    leader = answer.topics[0].partitions[0].leader_id
    for number, client in enumerate(clients, 1):
        if number != leader:
            client.writer.close()
    return clients[leader - 1], leader


async def _load(
    servers: str, start: bytes, acknowledged: list[bytes], stop: threading.Event
) -> None:
    client, _ = await _connect_to_leader(servers)
    number = 0
    async with client:
        while not stop.is_set():
            values = [start + b"%d" % (number + n) for n in range(3)]
            number += 3
            try:
                answer = await client.ask(0, 9, _produce(values))
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            if answer.responses[0].partition_responses[0].error_code == 0:
                acknowledged += values


async def _read_all(servers: str, at_least: int) -> list[bytes]:
    from kio.records.readers import read_batch

    client, _ = await _connect_to_leader(servers)
    async with client:
        end = {"partition_index": 0, "timestamp": -1}
        asked = {"topics": [{"name": "orders", "partitions": [end]}]}
        last = -1
        async with asyncio.timeout(20):  # until the followers have fetched from their log ends
            while last < at_least:
                last = (await client.ask(2, 7, asked)).topics[0].partitions[0].offset
        values: list[bytes] = []
        offset = 0
        while offset < last:
            fetch = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 10_000_000}
            asked = {"topics": [{"topic": "orders", "partitions": [fetch]}]}
            answer = await client.ask(1, 4, {"max_bytes": 10_000_000, **asked})
            data = answer.responses[0].partitions[0].records
            at = 0
            while at < len(data):
                size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
                batch = data[at : at + size]
                values += [record.value or b"" for record in read_batch(batch, 0)[0].records]
                offset = int.from_bytes(batch[:8], "big") + int.from_bytes(batch[57:61], "big")
                at += size
        return values
