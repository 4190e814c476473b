"""Logs in memory: all of a broker's together stay below their bound; and retention by time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.cli.main import main
from purgatory.cluster import Cluster, ClusterConfig, ClusterError, TopicSpec
from purgatory.cluster.cluster import cluster_state
from purgatory.cluster.storage import MemoryBudget, MemoryLog
from purgatory.kafka import ErrorCode, KafkaError, Log, LogConfig, RecordBatch, TopicPartition
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import RECORD_TIME_MS, record_batch

_MIB = 1024 * 1024
_BATCH = RecordBatch.from_bytes(record_batch([bytes(900)]))


_SMALL_SEGMENTS = LogConfig(segment_bytes=4_000)


def _append(log: Log, commit: bool = True) -> None:
    log.append(_BATCH.with_offset(log.end_offset, 0))
    if commit:
        log.update_high_watermark(log.end_offset)


def _logs(
    budget: MemoryBudget, count: int = 2, config: LogConfig = _SMALL_SEGMENTS
) -> list[MemoryLog]:
    return [MemoryLog(config, budget) for _ in range(count)]


def _replicate(leader: MemoryLog, *followers: MemoryLog) -> None:
    for log in followers:
        for batch in leader.read(log.end_offset, 1 << 20):
            log.append(batch)


def test_batch_beyond_the_limit_is_refused_until_there_is_room() -> None:
    budget = MemoryBudget(20_000)
    (log,) = _logs(budget, 1)
    for _ in range(14):
        _append(log)
    for _ in range(2):
        with pytest.raises(KafkaError, match="of 20000 bytes of memory") as refused:
            _append(log)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.start_offset, log.end_offset) == (0, 14), "committed records stay"
    log.delete_up_to(4)
    _append(log)
    assert log.end_offset == 15
    log._check()


def test_retention_by_size_makes_room() -> None:
    budget = MemoryBudget(20_000)
    (log,) = _logs(budget, 1, LogConfig(segment_bytes=4_000, retention_bytes=5_000))
    for _ in range(100):
        _append(log)
        assert budget.used_bytes <= budget.limit_bytes
    assert log.end_offset == 100


def test_batch_that_replicas_share_is_counted_once() -> None:
    budget = MemoryBudget(50_000)
    leader, follower = _logs(budget)
    _append(leader)
    alone_bytes = budget.used_bytes
    _replicate(leader, follower)
    assert budget.used_bytes == alone_bytes > 0
    for _ in range(2):
        leader.remove()
        assert budget.used_bytes == alone_bytes, "the follower still holds the batch"
    follower.remove()
    assert budget.used_bytes == 0


def test_follower_copies_its_leader_up_to_the_limit() -> None:
    budget = MemoryBudget(20_000)
    leader, follower = _logs(budget)
    for _ in range(14):
        _append(leader)
    while follower.end_offset < 14:
        _replicate(leader, follower)
    assert budget.used_bytes <= budget.limit_bytes


def test_full_memory_is_logged_once_until_there_is_room(caplog: pytest.LogCaptureFixture) -> None:
    budget = MemoryBudget(20_000)
    caplog.set_level("INFO")
    (log,) = _logs(budget, 1)
    for number in range(2):
        assert len(caplog.records) == 2 * number
        for _ in range(40):
            with suppress(KafkaError):
                _append(log)
        text = caplog.records[-1].getMessage()
        assert "memory_full" in text and "--memory-mb" in text
        log.delete_up_to(log.segment_bases[-1])
        _append(log)
        assert "memory_has_room" in caplog.records[-1].getMessage()


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["append", "copy", "commit", "truncate", "anew", "delete", "remove"]),
            st.integers(0, 1),
            st.integers(0, 30),
        ),
        max_size=60,
    )
)
def test_budget_counts_the_batches_that_logs_hold(steps: list[tuple[str, int, int]]) -> None:
    budget = MemoryBudget(30_000)
    logs = _logs(budget)
    for what, which, number in steps:
        log = logs[which]
        if what == "append":
            with suppress(KafkaError):  # there may be no room
                _append(log, commit=False)
        elif what == "copy":
            with suppress(KafkaError):  # the other one may begin later
                _replicate(logs[1 - which], log)
        elif what == "commit":
            log.update_high_watermark(number)
        elif what == "truncate":
            log.truncate_to(number)
        elif what == "anew":
            log.truncate_fully_and_start_at(number)
        elif what == "delete":
            log.delete_up_to(min(number, log.high_watermark))
        else:
            log.remove()
            logs[which] = _logs(budget, 1)[0]
        held = [[id(b) for segment in log._segments for b in segment.batches] for log in logs]
        batch_bytes = _BATCH.size_bytes + 400
        assert budget.used_bytes == len({*held[0], *held[1]}) * batch_bytes
        assert budget.used_bytes <= budget.limit_bytes


def _produce(values: list[bytes]) -> dict[str, Any]:
    data = [{"name": "orders", "partition_data": [{"index": 0, "records": record_batch(values)}]}]
    return {"acks": -1, "timeout": timedelta(seconds=10), "topic_data": data}


def test_full_memory_refuses_produces_and_keeps_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        topics = [TopicSpec("orders", 1, 2)]
        config = ClusterConfig(brokers=2, topics=topics, memory_bytes=8 * _MIB)
        async with Cluster(config) as cluster:
            leader = cluster.controller.topics["orders"].partitions[0].leader
            async with await RawClient.to(cluster, leader) as client:
                codes = []
                for _ in range(20):
                    answer = await client.ask(0, 9, _produce([bytes(500_000)]))
                    codes.append(answer.responses[0].partition_responses[0].error_code)
                    assert cluster.memory.used_bytes <= 8 * _MIB
                assert codes == [0] * 16 + [56] * 4, "16 fit, though two brokers have them"
                partition = cluster_state(cluster)["topics"][0]["partitions"][0]
                assert (partition["log_start_offset"], partition["high_watermark"]) == (0, 16)
                assert caplog.text.count("memory_full") == 1

                deleted = {"name": "orders", "partitions": [{"partition_index": 0, "offset": 16}]}
                asked = {"topics": [deleted], "timeout": timedelta(seconds=10)}
                answer = await client.ask(21, 2, asked)
                assert answer.topics[0].partitions[0].error_code == 0
                answer = await client.ask(0, 9, _produce([bytes(500_000)]))
                produced = answer.responses[0].partition_responses[0]
                assert (produced.error_code, produced.base_offset) == (0, 16)
            cluster.controller.delete_topic("orders")
            assert cluster.memory.used_bytes == 0

    asyncio.run(main())


def test_config_with_too_little_memory_is_refused_with_the_least() -> None:
    with pytest.raises(ClusterError, match="each takes at least 4194304"):
        Cluster(ClusterConfig(brokers=3, memory_bytes=_MIB))


def test_retention_by_age_deletes_the_active_segment_last() -> None:
    kept_ms = 1_000
    (log,) = _logs(MemoryBudget(_MIB), 1, LogConfig(segment_bytes=4_000, retention_ms=kept_ms))
    for _ in range(10):
        _append(log)
    too_old_ms = RECORD_TIME_MS + kept_ms + 1
    assert not log.apply_retention(too_old_ms - 1), "none is older than that"
    log.update_high_watermark(6)
    assert log.apply_retention(too_old_ms)
    assert log.start_offset == log.segment_bases[0] == 4, "whole committed segments"
    log.update_high_watermark(10)
    assert log.apply_retention(too_old_ms)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (10, 10, 0)
    log._check()
    assert not log.apply_retention(too_old_ms)


def test_retention_ms_of_a_topic_deletes_older_records() -> None:
    async def main() -> None:
        topics = [TopicSpec("orders"), TopicSpec("kept")]
        async with Cluster(ClusterConfig(brokers=1, topics=topics, retention_ms=1_000)) as cluster:
            assert cluster.controller.change_topic_settings("kept", {"retention.ms": "-1"})
            broker = cluster.brokers[1]
            for topic in ("orders", "kept"):
                partition = broker.manager.partition(TopicPartition(topic, 0))
                assert partition is not None
                partition.append_as_leader([_BATCH])
            broker.apply_retention(RECORD_TIME_MS + 1_000)
            assert _starts(cluster) == {"orders": 0, "kept": 0}
            broker.apply_retention(RECORD_TIME_MS + 1_001)
            assert _starts(cluster) == {"orders": 1, "kept": 0}

    asyncio.run(main())


def _starts(cluster: Cluster) -> dict[str, int]:
    partitions = cluster.brokers[1].manager.partitions()
    return {one.topic_partition.topic: one.log_start_offset for one in partitions}


def test_command_refuses_too_little_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["cluster", "--brokers", "3", "--port", "0", "--memory-mb", "1"]) == 2
    assert "each takes at least 4194304" in capsys.readouterr().err
