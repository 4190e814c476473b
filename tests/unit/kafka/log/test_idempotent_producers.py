"""An idempotent producer over the whole way: append, replication, answer, change of leader."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING

import pytest

from purgatory.kafka import (
    AppendOrigin,
    ErrorCode,
    PartitionProduceResponse,
    RecordBatch,
    TopicPartition,
)

if TYPE_CHECKING:
    from tests.unit.kafka.conftest import Broker

TP = TopicPartition("topic", 0)


def numbered(sequence: int, epoch: int = 0, count: int = 1) -> RecordBatch:
    return RecordBatch(0, count, 100, producer_id=7, producer_epoch=epoch, base_sequence=sequence)


def test_retry_gets_the_first_offset_after_replication(leader: Broker) -> None:
    leader.produce(acks=1)
    first = leader.produce(numbered(0))
    retry = leader.produce(numbered(0))
    assert not first.given
    assert not retry.given

    leader.followers_fetch(2, 1, 2)

    assert first.of() == PartitionProduceResponse(ErrorCode.NONE, 1, 0, duplicate=False)
    assert retry.of() == PartitionProduceResponse(ErrorCode.NONE, 1, 0, duplicate=True)
    assert leader.replica().log_end_offset == 2


def test_a_gap_is_refused_and_nothing_appended(leader: Broker) -> None:
    leader.produce(numbered(0), acks=1)

    answer = leader.produce(numbered(2), acks=1)

    assert answer.of().error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert leader.replica().log_end_offset == 1


def test_an_old_producer_epoch_is_refused(leader: Broker) -> None:
    leader.produce(numbered(0, epoch=1), acks=1)

    assert leader.produce(numbered(1, epoch=0), acks=1).of().error is (
        ErrorCode.INVALID_PRODUCER_EPOCH
    )


def test_a_new_leader_knows_the_duplicates_of_the_old_one(
    leader: Broker, make_broker: Callable[..., Broker]
) -> None:
    follower = make_broker(1, min_insync_replicas=2)
    follower.manager.become_follower(TP, 0, 1, (0, 1, 2))
    leader.produce(numbered(0), acks=1)
    fetch = follower.manager.follower_fetch(TP)
    assert fetch is not None
    copied = leader.fetch(0, 1, epoch=1, max_wait_ms=0).of()
    assert follower.manager.append_as_follower(TP, fetch, copied)

    follower.lead(epoch=2, isr=(1, 2))

    retry = follower.produce(numbered(0), acks=1).of()
    assert (retry.base_offset, retry.duplicate) == (0, True)
    assert follower.produce(numbered(1), acks=1).of().base_offset == 1


def test_an_idempotent_producer_sends_one_batch_at_a_time(leader: Broker) -> None:
    for batches, origin in product(
        ((numbered(0), numbered(1)), (RecordBatch(0, 1, 100), numbered(0))), AppendOrigin
    ):
        answer = leader.produce(*batches, acks=1, origin=origin)
        assert answer.of().error is ErrorCode.INVALID_RECORD
    assert leader.replica().log_end_offset == 0


@pytest.mark.parametrize("sequence", range(1, 6))
def test_last_five_batches_are_recognized_as_duplicates(leader: Broker, sequence: int) -> None:
    for number in range(6):
        leader.produce(numbered(number), acks=1)

    answer = leader.produce(numbered(sequence), acks=1)

    assert answer.of() == PartitionProduceResponse(ErrorCode.NONE, sequence, 0, duplicate=True)


def test_batch_before_the_last_five_is_refused(leader: Broker) -> None:
    for number in range(6):
        leader.produce(numbered(number), acks=1)

    answer = leader.produce(numbered(0), acks=1)

    assert answer.of().error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert "sent sequence 0, expected was 6" in str(answer.of().message)
    assert leader.replica().log_end_offset == 6


def test_five_batches_in_flight_stay_in_order_after_a_loss(leader: Broker) -> None:
    """The batches behind the lost one are refused, so the producer sends them again in order."""
    leader.produce(numbered(0), acks=1)
    refused = [leader.produce(numbered(number), acks=1).of().error for number in (2, 3, 4, 5)]
    accepted = [leader.produce(numbered(number), acks=1).of().base_offset for number in range(1, 6)]

    assert refused == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] * 4
    assert accepted == [1, 2, 3, 4, 5]


def test_retry_after_a_timeout_waits_for_the_original(leader: Broker) -> None:
    timed_out = leader.produce(numbered(0), timeout_ms=100)
    leader.pass_time(100)
    assert timed_out.of().error is ErrorCode.REQUEST_TIMED_OUT

    retry = leader.produce(numbered(0))
    assert not retry.given
    leader.followers_fetch(1, 1, 2)

    assert retry.of() == PartitionProduceResponse(ErrorCode.NONE, 0, 0, duplicate=True)


def test_a_new_epoch_fences_the_old_one_off_and_begins_at_0(leader: Broker) -> None:
    leader.produce(numbered(0), acks=1)
    leader.produce(numbered(0, epoch=1), acks=1)

    assert leader.produce(numbered(1, epoch=0), acks=1).of().error is (
        ErrorCode.INVALID_PRODUCER_EPOCH
    )
    assert leader.produce(numbered(1, epoch=1), acks=1).of().base_offset == 2


def test_producers_have_independent_sequences(leader: Broker) -> None:
    leader.produce(numbered(0), acks=1)
    other = RecordBatch(0, 1, 100, producer_id=8, producer_epoch=0, base_sequence=0)

    assert leader.produce(other, acks=1).of().duplicate is False
    assert leader.produce(numbered(0), acks=1).of().duplicate is True
