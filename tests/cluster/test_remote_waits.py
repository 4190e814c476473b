"""Who waits for the remote tier, by frames: how long, until what, and what each is answered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from purgatory.cluster import Cluster, ClusterConfig, ClusterError, RemoteConfig
from purgatory.cluster.cluster_trace import ClusterTrace, start_trace
from purgatory.cluster.storage.remote_folder import RemoteFolder
from purgatory.kafka import Log, TopicPartition
from purgatory.kafka.topic_state import Topic
from tests.cluster.conftest import eventually
from tests.cluster.raw_client import RawClient
from tests.cluster.wire_values import RECORD_TIME_MS, record_batch

_PRODUCE, _FETCH, _LIST_OFFSETS = 0, 1, 2
_RECORDS = 60
_KEY = TopicPartition("t", 0)
_SETTINGS = {
    "remote.storage.enable": "true",
    "segment.bytes": "500",
    "local.retention.bytes": "0",
}
_HOUR_MS = 3_600_000

Main = Callable[[Cluster, RawClient], Coroutine[Any, Any, None]]


def _run(
    folder: Path,
    main: Main,
    brokers: int = 1,
    trace: ClusterTrace | None = None,
    data_dir: Path | None = None,
    **remote: Any,
) -> None:
    async def run() -> None:
        chosen = {"copy_interval_ms": 10, "fetch_max_wait_ms": _HOUR_MS, **remote}
        config = ClusterConfig(
            brokers=brokers, remote=RemoteConfig(folder, **chosen), data_dir=data_dir
        )
        async with Cluster(config, trace) as cluster, await RawClient.to(cluster) as client:
            await main(cluster, client)

    asyncio.run(run())


def _log(cluster: Cluster, broker: int = 1) -> Log:
    partition = cluster.brokers[broker].manager.partition(_KEY)
    assert partition is not None
    return partition.log


async def _filled(cluster: Cluster, client: RawClient, partitions: int = 1) -> Topic:
    """Make the topic, fill its first partition, and wait until all but its end is in the tier."""
    topic = cluster.controller.create_topic("t", partitions, len(cluster.brokers), _SETTINGS)
    for number in range(_RECORDS):
        await _produce(client, b"%03d" % number)
    await eventually(lambda: _log(cluster).local_start_offset > _RECORDS - 10)
    return topic


async def _produce(client: RawClient, value: bytes, partition: int = 0) -> None:
    data = [{"index": partition, "records": record_batch([value])}]
    topics = [{"name": "t", "partition_data": data}]
    asked = {"acks": -1, "topic_data": topics, "timeout": timedelta(minutes=1)}
    answer = await client.ask(_PRODUCE, 9, asked)
    assert answer.responses[0].partition_responses[0].error_code == 0


def _fetch(offset: int = 0, max_bytes: int = 1 << 20, **others: int) -> dict[str, Any]:
    """Ask for partition 0 from an offset on, and for others, as ``p1=5``."""
    offsets = {0: offset, **{int(name[1:]): value for name, value in others.items()}}
    partitions = [
        {
            "partition": number,
            "fetch_offset": from_offset,
            "partition_max_bytes": max_bytes,
            "current_leader_epoch": -1,
            "last_fetched_epoch": -1,
        }
        for number, from_offset in offsets.items()
    ]
    return {
        "replica_id": -1,
        "max_wait": timedelta(milliseconds=20),
        "min_bytes": 1,
        "max_bytes": max_bytes,
        "session_epoch": -1,
        "topics": [{"topic": "t", "partitions": partitions}],
    }


def _fetched(answer: Any) -> list[tuple[int, int]]:
    """Return the error of each partition, and how many bytes it has."""
    [topic] = answer.responses
    return [(one.error_code, len(one.records or b"")) for one in topic.partitions]


def _waiting(cluster: Cluster, name: str, broker: int = 1) -> Any:
    [purgatory] = [one for one in cluster.brokers[broker].purgatories if one.name == name]
    return purgatory


def _outcomes(cluster: Cluster, name: str = "RemoteFetch") -> dict[str, int]:
    counts = _waiting(cluster, name).counters.outcomes
    return {outcome: count for outcome, count in counts.items() if count}


async def _parked(cluster: Cluster, name: str = "RemoteFetch") -> None:
    await eventually(lambda: _waiting(cluster, name).core.num_delayed == 1)


def test_a_fetch_waits_until_it_is_read(tmp_path: Path) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        await _filled(cluster, client)
        with cluster.fault.slow_remote(operation="read", by_ms=200) as fault:
            asked = asyncio.ensure_future(client.ask(_FETCH, 11, _fetch()))
            await _parked(cluster)
            assert _waiting(cluster, "RemoteFetch").core.watched == 1
            [(error, size)] = _fetched(await asked)
            assert error == 0 and size >= 70
            assert fault.uses == 1
        assert _outcomes(cluster) == {"completed": 1}

    _run(tmp_path, main)


def test_a_fetch_that_is_late_has_no_records_and_no_error(tmp_path: Path) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        await _filled(cluster, client)
        with cluster.fault.slow_remote(operation="read", by_ms=_HOUR_MS):
            answer = await client.ask(_FETCH, 11, _fetch())
        assert _fetched(answer) == [(0, 0)]
        [partition] = answer.responses[0].partitions
        assert (partition.high_watermark, partition.log_start_offset) == (_RECORDS, 0)
        assert _outcomes(cluster) == {"expired": 1}
        found = [(0, 0)]
        while found == [(0, 0)]:  # 50 ms may be too little for it once more
            found = _fetched(await client.ask(_FETCH, 11, _fetch()))
        assert found[0][0] == 0

    _run(tmp_path, main, fetch_max_wait_ms=50)


def test_what_is_here_comes_with_what_is_there(tmp_path: Path) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        await _filled(cluster, client, partitions=3)
        await _produce(client, b"here", partition=1)
        answer = await client.ask(_FETCH, 11, _fetch(p1=0, p2=0))
        there, here, nothing = _fetched(answer)
        assert there[1] > 0 and here[1] > 0 and nothing == (0, 0)
        assert _waiting(cluster, "RemoteFetch").core.watched == 0

    _run(tmp_path, main)


def test_a_tier_that_fails_is_told_and_asked_again(tmp_path: Path) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        await _filled(cluster, client)
        fault = cluster.fault.fail_remote(operation="read", count=2)
        assert [_fetched(await client.ask(_FETCH, 11, _fetch())) for _ in range(2)] == [
            [(56, 0)],
            [(56, 0)],
        ]
        assert not fault.active
        [(error, size)] = _fetched(await client.ask(_FETCH, 11, _fetch()))
        assert error == 0 and size > 0

    _run(tmp_path, main)


@pytest.mark.parametrize(("offset", "error"), [(-2, 1), (_RECORDS + 1, 1)])
def test_what_is_nowhere_is_out_of_range(tmp_path: Path, offset: int, error: int) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        await _filled(cluster, client)
        assert _fetched(await client.ask(_FETCH, 11, _fetch(offset))) == [(error, 0)]
        assert _outcomes(cluster) == {}

    _run(tmp_path, main)


def test_every_offset_is_read_in_pieces_of_any_size(tmp_path: Path) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        await _filled(cluster, client)
        whole = b""
        for size in (1, 100, 1 << 20):
            read, offset = b"", 0
            while offset < _RECORDS:
                answer = await client.ask(_FETCH, 11, _fetch(offset, size))
                [partition] = answer.responses[0].partitions
                assert partition.error_code == 0 and partition.records
                read += partition.records
                last = _batches(partition.records)[-1]
                offset = int.from_bytes(last[:8], "big") + 1
            assert whole in (b"", read)
            whole = read
        assert [b"%03d" % number in one for number, one in enumerate(_batches(whole))] == [
            True
        ] * _RECORDS

    _run(tmp_path, main)


def _batches(records: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(records):
        end = at + 12 + int.from_bytes(records[at + 8 : at + 12], "big")
        found.append(records[at:end])
        at = end
    return found


def test_who_leads_no_more_says_so_at_once(tmp_path: Path) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        topic = await _filled(cluster, client)
        assert topic.partitions[0].leader == 1
        await eventually(lambda: topic.partitions[0].isr == (1, 2))
        cluster.fault.slow_remote(operation="read", by_ms=_HOUR_MS)
        asked = asyncio.ensure_future(client.ask(_FETCH, 11, _fetch()))
        await _parked(cluster)
        cluster.controller.reassign(_KEY, (2, 1))
        cluster.controller.elect_leaders([_KEY], False)
        assert _fetched(await asked) == [(6, 0)]

    _run(tmp_path, main, brokers=2)


def test_a_topic_that_is_deleted_is_unknown_at_once_and_gone_from_the_tier(tmp_path: Path) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        await _filled(cluster, client)
        cluster.fault.slow_remote(operation="read", by_ms=_HOUR_MS)
        asked = asyncio.ensure_future(client.ask(_FETCH, 11, _fetch()))
        await _parked(cluster)
        cluster.controller.delete_topic("t")
        assert _fetched(await asked) == [(3, 0)]
        await eventually(lambda: list(tmp_path.glob("*/*")) == [])
        cluster.fault.end_all()
        await _filled(cluster, client)  # another of that name has records of its own
        [(error, size)] = _fetched(await client.ask(_FETCH, 11, _fetch()))
        assert error == 0 and size > 0

    _run(tmp_path, main)


def test_nobody_who_waits_is_answered_by_a_broker_that_dies(tmp_path: Path) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        await _filled(cluster, client)
        cluster.fault.slow_remote(operation="read", by_ms=100)
        asked = asyncio.ensure_future(client.ask(_FETCH, 11, _fetch()))
        await _parked(cluster)
        await cluster.kill(1)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asked
        await cluster.revive(1)
        async with await RawClient.to(cluster) as again:
            [(error, size)] = _fetched(await again.ask(_FETCH, 11, _fetch()))
            assert error == 0 and size > 0

    _run(tmp_path, main)


# ---- ListOffsets


def _lookup(timestamp: int, timeout_ms: int = 0) -> dict[str, Any]:
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    topics = [{"name": "t", "partitions": [asked]}]
    return {
        "replica_id": -1,
        "topics": topics,
        "timeout": timedelta(milliseconds=timeout_ms),
    }


async def _found(client: RawClient, *asked: int, version: int = 11) -> tuple[int, int, int]:
    answer = await client.ask(_LIST_OFFSETS, version, _lookup(*asked))
    [partition] = answer.topics[0].partitions
    return partition.error_code, partition.offset, partition.leader_epoch


def test_offsets_are_told_of_the_log_here_and_of_the_tier(tmp_path: Path) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        cluster.controller.create_topic("t", 1, 1)
        assert await _found(client, -5) == (0, -1, -1), "it isn't tiered"
        assert await _found(client, -6) == (0, -1, -1)
        cluster.controller.delete_topic("t")
        cluster.controller.create_topic("t", 1, 1, _SETTINGS)
        assert await _found(client, -5) == (0, -1, -1), "nothing is there yet"
        cluster.controller.delete_topic("t")
        await _filled(cluster, client)
        log = _log(cluster)
        assert await _found(client, -2) == (0, 0, 0)
        assert await _found(client, -1) == (0, _RECORDS, 0)
        assert await _found(client, -4) == (0, log.local_start_offset, 0)
        assert await _found(client, -5) == (0, log.tiered_end_offset - 1, 0)
        assert await _found(client, -6) == (0, log.tiered_end_offset, 0)

    _run(tmp_path, main)


def test_a_lookup_by_time_waits_until_the_tier_was_looked_into(tmp_path: Path) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        await _filled(cluster, client)
        with cluster.fault.slow_remote(operation="read", by_ms=200):
            asked = asyncio.ensure_future(_found(client, RECORD_TIME_MS))
            await _parked(cluster, "RemoteListOffsets")
            assert await asked == (0, 0, 0)
        assert await _found(client, RECORD_TIME_MS + 1) == (0, -1, -1), "nothing is younger"
        assert _outcomes(cluster, "RemoteListOffsets") == {"completed": 1}

    _run(tmp_path, main)


@pytest.mark.parametrize(("version", "timeout_ms"), [(11, 50), (9, 0), (11, 0)])
def test_a_lookup_that_is_late_timed_out(tmp_path: Path, version: int, timeout_ms: int) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        await _filled(cluster, client)
        cluster.fault.slow_remote(operation="read", by_ms=_HOUR_MS)
        found = await _found(client, RECORD_TIME_MS, timeout_ms, version=version)
        assert found == (7, -1, -1)
        assert _outcomes(cluster, "RemoteListOffsets") == {"expired": 1}

    by_default_ms = _HOUR_MS if timeout_ms else 50
    _run(tmp_path, main, list_offsets_timeout_ms=by_default_ms)


def test_a_lookup_in_a_tier_that_fails_is_told_so(tmp_path: Path) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        await _filled(cluster, client)
        with cluster.fault.fail_remote(operation="read"):
            assert await _found(client, RECORD_TIME_MS) == (56, -1, -1)
        assert await _found(client, RECORD_TIME_MS) == (0, 0, 0)

    _run(tmp_path, main)


def test_a_lookup_at_who_leads_no_more_is_told_so(tmp_path: Path) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        topic = await _filled(cluster, client)
        await eventually(lambda: topic.partitions[0].isr == (1, 2))
        cluster.fault.slow_remote(operation="read", by_ms=_HOUR_MS)
        asked = asyncio.ensure_future(_found(client, RECORD_TIME_MS))
        await _parked(cluster, "RemoteListOffsets")
        cluster.controller.reassign(_KEY, (2, 1))
        cluster.controller.elect_leaders([_KEY], False)
        assert await asked == (6, -1, -1)

    _run(tmp_path, main, brokers=2)


# ---- copies that are broken off, and what is found at a start


async def _read_all(client: RawClient) -> list[bytes]:
    read, offset = b"", 0
    while offset < _RECORDS:
        answer = await client.ask(_FETCH, 11, _fetch(offset))
        [partition] = answer.responses[0].partitions
        assert partition.error_code == 0
        read += partition.records or b""
        offset = len(_batches(read))
    return _batches(read)


def test_a_cluster_that_starts_again_reads_on_and_removes_what_is_not_whole(
    tmp_path: Path,
) -> None:
    remote, data = tmp_path / "remote", tmp_path / "data"
    seen: list[list[bytes]] = []

    async def begin(cluster: Cluster, client: RawClient) -> None:
        await _filled(cluster, client)
        seen.append(await _read_all(client))

    async def again(cluster: Cluster, client: RawClient) -> None:
        log = _log(cluster)
        assert log.start_offset == 0 and log.local_start_offset > _RECORDS - 10
        assert await _read_all(client) == seen[0]
        assert {path.suffix for path in remote.glob("t-0.*/*")} == {".segment", ".json"}
        assert not list(remote.glob("*/*half*"))

    _run(remote, begin, data_dir=data)
    [folder] = remote.glob("t-0.*")
    whole = min(folder.glob("*.segment"))
    (folder / f"{'0' * 20}-half.segment").write_bytes(whole.read_bytes()[:50])
    (folder / f"{'0' * 20}-half.new").write_bytes(b"{")
    _run(remote, again, data_dir=data)
    with pytest.raises(ClusterError, match=r"topic t is in a remote tier, and none is given"):
        _run(None, again, data_dir=data)  # type: ignore[arg-type]


def test_a_broker_that_dies_while_it_copies_leaves_no_half_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed in the middle of its first copy; another leads, and copies all of it."""
    begun, go_on = threading.Event(), threading.Event()
    put = RemoteFolder.put

    def slow_put(folder: RemoteFolder, place: Any, batches: Any) -> Any:
        if not begun.is_set():
            segment = put(folder, place, batches)
            begun.set()
            assert go_on.wait(60)
            return segment
        return put(folder, place, batches)

    monkeypatch.setattr(RemoteFolder, "put", slow_put)

    async def main(cluster: Cluster, client: RawClient) -> None:
        topic = cluster.controller.create_topic("t", 1, 2, _SETTINGS)
        for number in range(_RECORDS):
            await _produce(client, b"%03d" % number)
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, 60)
        await eventually(lambda: topic.partitions[0].isr == (1, 2))
        await cluster.kill(1)
        go_on.set()
        await eventually(lambda: _log(cluster, 2).local_start_offset > _RECORDS - 10)
        async with await RawClient.to(cluster, 2) as other:
            assert len(await _read_all(other)) == _RECORDS
        await cluster.revive(1)
        assert len(list(tmp_path.glob("*/*.segment"))) == 1 + len(list(tmp_path.glob("*/*.json")))

    _run(tmp_path, main, brokers=2)
    loaded = RemoteFolder(tmp_path).load()
    [segments] = loaded.values()
    assert len(list(tmp_path.glob("*/*.segment"))) == len(segments)


def test_a_copy_that_fails_is_tried_again_and_nothing_goes_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = RemoteFolder.finish
    failures = 3

    def failing_finish(folder: RemoteFolder, place: Any, segment: Any) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError("the disk is full")
        finish(folder, place, segment)

    monkeypatch.setattr(RemoteFolder, "finish", failing_finish)

    async def main(cluster: Cluster, client: RawClient) -> None:
        cluster.fault.fail_remote(operation="copy", count=2)
        await _filled(cluster, client)
        assert failures == 0
        assert len(await _read_all(client)) == _RECORDS
        assert len(list(tmp_path.glob("*/*.segment"))) == len(list(tmp_path.glob("*/*.json")))

    _run(tmp_path, main)


def test_what_was_damaged_in_the_tier_is_never_told(tmp_path: Path) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        await _filled(cluster, client)
        first = min(tmp_path.glob("*/*.segment"))
        data = bytearray(first.read_bytes())
        data[65] ^= 1
        first.write_bytes(data)
        assert _fetched(await client.ask(_FETCH, 11, _fetch())) == [(2, 0)]
        first.unlink()
        assert _fetched(await client.ask(_FETCH, 11, _fetch())) == [(56, 0)]

    _run(tmp_path, main)


def test_the_waits_are_in_the_trace(tmp_path: Path) -> None:
    trace, writer = start_trace(tmp_path / "trace", "waits")

    async def main(cluster: Cluster, client: RawClient) -> None:
        await _filled(cluster, client)
        await client.ask(_FETCH, 11, _fetch())
        await _found(client, RECORD_TIME_MS)

    _run(tmp_path / "remote", main, trace=trace)
    trace.close()
    writer.finish(trace.duration_ms, {})
    rows = parquet.read_table(tmp_path / "trace" / "operations").to_pylist()
    found = {
        row["purgatory"]: (row["kind"], row["watch_keys"], row["timeout_ms"])
        for row in rows
        if row["purgatory"].startswith("Remote")
    }
    assert found == {
        "RemoteFetch": ("consumer", ["t-0"], _HOUR_MS),
        "RemoteListOffsets": ("consumer", ["t-0"], 30_000),
    }


def test_faults_of_a_tier_that_there_is_not_are_refused() -> None:
    async def main() -> None:
        async with Cluster(ClusterConfig(brokers=1)) as cluster:
            with pytest.raises(ClusterError, match="this cluster has no remote tier"):
                cluster.fault.slow_remote(by_ms=5)
            with pytest.raises(ClusterError, match="one of copy, read, delete"):
                cluster.fault.fail_remote(operation="think")  # type: ignore[arg-type]

    asyncio.run(main())
