"""Changes of leader: which are accepted, and their effects on the log, on epochs and on waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from purgatory.kafka import (
    ErrorCode,
    KafkaError,
    Log,
    Partition,
    RecordBatch,
    TopicPartition,
)

if TYPE_CHECKING:
    from tests.unit.kafka.conftest import Broker

TP = TopicPartition("topic", 0)
OTHER = TopicPartition("topic", 1)


# ---- accepted and refused commands


def test_command_with_an_older_epoch_is_refused(leader: Broker) -> None:
    leader.lead(epoch=5)

    assert not leader.manager.become_leader(TP, 4, (0,), (0, 1, 2))
    assert not leader.manager.become_follower(TP, 1, 4)
    assert (leader.replica().leader_epoch, leader.replica().isr) == (5, (0, 1, 2))


def test_a_leader_does_not_follow_another_in_its_own_epoch(leader: Broker) -> None:
    assert not leader.manager.become_follower(TP, 1, 1)
    assert leader.replica().is_leader


def test_a_follower_does_not_lead_in_another_brokers_epoch(
    make_broker: Callable[..., Broker],
) -> None:
    follower = make_broker(1)
    follower.manager.become_follower(TP, 0, 3, (0, 1))

    assert not follower.manager.become_leader(TP, 3, (0, 1), (0, 1))
    assert follower.replica().leader_id == 0


def test_leader_takes_a_new_isr_in_its_epoch(
    leader: Broker,
) -> None:
    answer = leader.produce()
    leader.followers_fetch(1, 1)

    leader.lead(epoch=1, isr=(0, 1))

    assert answer.of().error is ErrorCode.NONE  # the leader still knows the offset of follower 1


def test_follower_may_learn_its_leader_in_the_same_epoch(
    make_broker: Callable[..., Broker],
) -> None:
    follower = make_broker(1)
    follower.manager.become_follower(TP, -1, 3, (0, 1))
    assert follower.manager.follower_fetch(TP) is None

    assert follower.manager.become_follower(TP, 0, 3)
    assert follower.manager.follower_fetch(TP) is not None
    assert follower.replica().replicas == (0, 1)


@pytest.mark.parametrize(
    ("isr", "replicas", "why"),
    [
        ((1, 2), (0, 1, 2), "broker 0 was told to lead .* a leader is a member"),
        ((0, 9), (0, 1, 2), r"names \[9\], which aren't among the replicas \(0, 1, 2\)"),
    ],
)
def test_an_impossible_assignment_is_refused_by_name(
    leader: Broker, isr: tuple[int, ...], replicas: tuple[int, ...], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        leader.manager.become_leader(OTHER, 1, isr, replicas)
    assert leader.manager.partition(OTHER) is None


def test_broker_that_would_follow_itself_is_refused(leader: Broker) -> None:
    with pytest.raises(ValueError, match="broker 0 was told to follow itself on topic-0"):
        leader.manager.become_follower(TP, 0, 2)


def test_a_minimum_of_no_replica_is_refused() -> None:
    with pytest.raises(ValueError, match="min_insync_replicas=0 for topic-0"):
        Partition(TP, 0, Log(), 0)


# ---- effects on waits


def test_leader_change_ends_every_wait_with_not_leader(leader: Broker) -> None:
    leader.produce(acks=1)
    leader.followers_fetch(1, 1, 2, log_start=0)
    produce = leader.produce()
    fetch = leader.fetch(1)
    deletion = leader.delete_records(1)
    assert not (produce.given or fetch.given or deletion.given)

    leader.manager.become_follower(TP, 1, 2)

    assert produce.of().error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert fetch.of().error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert deletion.of().error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_waits_on_another_partition_continue(leader: Broker) -> None:
    leader.lead(tp=OTHER)
    produce = leader.produce(tps=(OTHER,))

    leader.manager.become_follower(TP, 1, 2)

    assert not produce.given


def test_same_leader_in_a_new_epoch_keeps_its_waits(leader: Broker) -> None:
    """The broker never ceased to lead, so its records were not truncated."""
    produce = leader.produce()

    leader.lead(epoch=2)
    assert not produce.given
    leader.followers_fetch(1, 1, 2)

    assert produce.of().error is ErrorCode.NONE


def test_a_refused_command_ends_no_wait(leader: Broker) -> None:
    leader.lead(epoch=5)
    produce = leader.produce()

    leader.manager.become_follower(TP, 1, 4)

    assert not produce.given


# ---- effects on the log


def test_new_leader_stamps_its_epoch_on_appended_batches(leader: Broker) -> None:
    leader.produce(acks=1)
    leader.lead(epoch=4)
    leader.produce(acks=1)

    assert leader.replica().log.epochs.entries() == [(1, 0), (4, 1)]
    assert [batch.leader_epoch for batch in leader.fetch(0, 1).of().batches] == [1, 4]


def test_a_new_leader_starts_with_the_high_watermark_it_knew(
    make_broker: Callable[..., Broker],
) -> None:
    """Its records may be committed; they count once an ISR member has fetched them."""
    broker = make_broker(1)
    broker.manager.become_follower(TP, 0, 1, (0, 1))
    replica = broker.replica()
    replica.log.append(RecordBatch(0, 1, 100, 1))
    replica.log.append(RecordBatch(1, 1, 100, 1))
    replica.log.update_high_watermark(1)

    broker.lead(epoch=2, isr=(0, 1), replicas=(0, 1))
    assert replica.high_watermark == 1
    broker.followers_fetch(2, 0)

    assert replica.high_watermark == 2


def test_a_new_leader_alone_in_the_isr_commits_all_it_has(
    make_broker: Callable[..., Broker],
) -> None:
    broker = make_broker(1)
    broker.manager.become_follower(TP, 0, 1, (0, 1))
    broker.replica().log.append(RecordBatch(0, 1, 100, 1))

    broker.lead(epoch=2, isr=(1,), replicas=(0, 1))

    assert broker.replica().high_watermark == 1


# ---- the end of an epoch


def test_leader_returns_the_end_of_an_epoch(leader: Broker) -> None:
    leader.produce(acks=1)
    leader.lead(epoch=4)
    leader.produce(acks=1)
    ask = leader.manager.offset_for_leader_epoch

    assert ask(TP, 1) == (1, 1)
    assert ask(TP, 3) == (1, 1)
    assert ask(TP, 4, current_leader_epoch=4) == (4, 2)
    assert ask(TP, 5) == (-1, -1)


@pytest.mark.parametrize(
    ("tp", "current_epoch", "error"),
    [
        (TP, 0, ErrorCode.FENCED_LEADER_EPOCH),
        (TP, 2, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (OTHER, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_epoch_end_request_of_another_epoch_is_refused(
    leader: Broker, tp: TopicPartition, current_epoch: int | None, error: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as failure:
        leader.manager.offset_for_leader_epoch(tp, 1, current_epoch)
    assert failure.value.code is error


def test_follower_refuses_to_return_the_end_of_an_epoch(
    make_broker: Callable[..., Broker],
) -> None:
    follower = make_broker(1)
    follower.manager.become_follower(TP, 0, 1, (0, 1))

    with pytest.raises(KafkaError) as failure:
        follower.manager.offset_for_leader_epoch(TP, 1)
    assert failure.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
