"""Each way in which a deletion of records stops waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from purgatory import PurgatoryClosedError
from purgatory.kafka import (
    DeleteRecordsCase,
    ErrorCode,
    PartitionDeleteRecordsResponse,
    TopicPartition,
)

if TYPE_CHECKING:
    from tests.unit.kafka.conftest import Broker

TP = TopicPartition("topic", 0)
OTHER = TopicPartition("topic", 1)


@pytest.fixture
def filled(leader: Broker) -> Broker:
    """The leader with five records that both followers have; the high watermark is 5."""
    for _ in range(5):
        leader.produce(acks=1)
    leader.followers_fetch(5, 1, 2, log_start=0)
    assert leader.replica().high_watermark == 5
    return leader


def case_of(broker: Broker) -> Callable[[], object]:
    """Return a function that returns the case of the operation that waits now."""
    (status,) = broker.waiting(broker.deletions).statuses
    return lambda: status.case


# ---- at once


def test_sole_replica_responds_at_once(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(0)
    broker.lead(isr=(0,), replicas=(0,))
    broker.produce(acks=1)

    assert broker.delete_records(1).of() == PartitionDeleteRecordsResponse(ErrorCode.NONE, 1)
    assert broker.replica().log_start_offset == 1


def test_offset_beyond_the_high_watermark_is_out_of_range(filled: Broker) -> None:
    filled.produce(acks=1)

    response = filled.delete_records(6).of()

    assert response.error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert response.low_watermark == -1
    assert "the high watermark is 5" in str(response.message)
    assert filled.replica().log_start_offset == 0


def test_an_offset_below_minus_1_is_out_of_range(filled: Broker) -> None:
    response = filled.delete_records(-2).of()

    assert response.error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert "-2" in str(response.message)


def test_an_unknown_partition_is_refused_at_once(filled: Broker) -> None:
    answer = filled.delete_records(1, tps=(OTHER,))

    assert answer.of(OTHER).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_follower_refuses_at_once(make_broker: Callable[..., Broker]) -> None:
    follower = make_broker(1)
    follower.manager.become_follower(TP, 0, 1, (0, 1, 2))

    assert follower.delete_records(0).of().error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_deletion_below_every_replicas_start_completes_at_once(filled: Broker) -> None:
    filled.delete_records(3)
    filled.followers_fetch(5, 1, 2, log_start=3)

    assert filled.delete_records(2).of() == PartitionDeleteRecordsResponse(ErrorCode.NONE, 3)
    assert filled.deletions.counters.outcomes["immediate"] == 0  # never submitted to the purgatory


# ---- the cases


def test_case_deleted_when_the_low_watermark_reaches_the_offset(filled: Broker) -> None:
    answer = filled.delete_records(3)
    case = case_of(filled)
    filled.followers_fetch(5, 1, log_start=3)
    assert not answer.given  # one of two followers
    filled.followers_fetch(5, 2, log_start=2)
    assert not answer.given  # not far enough

    filled.followers_fetch(5, 2, log_start=4)

    assert case() is DeleteRecordsCase.DELETED
    assert answer.of() == PartitionDeleteRecordsResponse(ErrorCode.NONE, 3)


def test_offset_minus_1_deletes_up_to_the_present_high_watermark(filled: Broker) -> None:
    answer = filled.delete_records(-1)
    filled.produce(acks=1)
    filled.followers_fetch(6, 1, 2, log_start=5)

    assert answer.of().low_watermark == 5
    assert filled.replica().log_start_offset == 5


def test_case_not_leader_when_another_broker_leads(filled: Broker) -> None:
    answer = filled.delete_records(3)
    case = case_of(filled)

    filled.manager.become_follower(TP, 1, 2)

    assert case() is DeleteRecordsCase.NOT_LEADER
    assert answer.of().error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer.of().low_watermark == -1


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("delete_topic", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("stop_replica", ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("mark_offline", ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_case_gone_when_the_partition_leaves_the_broker(
    filled: Broker, how: str, error: ErrorCode
) -> None:
    answer = filled.delete_records(3)
    case = case_of(filled)

    getattr(filled.manager, how)("topic" if how == "delete_topic" else TP)

    assert case() is DeleteRecordsCase.GONE
    assert answer.of().error is error


# ---- which replicas count


def test_deletion_does_not_wait_for_a_dead_replica(filled: Broker) -> None:
    answer = filled.delete_records(3)
    filled.followers_fetch(5, 1, log_start=3)
    assert not answer.given

    filled.manager.set_live_brokers({0, 1})

    assert answer.of() == PartitionDeleteRecordsResponse(ErrorCode.NONE, 3)


def test_a_live_replica_outside_of_the_isr_is_waited_for(filled: Broker) -> None:
    filled.lead(epoch=2, isr=(0, 1))
    filled.followers_fetch(5, 1, log_start=3)

    assert not filled.delete_records(3).given


def test_a_replica_that_never_fetched_is_waited_for(leader: Broker) -> None:
    leader.lead(epoch=2, isr=(0, 1))
    leader.produce(acks=1)
    leader.followers_fetch(1, 1)
    assert leader.replica().high_watermark == 1

    answer = leader.delete_records(1)
    assert not answer.given
    leader.pass_time(1000)

    assert answer.of() == PartitionDeleteRecordsResponse(ErrorCode.REQUEST_TIMED_OUT, -1)


# ---- timeouts and failures


def test_timeout_returns_each_partitions_state(filled: Broker) -> None:
    filled.lead(tp=OTHER)
    for replica_id in (1, 2):
        filled.fetch(0, replica_id, max_wait_ms=0, log_start=0, tps=(OTHER,))
    missing = TopicPartition("missing", 0)
    answer = filled.delete_records(-1, timeout_ms=1000, tps=(TP, OTHER, missing))
    filled.followers_fetch(5, 1, 2, log_start=2)

    filled.pass_time(999)
    assert not answer.given
    filled.pass_time(1)

    assert answer.all[TP] == PartitionDeleteRecordsResponse(ErrorCode.REQUEST_TIMED_OUT, 2)
    assert answer.all[OTHER] == PartitionDeleteRecordsResponse(ErrorCode.NONE, 0)
    assert answer.all[missing].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert filled.replica().log_start_offset == 5  # the leader's own records are gone


def test_closing_with_failure_completes_waiting_deletions(filled: Broker) -> None:
    answer = filled.delete_records(3)

    filled.deletions.close(policy="fail")

    assert answer.of().error is ErrorCode.UNKNOWN_SERVER_ERROR
    with pytest.raises(PurgatoryClosedError):
        filled.delete_records(4)


def test_respond_that_raises_is_not_called_again(filled: Broker) -> None:
    calls = []

    def respond(responses: object) -> None:
        calls.append(responses)
        raise RuntimeError("the connection broke")

    filled.manager.delete_records(1000, {TP: 3}, respond)
    filled.followers_fetch(5, 1, 2, log_start=3)

    assert len(calls) == 1
    filled.expected_callback_errors = 1
