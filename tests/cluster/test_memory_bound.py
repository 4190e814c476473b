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
from purgatory.cluster.log_manager import delete_old_segments
from purgatory.cluster.storage import MemoryBudget, MemoryLog
from purgatory.kafka import ErrorCode, KafkaError, Log, LogConfig, RecordBatch, TopicPartition
from tests.cluster.raw_client import RawClient
from tests.cluster.wire_values import RECORD_TIME_MS, record_batch

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
    return [MemoryLog(config, budget, TopicPartition("orders", n)) for n in range(count)]


def _replicate(leader: MemoryLog, *followers: MemoryLog) -> None:
    for log in followers:
        for batch in leader.read(log.end_offset, 1 << 20):
            log.append(batch)


def test_the_oldest_committed_segments_go_when_there_is_no_room() -> None:
    budget = MemoryBudget(50_000)
    log, other = _logs(budget)
    for _ in range(5):
        _append(other)
    for _ in range(500):
        _append(log)
        log._check()
        assert budget.used_bytes <= budget.limit_bytes
    assert log.end_offset == 500
    assert log.start_offset > 400
    assert other.start_offset == 0, "the one that takes most gives"


def test_what_is_not_committed_stays_and_the_next_is_refused() -> None:
    budget = MemoryBudget(20_000)
    (log,) = _logs(budget, 1)
    for _ in range(14):
        _append(log, commit=False)
    with pytest.raises(KafkaError, match="of 20000 bytes of memory") as refused:
        _append(log, commit=False)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.start_offset, log.end_offset) == (0, 14)
    log.update_high_watermark(14)
    _append(log)
    assert log.end_offset == 15


def test_a_log_to_be_compacted_keeps_all() -> None:
    budget = MemoryBudget(20_000)
    (kept,) = _logs(budget, 1, LogConfig(segment_bytes=4_000, deletes=False))
    for _ in range(14):
        _append(kept)
    with pytest.raises(KafkaError):
        _append(kept)
    assert kept.start_offset == 0


def test_many_logs_of_one_segment_each_give_room_too() -> None:
    budget = MemoryBudget(20_000)
    logs = _logs(budget, 40)
    for log in logs:
        _append(log)
        assert budget.used_bytes <= budget.limit_bytes
    assert logs[-1].start_offset == 0


def test_what_replicas_share_is_counted_once() -> None:
    budget = MemoryBudget(50_000)
    leader, follower = _logs(budget)
    _append(leader)
    alone_bytes = budget.used_bytes
    _replicate(leader, follower)
    assert budget.used_bytes == alone_bytes == leader.held_bytes == follower.held_bytes
    leader.remove()
    assert budget.used_bytes == alone_bytes, "the follower holds it"
    follower.remove()
    assert budget.used_bytes == 0


def test_a_follower_that_is_behind_gives_up_what_its_leader_has_committed() -> None:
    budget = MemoryBudget(50_000, lambda _: leader.high_watermark)
    leader, follower = _logs(budget)
    for _ in range(500):
        _append(leader)
        _replicate(leader, follower)
        assert budget.used_bytes <= budget.limit_bytes
    assert follower.high_watermark == follower.start_offset, "it was never told of it"
    assert min(leader.start_offset, follower.start_offset) > 450
    assert leader.end_offset - leader.start_offset > 30, "what both hold is there once"
    for log in (leader, follower):
        log._check()


def test_that_records_went_for_want_of_memory_is_logged_once_for_each_topic(
    caplog: pytest.LogCaptureFixture,
) -> None:
    budget = MemoryBudget(20_000)
    logs = [MemoryLog(_SMALL_SEGMENTS, budget, TopicPartition(*of)) for of in _TWO_TOPICS]
    _append(logs[0])
    assert not caplog.records
    for log in logs * 40:
        _append(log)
    told = caplog.text.strip().splitlines()
    assert len(told) == 2
    for topic, text in zip(("orders", "payments"), told, strict=True):
        assert "records_dropped_for_memory" in text and topic in text and "--memory-mb" in text


_TWO_TOPICS = [("orders", 0), ("orders", 1), ("payments", 0)]


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
def test_what_is_counted_is_what_the_logs_hold(steps: list[tuple[str, int, int]]) -> None:
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
        assert [log.held_bytes for log in logs] == [len(one) * batch_bytes for one in held]
        assert budget.used_bytes == len({*held[0], *held[1]}) * batch_bytes
        assert budget.used_bytes <= budget.limit_bytes


def _produce(values: list[bytes]) -> dict[str, Any]:
    data = [{"name": "orders", "partition_data": [{"index": 0, "records": record_batch(values)}]}]
    return {"acks": -1, "timeout": timedelta(seconds=10), "topic_data": data}


def test_a_cluster_in_memory_takes_any_amount_and_holds_a_bounded_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        topics = [TopicSpec("orders", 1, 2)]
        config = ClusterConfig(brokers=2, topics=topics, memory_bytes=8 * _MIB)
        async with Cluster(config) as cluster:
            leader = cluster.controller.topics["orders"].partitions[0].leader
            async with await RawClient.to(cluster, leader) as client:
                for number in range(60):
                    answer = await client.ask(0, 9, _produce([bytes(500_000)]))
                    answered = answer.responses[0].partition_responses[0]
                    assert (answered.error_code, answered.base_offset) == (0, number)
                    assert cluster.memory.used_bytes <= 8 * _MIB
                first = {"partition_index": 0, "timestamp": -2}
                asked = {"topics": [{"name": "orders", "partitions": [first]}]}
                told = (await client.ask(2, 7, asked)).topics[0].partitions[0]
                assert 42 < told.offset < 46, "16 fit, though two brokers have them"
                partition = cluster_state(cluster)["topics"][0]["partitions"][0]
                assert partition["log_start_offset"] == told.offset
            assert caplog.text.count("records_dropped_for_memory") == 1
            cluster.controller.delete_topic("orders")
            assert cluster.memory.used_bytes == 0

    asyncio.run(main())


def test_a_produce_that_nothing_makes_room_for_is_refused_and_the_cluster_goes_on() -> None:
    async def main() -> None:
        topics = [TopicSpec("orders", 1, 2)]
        config = ClusterConfig(brokers=2, topics=topics, memory_bytes=8 * _MIB)
        async with Cluster(config) as cluster:
            leader = cluster.controller.topics["orders"].partitions[0].leader
            with cluster.fault.stall_follower(3 - leader):
                async with await RawClient.to(cluster, leader) as client:
                    codes = []
                    for _ in range(20):  # acks=1: nothing is committed meanwhile
                        asked = {**_produce([bytes(500_000)]), "acks": 1}
                        answer = await client.ask(0, 9, asked)
                        codes.append(answer.responses[0].partition_responses[0].error_code)
                    assert codes == [0] * 16 + [56] * 4
                    assert cluster.memory.used_bytes <= 8 * _MIB
            async with await RawClient.to(cluster, leader) as client, asyncio.timeout(20):
                code = 56
                while code == 56:
                    answer = await client.ask(0, 9, _produce([b"small", bytes(500_000)]))
                    code = answer.responses[0].partition_responses[0].error_code
                assert code == 0

    asyncio.run(main())


def test_too_little_memory_is_refused_with_what_it_takes() -> None:
    with pytest.raises(ClusterError, match="each takes at least 4194304"):
        Cluster(ClusterConfig(brokers=3, memory_bytes=_MIB))


def test_segments_whose_records_are_all_too_old_go_the_active_one_too() -> None:
    kept_ms = 1_000
    (log,) = _logs(MemoryBudget(_MIB), 1, LogConfig(segment_bytes=4_000, retention_ms=kept_ms))
    for _ in range(10):
        _append(log)
    too_old_ms = RECORD_TIME_MS + kept_ms + 1
    assert not delete_old_segments(log, too_old_ms - 1), "none is older than that"
    log.update_high_watermark(6)
    assert delete_old_segments(log, too_old_ms)
    assert log.start_offset == log.segment_bases[0] == 4, "whole segments of what is committed"
    log.update_high_watermark(10)
    assert delete_old_segments(log, too_old_ms)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (10, 10, 0)
    log._check()
    assert not delete_old_segments(log, too_old_ms)


def test_a_cluster_drops_records_older_than_their_topic_keeps_them() -> None:
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


def test_the_command_refuses_too_little_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["cluster", "--brokers", "3", "--port", "0", "--memory-mb", "1"]) == 2
    assert "each takes at least 4194304" in capsys.readouterr().err
