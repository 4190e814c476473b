"""Committed offsets: the records that they are kept in, and how few of them are kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from purgatory.kafka import (
    CommittedOffset,
    ErrorCode,
    LogConfig,
    OffsetKey,
    PartitionProduceResponse,
    ProducerIdentity,
    RecordBatch,
    TopicPartition,
    TransactionResult,
    coordinator_log,
    group_partition,
)
from purgatory.kafka.groups.offsets import GroupOffsets
from tests.unit.kafka.groups.group_client import TagCodec

ORDERS = TopicPartition("orders", 0)


# Java's String.hashCode() of them, without its sign, modulo 50.
@pytest.mark.parametrize(
    ("group_id", "partition"),
    [
        ("", 0),
        ("a", 47),
        ("hello", 22),
        ("my-group", 12),
        ("gr\u00fc\u00dfe", 23),
        ("\u65e5\u672c\u8a9e", 43),
        ("\U0001f600 group", 6),
        ("polygenelubricants", 0),
        ("\uffff\uffff\uffff", 5),
        ("z" * 300, 8),
    ],
)
def test_partition_of_a_group_is_that_of_kafka(group_id: str, partition: int) -> None:
    assert group_partition(group_id, 50) == partition


class LogOfOffsets:
    """A partition of the offsets' topic, whose records are replicated when the test says so."""

    def __init__(self) -> None:
        self.batches: list[RecordBatch] = []
        self.start = self.start_offset = self.end_offset = 0
        self.waiting: deque[Callable[[], object]] = deque()
        self.log = self
        self.config = LogConfig()

    def partition(self, _: TopicPartition) -> LogOfOffsets:
        return self

    def append_records(self, _: int, __: int, entries: Any, respond: Any, ___: Any) -> None:
        ((place, batches),) = entries.items()
        self.batches += batches
        self.end_offset += len(batches)  # a batch counts as one here
        answer = {place: PartitionProduceResponse(ErrorCode.NONE)}
        self.waiting.append(lambda: respond(answer))

    def advance_start(self, _: TopicPartition, offset: int) -> None:
        self.start = offset

    def replicate(self) -> None:
        """Answer the append that waits for longest."""
        self.waiting.popleft()()

    def read(self) -> dict[tuple[str, int], int]:
        """Return the offset of each group and partition, as the next coordinator reads them."""
        return {
            (key.group_id, key.partition): committed.offset
            for batch in self.batches[self.start :]
            for key, committed in TagCodec().entries(batch)
            if isinstance(key, OffsetKey) and isinstance(committed, CommittedOffset)
        }


def _offsets_in(log: LogOfOffsets) -> GroupOffsets:
    offsets = GroupOffsets(log, TagCodec(), lambda: 0)  # type: ignore[arg-type]
    offsets.load(0)
    return offsets


def test_log_is_not_compacted_during_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_log, "_MIN_STALE_RECORDS", 5)

    log = LogOfOffsets()
    offsets = _offsets_in(log)
    answers: list[ErrorCode] = []
    for offset in range(10):
        offsets.commit(0, "g", {ORDERS: CommittedOffset(offset, -1, "")}, answers.append)
    for _ in range(9):
        log.replicate()
    assert log.start == 0, "the last one is appended, and not known yet"
    log.replicate()  # that one
    log.replicate()  # the present offsets, written again
    assert answers == [ErrorCode.NONE] * 10
    assert log.start == 10
    assert log.read() == {("g", 0): 9}


def test_log_is_not_compacted_during_a_transaction_with_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator_log, "_MIN_STALE_RECORDS", 5)

    log = LogOfOffsets()
    offsets = _offsets_in(log)
    answers: list[ErrorCode] = []
    producer, other = ProducerIdentity(7, 0), TopicPartition("orders", 1)
    offsets.commit_in_transaction(
        0, "g", producer, {other: CommittedOffset(50, -1, "")}, answers.append
    )
    for offset in range(10):
        offsets.commit(0, "g", {ORDERS: CommittedOffset(offset, -1, "")}, answers.append)
    while log.waiting:
        log.replicate()
    assert log.start == 0, "the offset that is pending would be lost"
    offsets.end_transaction(0, 7, TransactionResult.COMMIT)
    offsets.commit(0, "g", {ORDERS: CommittedOffset(10, -1, "")}, answers.append)
    while log.waiting:
        log.replicate()
    assert log.start == 12
    assert log.read() == {("g", 0): 10, ("g", 1): 50}


def test_commits_of_many_offsets_rarely_take_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_log, "_MIN_STALE_RECORDS", 50)

    log = LogOfOffsets()
    offsets = _offsets_in(log)
    looks = 0
    there = offsets._snapshot

    def look(partition: int) -> Any:
        nonlocal looks
        looks += 1
        return there(partition)

    monkeypatch.setattr(offsets, "_snapshot", look)
    answers: list[ErrorCode] = []
    for number in range(2_000):  # a hundred offsets, again and again
        place = TopicPartition("orders", number % 100)
        offsets.commit(0, "g", {place: CommittedOffset(number, -1, "")}, answers.append)
        while log.waiting:
            log.replicate()
    assert answers == [ErrorCode.NONE] * 2_000
    assert looks < 2_000 / 50
    assert log.read() == {("g", number % 100): number for number in range(1_900, 2_000)}
    assert log.start > 1_000


def _offsets_with_pending() -> tuple[LogOfOffsets, GroupOffsets, ProducerIdentity]:
    """A group with one offset that is pending in an open transaction."""
    log, producer = LogOfOffsets(), ProducerIdentity(7, 0)
    offsets = GroupOffsets(log, TagCodec(), lambda: 0)  # type: ignore[arg-type]
    offsets.load(0)
    _commit(log, offsets, 10, producer)
    return log, offsets, producer


def _commit(
    log: LogOfOffsets, offsets: GroupOffsets, offset: int, producer: ProducerIdentity | None = None
) -> None:
    committed = {ORDERS: CommittedOffset(offset, -1, "")}
    if producer is None:
        offsets.commit(0, "g", committed, lambda _: None)
    else:
        offsets.commit_in_transaction(0, "g", producer, committed, lambda _: None)
    log.replicate()


def _offset(offsets: GroupOffsets) -> int | None:
    committed = offsets.group_offsets("g").get(ORDERS)
    return None if committed is None else committed.offset


@pytest.mark.parametrize("result", TransactionResult)
def test_plain_commit_leaves_pending_offsets_pending(result: TransactionResult) -> None:
    log, offsets, producer = _offsets_with_pending()
    _commit(log, offsets, 20)
    assert (_offset(offsets), offsets.pending(0, "g")) == (20, {ORDERS})
    offsets.end_transaction(0, producer.producer_id, result)
    assert (_offset(offsets), offsets.pending(0, "g")) == (20, set()), "the newer record holds"


def test_later_offset_of_the_transaction_holds() -> None:
    log, offsets, producer = _offsets_with_pending()
    _commit(log, offsets, 20)
    _commit(log, offsets, 5, producer)
    offsets.end_transaction(0, producer.producer_id, TransactionResult.COMMIT)
    assert _offset(offsets) == 5


@pytest.mark.parametrize("first", [7, 8])
def test_newest_record_of_two_transactions_holds(first: int) -> None:
    log, offsets, _ = _offsets_with_pending()
    _commit(log, offsets, 20, ProducerIdentity(8, 0))
    offsets.end_transaction(0, first, TransactionResult.COMMIT)
    assert offsets.pending(0, "g") == {ORDERS}
    offsets.end_transaction(0, 15 - first, TransactionResult.COMMIT)
    assert (_offset(offsets), offsets.pending(0, "g")) == (20, set())


def test_deletion_drops_pending_offsets() -> None:
    log, offsets, producer = _offsets_with_pending()
    assert offsets.pending(0, "g") == {ORDERS}
    offsets.delete_some(0, "g", [ORDERS], lambda _: None)
    log.replicate()
    assert offsets.pending(0, "g") == set()
    offsets.end_transaction(0, producer.producer_id, TransactionResult.COMMIT)
    assert _offset(offsets) is None


def test_deletion_of_a_topic_drops_pending_offsets() -> None:
    log, offsets, _ = _offsets_with_pending()
    offsets.delete_topic("orders")
    log.replicate()
    assert offsets.pending(0, "g") == set()
    assert offsets.groups() == ["g"], "as in Kafka, until it is deleted"
