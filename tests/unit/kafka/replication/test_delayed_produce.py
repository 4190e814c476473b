"""Each way in which a produce with acks=all stops waiting, by the letter of its case."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from purgatory import Outcome, PurgatoryClosedError
from purgatory.kafka import (
    AppendOrigin,
    ErrorCode,
    LogConfig,
    PartitionFetch,
    PartitionProduceResponse,
    ProduceCase,
    RecordBatch,
    TopicPartition,
)
from purgatory.kafka.replication.delayed_produce import closes_connection

if TYPE_CHECKING:
    from tests.unit.kafka.conftest import Broker

TP = TopicPartition("topic", 0)
OTHER = TopicPartition("topic", 1)


def case_of(broker: Broker, topic_partition: TopicPartition = TP) -> Callable[[], object]:
    """Return a function that returns the case of the operation that waits now."""
    operation = broker.waiting(broker.produces)
    (status,) = (s for s in operation.statuses if s.topic_partition == topic_partition)
    return lambda: status.case


# ---- without waiting


@pytest.mark.parametrize("acks", [0, 1])
def test_acks_0_and_1_complete_at_the_leaders_append(leader: Broker, acks: int) -> None:
    answer = leader.produce(acks=acks)

    assert answer.of() == PartitionProduceResponse(ErrorCode.NONE, 0, 0)
    assert leader.produces.counters.outcomes["immediate"] == 0


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_acks_other_than_0_1_and_all_are_refused(leader: Broker, acks: int) -> None:
    answer = leader.produce(acks=acks)

    assert answer.of().error is ErrorCode.INVALID_REQUIRED_ACKS
    assert leader.replica().log_end_offset == 0


def test_below_min_insync_replicas_nothing_is_appended(leader: Broker) -> None:
    leader.lead(epoch=2, isr=(0,))

    answer = leader.produce(acks=-1)

    assert answer.of().error is ErrorCode.NOT_ENOUGH_REPLICAS
    assert answer.of().base_offset == -1
    assert leader.replica().log_end_offset == 0
    assert leader.produce(acks=1).of().error is ErrorCode.NONE


def test_an_unknown_partition_is_refused_at_once(leader: Broker) -> None:
    answer = leader.produce(tps=(OTHER,))

    assert answer.of(OTHER).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_follower_refuses_at_once(make_broker: Callable[..., Broker]) -> None:
    follower = make_broker(1)
    follower.manager.become_follower(TP, 0, 1, (0, 1, 2))

    answer = follower.produce()

    assert answer.of().error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert "broker 1 doesn't lead topic-0" in str(answer.of().message)


def test_a_batch_that_is_too_large_is_refused(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(0, log_config=LogConfig(max_batch_bytes=99))
    broker.lead()

    assert broker.produce().of().error is ErrorCode.MESSAGE_TOO_LARGE


def test_an_append_without_a_batch_is_refused(leader: Broker) -> None:
    answer = leader.produce()
    empty: list[PartitionProduceResponse] = []
    leader.manager.append_records(1000, 1, {TP: ()}, lambda r: empty.append(r[TP]))

    assert empty[0].error is ErrorCode.INVALID_RECORD
    assert not answer.given


def test_request_without_partitions_gets_an_empty_response(leader: Broker) -> None:
    assert leader.produce(tps=()).all == {}


def test_sole_replica_commits_at_once(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(0)
    broker.lead(isr=(0,), replicas=(0,))

    assert broker.produce().of() == PartitionProduceResponse(ErrorCode.NONE, 0, 0)


def test_min_insync_above_the_replicas_requires_all_of_them(
    make_broker: Callable[..., Broker],
) -> None:
    broker = make_broker(0, min_insync_replicas=3)
    broker.lead(isr=(0,), replicas=(0,))
    broker.lead(isr=(0,), replicas=(0, 1), tp=OTHER)

    assert broker.produce().of() == PartitionProduceResponse(ErrorCode.NONE, 0, 0)
    assert broker.replica().high_watermark == 1
    refused = broker.produce(tps=(OTHER,)).of(OTHER)
    assert refused.error is ErrorCode.NOT_ENOUGH_REPLICAS
    assert "2 of them must be" in str(refused.message)


@pytest.mark.parametrize(
    ("acks", "errors", "closes"),
    [
        (0, [ErrorCode.NONE], False),
        (0, [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER], True),
        (0, [ErrorCode.MESSAGE_TOO_LARGE], True),
        (1, [ErrorCode.NOT_LEADER_OR_FOLLOWER], False),
        (-1, [ErrorCode.NOT_ENOUGH_REPLICAS], False),
    ],
)
def test_an_error_to_acks_0_closes_the_connection(
    acks: int, errors: list[ErrorCode], closes: bool
) -> None:
    assert closes_connection(acks, map(PartitionProduceResponse, errors)) is closes


def test_coordinator_alone_appends_several_batches(
    leader: Broker,
) -> None:
    batches = RecordBatch(0, 2, 100), RecordBatch(0, 3, 100)

    refused = leader.produce(*batches, acks=1).of()
    answer = leader.produce(*batches, acks=1, origin=AppendOrigin.COORDINATOR)

    assert refused.error is ErrorCode.INVALID_RECORD
    assert "2 batches in one append" in str(refused.message)
    assert answer.of().base_offset == 0
    assert leader.produce(acks=1).of().base_offset == 5


# ---- the cases


def test_case_a_the_topic_was_deleted(leader: Broker) -> None:
    answer = leader.produce()
    case = case_of(leader)

    leader.manager.delete_topic("topic")

    assert case() is ProduceCase.GONE
    assert answer.of().error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_case_a_the_replica_was_stopped(leader: Broker) -> None:
    answer = leader.produce()
    case = case_of(leader)

    leader.manager.stop_replica(TP)

    assert case() is ProduceCase.GONE
    assert answer.of().error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_case_a_the_disk_failed(leader: Broker) -> None:
    answer = leader.produce()
    case = case_of(leader)

    leader.manager.mark_offline(TP)

    assert case() is ProduceCase.GONE
    assert answer.of().error is ErrorCode.KAFKA_STORAGE_ERROR


def test_case_b_another_broker_leads(leader: Broker) -> None:
    answer = leader.produce()
    case = case_of(leader)

    leader.manager.become_follower(TP, 1, 2)

    assert case() is ProduceCase.NOT_LEADER
    assert answer.of().error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer.of().base_offset == 0


def test_case_b_leadership_was_lost_and_regained(leader: Broker) -> None:
    """The offset may be that of other records by now, so a high watermark beyond it proves
    nothing."""
    answer = leader.produce()
    case = case_of(leader)

    leader.manager.become_follower(TP, 1, 2)
    leader.replica().log.truncate_to(0)
    leader.lead(epoch=3, isr=(0, 1))
    leader.produce(acks=1)
    leader.followers_fetch(1, 1)

    assert leader.replica().high_watermark == 1
    assert case() is ProduceCase.NOT_LEADER
    assert answer.of().error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_case_c1_too_few_are_in_sync_after_the_append(leader: Broker) -> None:
    leader.lead(tp=OTHER)
    answer = leader.produce(tps=(TP, OTHER))
    case = case_of(leader)

    # As if both came before the check: the records are committed, then the ISR shrinks.
    partition = leader.replica()
    for replica_id in (1, 2):
        partition.fetch_as_follower(PartitionFetch(1), replica_id, 100, True, now_ms=0)
    partition.make_leader(2, (0,), (0, 1, 2), now_ms=0)
    leader.check_all_that_waits()

    assert case() is ProduceCase.FAILED
    leader.pass_time(1000)
    assert answer.of().error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert answer.of().base_offset == 0


def test_isr_below_the_minimum_commits_nothing(leader: Broker) -> None:
    answer = leader.produce(timeout_ms=60_000)
    late = leader.produce(timeout_ms=30_002)

    leader.pass_time(30_001)  # neither follower ever fetched
    leader.manager.maybe_shrink_isr()

    assert leader.replica().isr == (0,)
    assert leader.replica().high_watermark == 0
    assert not answer.given
    leader.pass_time(1)
    assert late.of().error is ErrorCode.REQUEST_TIMED_OUT
    leader.followers_fetch(2, 1)
    assert leader.replica().isr == (0, 1)
    assert answer.of() == PartitionProduceResponse(ErrorCode.NONE, 0, 0)


def test_case_c2_the_high_watermark_reached_the_records(leader: Broker) -> None:
    answer = leader.produce(RecordBatch(0, 3, 100))
    case = case_of(leader)

    leader.followers_fetch(3, 1)
    assert not answer.given  # one of two followers
    leader.followers_fetch(2, 2)
    assert not answer.given  # not far enough
    leader.followers_fetch(3, 2)

    assert case() is ProduceCase.REPLICATED
    assert answer.of() == PartitionProduceResponse(ErrorCode.NONE, 0, 0)


def test_case_c2_without_a_follower_that_left_the_isr(leader: Broker) -> None:
    answer = leader.produce(timeout_ms=60_000)
    case = case_of(leader)
    leader.pass_time(30_001)
    leader.followers_fetch(1, 1)
    assert not answer.given

    leader.manager.maybe_shrink_isr()

    assert case() is ProduceCase.REPLICATED
    assert answer.of().error is ErrorCode.NONE
    assert leader.replica().isr == (0, 1)


# ---- several partitions, timeouts, failures


def test_timeout_returns_each_partitions_state(leader: Broker) -> None:
    missing = TopicPartition("missing", 0)
    leader.lead(tp=OTHER)
    answer = leader.produce(tps=(TP, OTHER, missing), timeout_ms=1000)
    leader.followers_fetch(1, 1, 2)  # TP is replicated, OTHER isn't
    assert not answer.given

    leader.pass_time(999)
    assert not answer.given
    leader.pass_time(1)

    assert {tp: response.error for tp, response in answer.all.items()} == {
        TP: ErrorCode.NONE,
        OTHER: ErrorCode.REQUEST_TIMED_OUT,
        missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert answer.of(OTHER).base_offset == 0


def test_wait_continues_for_the_partitions_still_led(leader: Broker) -> None:
    leader.lead(tp=OTHER)
    answer = leader.produce(tps=(TP, OTHER))

    leader.manager.become_follower(TP, 1, 2)
    assert not answer.given
    for replica_id in (1, 2):
        leader.fetch(1, replica_id, max_wait_ms=0, tps=(OTHER,))

    assert answer.of(TP).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer.of(OTHER).error is ErrorCode.NONE


def test_partition_result_survives_a_change_of_leader(leader: Broker) -> None:
    leader.lead(tp=OTHER)
    answer = leader.produce(tps=(TP, OTHER), timeout_ms=1000)
    leader.followers_fetch(1, 1, 2)

    leader.manager.become_follower(TP, 1, 2)
    leader.pass_time(1000)

    assert answer.of(TP).error is ErrorCode.NONE
    assert answer.of(OTHER).error is ErrorCode.REQUEST_TIMED_OUT


def test_closing_with_failure_completes_waiting_produces(leader: Broker) -> None:
    leader.lead(tp=OTHER)
    answer = leader.produce(tps=(TP, OTHER))
    leader.followers_fetch(1, 1, 2)

    leader.produces.close(policy="fail")

    assert answer.of(TP).error is ErrorCode.NONE
    assert answer.of(OTHER).error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "Produce" in str(answer.of(OTHER).message)
    with pytest.raises(PurgatoryClosedError):
        leader.produce()


def test_respond_that_raises_is_not_called_again(leader: Broker) -> None:
    calls = []

    def respond(responses: object) -> None:
        calls.append(responses)
        raise RuntimeError("the connection broke")

    leader.manager.append_records(1000, -1, {TP: RecordBatch(0, 1, 100)}, respond)
    operation = leader.waiting(leader.produces)
    leader.followers_fetch(1, 1, 2)

    assert len(calls) == 1
    assert operation.outcome is Outcome.FAILED
    assert leader.produces.counters.callback_errors["on_complete"] == 1
    leader.expected_callback_errors = 1
