"""The replicas of a broker; each request on them is answered exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from purgatory.kafka import (
    ErrorCode,
    FetchParams,
    PartitionFetch,
    RecordBatch,
    ReplicaManager,
    TopicPartition,
)

if TYPE_CHECKING:
    from tests.unit.kafka.conftest import Broker

TP = TopicPartition("topic", 0)
OTHER = TopicPartition("topic", 1)


# ---- its settings


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"min_insync_replicas": 0}, "min_insync_replicas=0: it is at least 1"),
        ({"max_lag_ms": -1}, "max_lag_ms=-1: a lag is 0 ms or more"),
    ],
)
def test_invalid_setting_is_refused_by_name(
    make_broker: Callable[..., Broker], setting: dict[str, int], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        make_broker(0, **setting)


# ---- hosted replicas


def test_partition_that_was_never_here_is_unknown(leader: Broker) -> None:
    error, message = leader.manager.absence_error(OTHER)

    assert error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert message == "broker 0 doesn't know topic-1"


def test_replica_that_returns_finds_its_log(leader: Broker) -> None:
    leader.produce(acks=1)
    leader.manager.stop_replica(TP)
    assert leader.manager.partition(TP) is None

    leader.lead(epoch=2)

    assert leader.replica().log_end_offset == 1


def test_deleted_replica_returns_empty(leader: Broker) -> None:
    leader.produce(acks=1)
    leader.manager.stop_replica(TP, delete=True)

    leader.lead(epoch=2)

    assert leader.replica().log_end_offset == 0


def test_stopping_a_missing_replica_is_no_error(leader: Broker) -> None:
    leader.manager.stop_replica(OTHER)
    leader.manager.mark_offline(OTHER)
    leader.manager.delete_topic("none")

    assert leader.manager.partitions() == [leader.replica()]


def test_an_offline_replica_takes_no_role(leader: Broker) -> None:
    leader.manager.mark_offline(TP)

    assert not leader.manager.become_leader(TP, 2, (0,), (0,))
    assert not leader.manager.become_follower(TP, 1, 2)
    assert leader.produce(acks=1).of().error is ErrorCode.KAFKA_STORAGE_ERROR
    assert leader.fetch(0).of().error is ErrorCode.KAFKA_STORAGE_ERROR
    assert leader.delete_records(0).of().error is ErrorCode.KAFKA_STORAGE_ERROR


def test_deleting_a_topic_leaves_the_others_alone(leader: Broker) -> None:
    kept = TopicPartition("kept", 0)
    leader.lead(tp=kept)
    leader.lead(tp=OTHER)

    leader.manager.delete_topic("topic")

    assert [partition.topic_partition for partition in leader.manager.partitions()] == [kept]
    assert leader.manager.absence_error(TP)[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_next_process_finds_the_logs_of_the_one_before(
    leader: Broker, make_broker: Callable[..., Broker]
) -> None:
    waiting = leader.produce()

    restarted = make_broker(0, min_insync_replicas=2, logs=leader.manager.detach_logs())
    assert restarted.manager.absence_error(TP)[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
    restarted.lead(epoch=2)

    assert restarted.replica().log_end_offset == 1
    assert not waiting.given  # its process is gone
    assert leader.manager.partitions() == []


# ---- which operations an event checks


def test_an_append_wakes_followers_and_not_consumers(leader: Broker) -> None:
    follower, consumer = leader.fetch(0, 1), leader.fetch(0)

    leader.produce(acks=1)

    assert follower.given
    assert not consumer.given


def test_an_append_that_commits_at_once_wakes_consumers(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(0)
    broker.lead(isr=(0,), replicas=(0,))
    consumer = broker.fetch(0)

    broker.produce(acks=1)

    assert consumer.given


def test_duplicate_wakes_no_fetch(leader: Broker) -> None:
    batch = RecordBatch(0, 1, 100, producer_id=7, producer_epoch=0, base_sequence=0)
    leader.produce(batch, acks=1)
    follower = leader.fetch(1, 1)
    checks_before = leader.fetches.counters.checks

    leader.produce(batch, acks=1)

    assert not follower.given
    assert leader.fetches.counters.checks == checks_before


def test_fetch_wakes_a_produce_a_consumer_and_a_follower(
    leader: Broker,
) -> None:
    produce, consumer = leader.produce(), leader.fetch(0)
    leader.followers_fetch(1, 1)

    leader.followers_fetch(1, 2)

    assert produce.of().error is ErrorCode.NONE
    assert [batch.base_offset for batch in consumer.of().batches] == [0]


def test_a_stalled_partition_holds_back_no_request_on_another(leader: Broker) -> None:
    leader.lead(tp=OTHER)
    stalled, smooth = leader.produce(), leader.produce(tps=(OTHER,))

    for replica_id in (1, 2):
        leader.fetch(1, replica_id, max_wait_ms=0, tps=(OTHER,))

    assert smooth.given
    assert not stalled.given


# ---- exactly once


def test_respond_may_send_the_next_request(leader: Broker) -> None:
    """A producer that sends from inside the response, as a server on one thread may."""
    answers: list[int] = []

    def respond(responses: Any) -> None:
        answers.append(responses[TP].base_offset)
        if len(answers) < 5:
            leader.manager.append_records(1_000, -1, {TP: RecordBatch(0, 1, 100)}, respond)

    leader.manager.append_records(1_000, -1, {TP: RecordBatch(0, 1, 100)}, respond)
    for offset in range(1, 6):
        leader.followers_fetch(offset, 1, 2)

    assert answers == [0, 1, 2, 3, 4]


def test_request_on_several_partitions_gets_one_response(leader: Broker) -> None:
    leader.lead(tp=OTHER)
    answer = leader.produce(tps=(TP, OTHER))

    for tp in (TP, OTHER):
        for replica_id in (1, 2):
            leader.fetch(1, replica_id, max_wait_ms=0, tps=(tp,))
    leader.pass_time(10_000)  # the timeouts go by without a second answer

    assert set(answer.all) == {TP, OTHER}
    assert leader.produces.counters.outcomes["completed"] == 1
    assert leader.produces.counters.outcomes["expired"] == 0


def test_event_after_a_timeout_gives_no_second_response(leader: Broker) -> None:
    produce, fetch = leader.produce(timeout_ms=100), leader.fetch(0, max_wait_ms=100)
    leader.pass_time(100)
    assert produce.of().error is ErrorCode.REQUEST_TIMED_OUT

    leader.followers_fetch(1, 1, 2)
    leader.manager.become_follower(TP, 1, 2)

    assert produce.of().error is ErrorCode.REQUEST_TIMED_OUT
    assert fetch.of().batches == ()
    assert leader.produces.watched == leader.fetches.watched == 0


def test_read_without_a_request_is_no_fetch(leader: Broker) -> None:
    leader.produce(acks=1)

    answers = leader.manager.read(FetchParams(replica_id=1), {TP: PartitionFetch(1)})

    assert answers[TP].batches == ()
    assert leader.replica().follower_end_offset(1) == -1


def test_follower_without_a_leader_has_no_fetch(make_broker: Callable[..., Broker]) -> None:
    manager: ReplicaManager = make_broker(1).manager
    assert manager.follower_fetch(TP) is None

    manager.become_follower(TP, -1, 1)

    assert manager.follower_fetch(TP) is None
