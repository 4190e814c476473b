"""The in-sync set: its changes, and their effects on the high watermark and on waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from purgatory.kafka import ErrorCode, PartitionFetch, RecordBatch, TopicPartition
from purgatory.kafka.replication.in_sync_replicas import InSyncReplicas

if TYPE_CHECKING:
    from purgatory.kafka.replication.partition import Partition
    from tests.unit.kafka.conftest import Broker

TP = TopicPartition("topic", 0)
MAX_LAG_MS = 30_000


def shrink_after(broker: Broker, ms: int) -> tuple[int, ...]:
    broker.pass_time(ms)
    broker.manager.maybe_shrink_isr()
    return broker.replica().isr


def note_fetch(partition: Partition, replica_id: int, offset: int, now_ms: int = 0) -> None:
    """Let a follower fetch, of whom the replica manager hears nothing."""
    partition.fetch_as_follower(PartitionFetch(offset), replica_id, 1_000, True, now_ms)


# ---- followers that leave


def test_follower_that_lags_longer_than_max_lag_leaves_the_isr(leader: Broker) -> None:
    leader.produce(acks=1)

    assert shrink_after(leader, MAX_LAG_MS) == (0, 1, 2)
    assert shrink_after(leader, 1) == (0,)


def test_follower_at_the_log_end_stays_in_the_isr(leader: Broker) -> None:
    leader.produce(acks=1)
    leader.followers_fetch(1, 1, 2)

    assert shrink_after(leader, 10 * MAX_LAG_MS) == (0, 1, 2)


def test_follower_behind_a_steady_producer_stays_in_the_isr(
    leader: Broker,
) -> None:
    """Follower 1 always fetches from the log end of its previous fetch; follower 2 stalls."""
    leader.produce(acks=1)
    for offset in range(50):
        leader.followers_fetch(offset, 1)
        leader.produce(acks=1)
        leader.pass_time(1_000)

    assert shrink_after(leader, 0) == (0, 1)


def test_follower_that_fetches_but_falls_behind_leaves_the_isr(leader: Broker) -> None:
    leader.produce(acks=1)
    for offset in range(33):
        leader.followers_fetch(offset, 1)
        leader.followers_fetch(offset // 4, 2)
        leader.produce(acks=1)
        leader.pass_time(1_000)

    assert shrink_after(leader, 0) == (0, 1)


def test_follower_does_not_shrink_the_isr(make_broker: Callable[..., Broker]) -> None:
    asked: list[Any] = []
    follower = make_broker(1, on_isr_change=lambda *change: asked.append(change))
    follower.manager.become_follower(TP, 0, 1, (0, 1, 2))

    assert shrink_after(follower, 10 * MAX_LAG_MS) == ()
    assert asked == []


# ---- followers that join


def test_follower_at_the_high_watermark_rejoins_the_isr(leader: Broker) -> None:
    leader.lead(epoch=2, isr=(0, 1))
    for _ in range(3):
        leader.produce(acks=1)
    leader.followers_fetch(2, 1)
    leader.followers_fetch(1, 2)
    assert leader.replica().isr == (0, 1)

    leader.followers_fetch(2, 2)

    assert leader.replica().isr == (0, 1, 2)


def test_follower_before_the_epochs_start_does_not_join_the_isr(leader: Broker) -> None:
    """The high watermark trails on a new leader: a follower at it may lack committed records."""
    leader.produce(acks=1)
    leader.produce(acks=1)
    leader.lead(epoch=2, isr=(0, 1))
    assert (leader.replica().high_watermark, leader.replica().leader_epoch_start_offset) == (0, 2)

    leader.followers_fetch(1, 2)
    assert leader.replica().isr == (0, 1)
    leader.followers_fetch(2, 2)

    assert leader.replica().isr == (0, 1, 2)


def test_the_isr_keeps_the_order_of_the_assignment(leader: Broker) -> None:
    leader.lead(epoch=2, isr=(0,), replicas=(2, 0, 1))

    leader.followers_fetch(0, 1)
    leader.followers_fetch(0, 2)

    assert leader.replica().isr == (2, 0, 1)


# ---- the controller's decision


def test_controller_is_called_with_the_epoch_and_the_wanted_isr(
    make_broker: Callable[..., Broker],
) -> None:
    asked: list[Any] = []

    def agree(*change: object) -> None:
        asked.append(change)

    broker = make_broker(0, on_isr_change=agree)
    broker.lead(epoch=3, isr=(0, 1))
    broker.produce(acks=1)
    broker.followers_fetch(1, 1, 2)
    broker.produce(acks=1)
    broker.followers_fetch(2, 1)

    assert shrink_after(broker, MAX_LAG_MS + 1) == (0, 1)
    assert asked == [(TP, 3, (0, 1, 2)), (TP, 3, (0, 1))]


def test_a_refused_change_is_not_in_force(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(0, on_isr_change=lambda *change: False)
    broker.lead(isr=(0, 1))
    answer = broker.produce(timeout_ms=100_000)
    broker.followers_fetch(0, 2)
    assert broker.replica().isr == (0, 1)

    assert shrink_after(broker, MAX_LAG_MS + 1) == (0, 1)
    assert not answer.given
    broker.followers_fetch(1, 1)

    assert answer.of().error is ErrorCode.NONE  # follower 2 holds nothing back


def test_a_controller_that_fails_leaves_the_isr_as_it_is(
    make_broker: Callable[..., Broker],
) -> None:
    def fail(*change: object) -> None:
        raise ConnectionError("no controller")

    broker = make_broker(0, on_isr_change=fail)
    broker.lead()
    broker.produce(acks=1)

    with pytest.raises(ConnectionError):
        shrink_after(broker, MAX_LAG_MS + 1)
    assert broker.replica().isr == (0, 1, 2)
    with pytest.raises(ConnectionError):
        broker.manager.maybe_shrink_isr()  # the leader proposes again


def test_pending_expansion_holds_the_high_watermark(
    leader: Broker,
) -> None:
    leader.lead(epoch=2, isr=(0, 1))
    partition = leader.replica()
    note_fetch(partition, 2, 0)
    change = partition.propose_expansion(2)
    assert change is not None
    partition.append_as_leader([RecordBatch(0, 1, 100)])

    note_fetch(partition, 1, 1)
    assert partition.high_watermark == 0
    assert (partition.isr, partition.maximal_isr) == ((0, 1), (0, 1, 2))
    assert partition.complete_isr_change(change, accepted=False) is False

    assert partition.high_watermark == 1


def test_pending_shrink_holds_the_high_watermark(
    leader: Broker,
) -> None:
    partition = leader.replica()
    partition.append_as_leader([RecordBatch(0, 1, 100)])
    note_fetch(partition, 1, 1, now_ms=MAX_LAG_MS + 1_000)
    change = partition.propose_shrink(MAX_LAG_MS + 1_001, MAX_LAG_MS)
    assert change is not None and change.isr == (0, 1)

    assert (partition.high_watermark, partition.maximal_isr) == (0, (0, 1, 2))
    assert partition.complete_isr_change(change, accepted=True)

    assert (partition.high_watermark, partition.maximal_isr) == (1, (0, 1))


def test_second_isr_change_waits_for_the_first(leader: Broker) -> None:
    leader.lead(epoch=2, isr=(0, 1))
    partition = leader.replica()
    note_fetch(partition, 2, 0)
    first = partition.propose_expansion(2)
    partition.append_as_leader([RecordBatch(0, 1, 100)])

    assert first is not None
    assert partition.propose_expansion(2) is None
    assert partition.propose_shrink(10 * MAX_LAG_MS, MAX_LAG_MS) is None
    assert partition.complete_isr_change(first, accepted=True)
    assert not partition.complete_isr_change(first, accepted=True)


def test_follower_does_not_join_while_a_shrink_is_pending(leader: Broker) -> None:
    leader.lead(epoch=2, isr=(0, 1))
    partition = leader.replica()
    partition.append_as_leader([RecordBatch(0, 1, 100)])
    drop = partition.propose_shrink(10 * MAX_LAG_MS, MAX_LAG_MS)
    assert drop is not None and drop.isr == (0,)

    leader.followers_fetch(1, 2)
    assert partition.propose_expansion(2) is None
    assert partition.complete_isr_change(drop, accepted=True)
    leader.followers_fetch(1, 2)

    assert partition.isr == (0, 2)


def test_a_change_of_an_earlier_epoch_is_dropped(leader: Broker) -> None:
    leader.lead(epoch=2, isr=(0, 1))
    partition = leader.replica()
    note_fetch(partition, 2, 0)
    change = partition.propose_expansion(2)
    assert change is not None

    leader.lead(epoch=3, isr=(0, 1))

    assert not partition.complete_isr_change(change, accepted=True)
    assert partition.isr == (0, 1)


# ---- effects on waiting produces


def test_shrink_completes_produces_of_the_removed_follower(leader: Broker) -> None:
    answer = leader.produce(timeout_ms=100_000)
    leader.pass_time(MAX_LAG_MS)
    leader.followers_fetch(1, 1)
    assert not answer.given

    assert shrink_after(leader, 1) == (0, 1)

    assert answer.of().error is ErrorCode.NONE


def test_shrink_below_min_insync_replicas_commits_nothing(leader: Broker) -> None:
    answer = leader.produce(timeout_ms=100_000)

    assert shrink_after(leader, MAX_LAG_MS + 1) == (0,)

    assert not answer.given
    assert leader.replica().high_watermark == 0
    assert leader.replica().log_end_offset == 1
    assert leader.produce().of().error is ErrorCode.NOT_ENOUGH_REPLICAS
    assert leader.replica().log_end_offset == 1


def test_expansion_meets_min_insync_replicas_again(leader: Broker) -> None:
    leader.lead(epoch=2, isr=(0,))
    assert leader.produce().of().error is ErrorCode.NOT_ENOUGH_REPLICAS

    leader.followers_fetch(0, 1)

    answer = leader.produce()
    assert not answer.given
    leader.followers_fetch(1, 1)
    assert answer.of().error is ErrorCode.NONE


def test_new_isr_member_is_waited_for(leader: Broker) -> None:
    leader.lead(epoch=2, isr=(0, 1))
    leader.followers_fetch(0, 2)
    answer = leader.produce()

    leader.followers_fetch(1, 1)
    assert not answer.given
    leader.followers_fetch(1, 2)

    assert answer.given


def test_follower_out_of_sync_is_not_waited_for(leader: Broker) -> None:
    leader.produce(acks=1)
    leader.lead(epoch=2, isr=(0, 1))
    answer = leader.produce()

    leader.followers_fetch(2, 1)

    assert answer.given


# ---- the parts alone


def test_a_leader_whose_followers_are_unknown_can_commit_nothing() -> None:
    members = InSyncReplicas(0)
    members.assign((0, 1), (0, 1, 2), now_ms=0)

    assert members.least_end_offset(10) == -1
    members._check(leads=True, leader_epoch=1)
