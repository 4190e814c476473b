"""Fetches that are answered at once: their errors, offsets and limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from purgatory.kafka import (
    EpochEndOffset,
    ErrorCode,
    RecordBatch,
    TopicPartition,
)
from tests.unit.kafka.conftest import OTHER, TP, append, offsets

if TYPE_CHECKING:
    from tests.unit.kafka.conftest import Broker


# ---- at once


def test_fetch_with_enough_bytes_completes_at_once(leader: Broker) -> None:
    append(leader, 2)

    answer = leader.fetch(0, 1, min_bytes=200)

    assert offsets(answer.of()) == [0, 1]
    assert leader.fetches.num_delayed == 0


def test_fetch_with_max_wait_0_returns_no_records_at_once(leader: Broker) -> None:
    answer = leader.fetch(0, max_wait_ms=0)

    assert answer.of().error is ErrorCode.NONE
    assert answer.of().batches == ()


def test_fetch_with_min_bytes_0_completes_at_once(leader: Broker) -> None:
    assert leader.fetch(0, min_bytes=0).of().batches == ()


def test_fetch_with_an_error_on_one_partition_completes_at_once(leader: Broker) -> None:
    answer = leader.fetch(0, tps=(TP, OTHER))

    assert answer.of(TP).error is ErrorCode.NONE
    assert answer.of(OTHER).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_request_without_partitions_gets_an_empty_response(leader: Broker) -> None:
    assert leader.fetch(0, tps=()).all == {}


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
@pytest.mark.parametrize("replica_id", [-1, 1])
def test_fetch_with_another_epoch_completes_at_once(
    leader: Broker, replica_id: int, epoch: int, error: ErrorCode
) -> None:
    assert leader.fetch(0, replica_id, epoch=epoch).of().error is error


@pytest.mark.parametrize("replica_id", [-1, 1])
def test_follower_refuses_fetches(make_broker: Callable[..., Broker], replica_id: int) -> None:
    follower = make_broker(2)
    follower.manager.become_follower(TP, 0, 1, (0, 1, 2))

    assert follower.fetch(0, replica_id).of().error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_out_of_range_error_has_the_bounds_of_the_log(leader: Broker) -> None:
    append(leader, 2)

    response = leader.fetch(3, 1).of()

    assert response.error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert (response.log_start_offset, response.log_end_offset) == (0, 2)
    assert "offset 3 was requested, the log holds 0 to 2" in str(response.message)


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(1, ErrorCode.UNKNOWN_LEADER_EPOCH), (None, ErrorCode.NOT_LEADER_OR_FOLLOWER)],
)
def test_a_replica_that_is_not_assigned_is_refused(
    leader: Broker, epoch: int | None, error: ErrorCode
) -> None:
    response = leader.fetch(0, 9, epoch=epoch).of()

    assert response.error is error
    assert "broker 9 isn't among the replicas (0, 1, 2)" in str(response.message)


@pytest.mark.parametrize("replica_id", [-1, 1])
def test_fetch_with_a_diverging_epoch_completes_at_once(leader: Broker, replica_id: int) -> None:
    append(leader, 2)
    leader.lead(epoch=3)
    append(leader, 1)

    response = leader.fetch(3, replica_id, epoch=3, fetched_epoch=2).of()

    assert response.error is ErrorCode.NONE
    assert response.diverging_epoch == EpochEndOffset(1, 2)
    assert response.batches == ()
    assert leader.fetches.counters.outcomes["immediate"] == 0  # never submitted to the purgatory


# ---- how far, and how much


def test_follower_alone_reads_beyond_the_high_watermark(
    leader: Broker,
) -> None:
    append(leader, 3)
    leader.followers_fetch(2, 1, 2)

    assert offsets(leader.fetch(0, 1).of()) == [0, 1, 2]
    assert offsets(leader.fetch(0).of()) == [0, 1]
    assert leader.fetch(0).of().high_watermark == 2


def test_response_to_a_follower_has_the_former_high_watermark(leader: Broker) -> None:
    append(leader, 1)
    leader.followers_fetch(1, 1)

    assert leader.fetch(1, 2, max_wait_ms=0).of().high_watermark == 0
    assert leader.fetch(1, 2, max_wait_ms=0).of().high_watermark == 1


def test_first_batch_is_returned_even_above_the_limit(leader: Broker) -> None:
    leader.produce(RecordBatch(0, 1, 100), acks=1)
    leader.produce(RecordBatch(0, 1, 100), acks=1)

    answer = leader.fetch(0, 1, max_bytes=10, partition_max_bytes=10)

    assert offsets(answer.of()) == [0]


def test_first_partition_alone_may_exceed_the_fetch_limits(leader: Broker) -> None:
    idle = TopicPartition("idle", 0)
    for tp in (OTHER, idle):
        leader.lead(tp=tp)
    append(leader, 2, TP)
    append(leader, 2, OTHER)

    answer = leader.fetch(0, 1, max_bytes=10_000, partition_max_bytes=10, tps=(idle, TP, OTHER))

    assert [offsets(answer.of(tp)) for tp in (idle, TP, OTHER)] == [[], [0], []]


def test_the_requests_limit_holds_over_all_partitions(leader: Broker) -> None:
    leader.lead(tp=OTHER)
    append(leader, 3, TP)
    append(leader, 3, OTHER)

    answer = leader.fetch(0, 1, max_bytes=499, tps=(TP, OTHER))

    assert offsets(answer.of(TP)) == [0, 1, 2]
    assert offsets(answer.of(OTHER)) == [0]


def test_min_bytes_are_counted_over_all_partitions(leader: Broker) -> None:
    leader.lead(tp=OTHER)
    append(leader, 1, TP)
    assert not leader.fetch(0, 1, min_bytes=200, tps=(TP, OTHER)).given

    append(leader, 1, OTHER)

    assert leader.fetch(0, 1, min_bytes=200, tps=(TP, OTHER)).given
