"""A follower applies its leader's responses, and diverging logs become equal again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from purgatory.kafka import (
    EpochEndOffset,
    ErrorCode,
    Log,
    LogConfig,
    PartitionFetch,
    PartitionFetchResponse,
    RecordBatch,
    TopicPartition,
)

if TYPE_CHECKING:
    from tests.unit.kafka.conftest import Broker

TP = TopicPartition("topic", 0)


def log_of(*epochs: int) -> Log:
    """A log of one record per epoch that is given: log_of(1, 1, 2) has three."""
    log = Log(LogConfig(segment_bytes=300))
    for offset, epoch in enumerate(epochs):
        log.append(RecordBatch(offset, 1, 100, epoch))
    return log


def epochs_of(log: Log) -> list[int]:
    batches: list[RecordBatch] = []
    while found := log.read(batches[-1].next_offset if batches else log.start_offset, 10_000):
        batches += found
    return [batch.leader_epoch for batch in batches]


@pytest.fixture
def follower(make_broker: Callable[..., Broker]) -> Broker:
    broker = make_broker(1, log_config=LogConfig(segment_bytes=300))
    assert broker.manager.become_follower(TP, 0, 1, (0, 1, 2))
    return broker


def next_fetch(broker: Broker) -> PartitionFetch:
    fetch = broker.manager.follower_fetch(TP)
    assert fetch is not None
    return fetch


def batches(*offsets: int, epoch: int = 1) -> tuple[RecordBatch, ...]:
    return tuple(RecordBatch(offset, 1, 100, epoch) for offset in offsets)


def answer(
    *, high_watermark: int = 0, start: int = 0, copied: tuple[RecordBatch, ...] = ()
) -> PartitionFetchResponse:
    return PartitionFetchResponse(ErrorCode.NONE, high_watermark, high_watermark, start, copied)


# ---- asking and copying


def test_follower_fetch_has_its_end_and_epochs(
    follower: Broker,
) -> None:
    assert next_fetch(follower) == PartitionFetch(0, 1024 * 1024, 1, None, 0)
    follower.manager.append_as_follower(TP, next_fetch(follower), answer(copied=batches(0, 1)))
    follower.manager.become_follower(TP, 2, 4)

    assert next_fetch(follower) == PartitionFetch(2, 1024 * 1024, 4, 1, 0)


def test_follower_copies_the_high_watermark_up_to_its_end(follower: Broker) -> None:
    taken = follower.manager.append_as_follower(
        TP, next_fetch(follower), answer(high_watermark=9, copied=batches(0, 1))
    )

    assert taken
    assert (follower.replica().log_end_offset, follower.replica().high_watermark) == (2, 2)


def test_new_leader_does_not_lower_a_followers_high_watermark(
    follower: Broker,
) -> None:
    follower.manager.append_as_follower(
        TP, next_fetch(follower), answer(high_watermark=2, copied=batches(0, 1))
    )

    follower.manager.append_as_follower(TP, next_fetch(follower), answer(high_watermark=1))

    assert follower.replica().high_watermark == 2


def test_follower_deletes_records_that_the_leader_deleted(follower: Broker) -> None:
    follower.manager.append_as_follower(
        TP, next_fetch(follower), answer(high_watermark=3, copied=batches(0, 1, 2))
    )

    follower.manager.append_as_follower(TP, next_fetch(follower), answer(high_watermark=3, start=2))

    assert follower.replica().log_start_offset == 2


@pytest.mark.parametrize("what", ["another epoch", "another end", "it leads", "no replica"])
def test_stale_response_changes_nothing(follower: Broker, what: str) -> None:
    stale = next_fetch(follower)
    if what == "another epoch":
        follower.manager.become_follower(TP, 2, 2)
    elif what == "another end":
        follower.manager.append_as_follower(TP, stale, answer(copied=batches(0)))
    elif what == "it leads":
        follower.lead(epoch=2)
    else:
        follower.manager.stop_replica(TP)
    replica = follower.manager.partition(TP)
    before = None if replica is None else replica.log_end_offset

    assert not follower.manager.append_as_follower(TP, stale, answer(copied=batches(0)))

    assert before == (None if replica is None else replica.log_end_offset)


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_error_response_changes_nothing(follower: Broker, error: ErrorCode) -> None:
    response = PartitionFetchResponse(error)

    assert not follower.manager.append_as_follower(TP, next_fetch(follower), response)


def test_follower_beyond_the_leaders_end_truncates_to_it(follower: Broker) -> None:
    follower.manager.append_as_follower(TP, next_fetch(follower), answer(copied=batches(0, 1, 2)))
    response = PartitionFetchResponse(
        ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=0, log_end_offset=1
    )

    assert follower.manager.append_as_follower(TP, next_fetch(follower), response)

    assert follower.replica().log_end_offset == 1


def test_follower_before_the_leaders_start_empties_its_log_there(follower: Broker) -> None:
    follower.manager.append_as_follower(TP, next_fetch(follower), answer(copied=batches(0)))
    response = PartitionFetchResponse(
        ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=5, log_end_offset=9
    )

    assert follower.manager.append_as_follower(TP, next_fetch(follower), response)

    replica = follower.replica()
    assert (replica.log_start_offset, replica.high_watermark, replica.log_end_offset) == (5, 5, 5)


# ---- truncation by epochs


def test_diverging_epoch_truncates_the_log(follower: Broker) -> None:
    follower.manager.append_as_follower(TP, next_fetch(follower), answer(copied=batches(0, 1, 2)))
    response = replace(answer(), diverging_epoch=EpochEndOffset(1, 2))

    assert follower.manager.append_as_follower(TP, next_fetch(follower), response)

    assert follower.replica().log_end_offset == 2


@pytest.mark.parametrize(
    ("leaders", "followers"),
    [
        pytest.param((1, 1, 3, 3), (1, 1, 2), id="another epoch at the end"),
        pytest.param((1, 3), (1, 1, 1), id="more of a common epoch"),
        pytest.param((3, 3), (1, 1), id="nothing in common"),
        pytest.param((1, 1, 2, 5), (1, 1, 3, 4), id="several epochs back"),
        pytest.param((1, 2, 4, 5), (1, 3, 3, 3, 3), id="each has epochs that the other lacks"),
        pytest.param((1, 1, 1), (1,), id="only behind"),
        pytest.param((5,), (1, 2, 3, 4), id="a short new leader"),
        pytest.param((1, 2, 3, 4, 5, 6), (1, 2, 2, 2), id="in an older epoch's middle"),
    ],
)
def test_diverging_logs_are_equal_after_some_fetches(
    make_broker: Callable[..., Broker], leaders: tuple[int, ...], followers: tuple[int, ...]
) -> None:
    leader = make_broker(0, logs={TP: log_of(*leaders)})
    leader.lead(epoch=9, isr=(0,), replicas=(0, 1))
    follower = make_broker(1, logs={TP: log_of(*followers)})
    follower.manager.become_follower(TP, 0, 9, (0, 1))

    for _ in range(6):
        copied = next_fetch(follower)
        response = leader.fetch(
            copied.fetch_offset, 1, epoch=9, fetched_epoch=copied.last_fetched_epoch, max_wait_ms=0
        ).of()
        assert follower.manager.append_as_follower(TP, copied, response)

    assert epochs_of(follower.replica().log) == list(leaders)
    assert leader.replica().isr == (0, 1)


def test_truncation_restores_the_producers_sequences(
    make_broker: Callable[..., Broker],
) -> None:
    """A truncated record is no duplicate when it is sent again."""
    broker = make_broker(1)
    broker.manager.become_follower(TP, 0, 1, (0, 1))
    numbered = tuple(
        RecordBatch(n, 1, 100, 1, producer_id=7, producer_epoch=0, base_sequence=n)
        for n in range(2)
    )
    broker.manager.append_as_follower(TP, next_fetch(broker), answer(copied=numbered))
    response = replace(answer(), diverging_epoch=EpochEndOffset(1, 1))
    broker.manager.append_as_follower(TP, next_fetch(broker), response)
    broker.lead(epoch=2, isr=(1,), replicas=(0, 1))

    again = broker.produce(numbered[1], acks=1).of()
    first = broker.produce(numbered[0], acks=1).of()

    assert (again.base_offset, again.duplicate) == (1, False)
    assert (first.base_offset, first.duplicate) == (0, True)
