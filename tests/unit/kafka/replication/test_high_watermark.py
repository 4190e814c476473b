"""The high watermark and the last stable offset: which records are committed and visible."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from purgatory.kafka import (
    AppendOrigin,
    ErrorCode,
    FetchIsolation,
    PartitionFetchResponse,
    RecordBatch,
    TopicPartition,
    TransactionResult,
)

if TYPE_CHECKING:
    from tests.unit.kafka.conftest import Broker

TP = TopicPartition("topic", 0)
COMMITTED = FetchIsolation.TXN_COMMITTED


def offsets(response: PartitionFetchResponse) -> list[int]:
    return [batch.base_offset for batch in response.batches]


# ---- the high watermark


def test_high_watermark_is_the_least_log_end_of_the_isr(leader: Broker) -> None:
    for _ in range(5):
        leader.produce(acks=1)

    seen = []
    for replica_id, offset in [(1, 4), (2, 2), (2, 3), (1, 5), (2, 5)]:
        leader.followers_fetch(offset, replica_id)
        seen.append(leader.replica().high_watermark)

    assert seen == [0, 2, 3, 3, 5]


def test_earlier_fetch_does_not_lower_the_high_watermark(
    leader: Broker,
) -> None:
    for _ in range(3):
        leader.produce(acks=1)
    leader.followers_fetch(3, 1, 2)

    leader.followers_fetch(1, 2)

    assert leader.replica().follower_end_offset(2) == 1
    assert leader.replica().high_watermark == 3


def test_new_isr_member_does_not_lower_the_high_watermark(leader: Broker) -> None:
    leader.lead(epoch=2, isr=(0, 1))
    leader.produce(acks=1)
    leader.followers_fetch(1, 1)
    assert leader.replica().high_watermark == 1

    leader.lead(epoch=3, isr=(0, 1, 2))

    assert leader.replica().high_watermark == 1


def test_high_watermark_stands_still_below_min_insync_replicas(leader: Broker) -> None:
    """Two must be in sync; a record that only the leader has may be lost, and stays invisible."""
    leader.produce(acks=1)
    leader.followers_fetch(1, 1, 2)
    leader.lead(epoch=2, isr=(0,))
    waiting = leader.fetch(1, max_wait_ms=60_000)
    committed = leader.fetch(1, max_wait_ms=60_000, isolation=COMMITTED)

    leader.produce(acks=1)
    leader.produce(transactional(0), acks=1)

    assert leader.replica().isr == (0,)
    assert leader.replica().log_end_offset == 3
    assert leader.replica().high_watermark == leader.replica().last_stable_offset == 1
    assert offsets(leader.fetch(0).of()) == [0]
    assert not waiting.given and not committed.given

    leader.followers_fetch(3, 1)  # joins
    assert leader.replica().isr == (0, 1)
    assert leader.replica().high_watermark == 3
    assert leader.replica().last_stable_offset == 2
    assert offsets(waiting.of()) == [1, 2]
    assert offsets(committed.of()) == [1]


def test_uncommitted_records_below_min_insync_are_not_deleted(
    leader: Broker,
) -> None:
    leader.produce(acks=1)
    leader.followers_fetch(1, 1, 2)
    leader.lead(epoch=2, isr=(0,))
    leader.produce(acks=1)

    assert leader.delete_records(2).of().error is ErrorCode.OFFSET_OUT_OF_RANGE
    leader.delete_records(-1)
    assert leader.replica().log_start_offset == 1


def test_lower_min_insync_replicas_advances_the_high_watermark(leader: Broker) -> None:
    leader.lead(epoch=2, isr=(0,))
    leader.produce(acks=1)
    waiting = leader.fetch(0, max_wait_ms=60_000)
    assert not waiting.given

    leader.manager.configure(TP, leader.replica().log.config, 1)

    assert leader.replica().high_watermark == 1
    assert offsets(waiting.of()) == [0]


def test_a_new_leader_that_is_alone_commits_nothing(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(0, min_insync_replicas=2)
    broker.lead()
    broker.produce(acks=1)
    broker.manager.become_follower(TP, 1, 2)

    broker.lead(epoch=3, isr=(0,))

    assert broker.replica().high_watermark == 0
    assert offsets(broker.fetch(0, max_wait_ms=0).of()) == []


def test_follower_has_no_state_of_other_followers(make_broker: Callable[..., Broker]) -> None:
    follower = make_broker(1)
    follower.manager.become_follower(TP, 0, 1, (0, 1, 2))

    assert follower.replica().low_watermark_if_leader() is None


# ---- the last stable offset


def transactional(sequence: int, producer_id: int = 7) -> RecordBatch:
    return RecordBatch(
        0,
        1,
        100,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )


def end(leader: Broker, how: TransactionResult, producer_id: int = 7) -> None:
    marker = RecordBatch(
        0, 1, 78, producer_id=producer_id, producer_epoch=0, transactional=True, control=how
    )
    answer = leader.produce(marker, acks=1, origin=AppendOrigin.COORDINATOR)
    assert answer.of().error is ErrorCode.NONE


def replicate(leader: Broker) -> None:
    leader.followers_fetch(leader.replica().log_end_offset, 1, 2)


def test_open_transaction_hides_all_records_from_its_first_on(leader: Broker) -> None:
    leader.produce(acks=1)
    leader.produce(transactional(0), acks=1)
    leader.produce(acks=1)
    replicate(leader)

    assert leader.replica().last_stable_offset == 1
    assert offsets(leader.fetch(0, isolation=COMMITTED).of()) == [0]
    assert offsets(leader.fetch(0).of()) == [0, 1, 2]


def test_replicated_marker_makes_a_transaction_visible(leader: Broker) -> None:
    leader.produce(transactional(0), acks=1)
    replicate(leader)
    answer = leader.fetch(0, isolation=COMMITTED)

    end(leader, TransactionResult.COMMIT)
    assert not answer.given  # the marker could still be lost
    replicate(leader)

    assert offsets(answer.of()) == [0, 1]
    assert answer.of().aborted_transactions == ()


def test_read_committed_alone_lists_aborted_transactions(leader: Broker) -> None:
    leader.produce(transactional(0), acks=1)
    end(leader, TransactionResult.ABORT)
    replicate(leader)

    assert leader.fetch(0, isolation=COMMITTED).of().aborted_transactions == ((7, 0, 1),)
    assert leader.fetch(0).of().aborted_transactions == ()


def test_aborted_transaction_behind_an_open_one_is_listed(leader: Broker) -> None:
    leader.produce(acks=1)
    leader.produce(transactional(0, producer_id=7), acks=1)
    leader.produce(transactional(0, producer_id=8), acks=1)
    end(leader, TransactionResult.ABORT, producer_id=8)
    replicate(leader)

    answer = leader.fetch(0, isolation=COMMITTED).of()
    assert (offsets(answer), answer.last_stable_offset) == ([0], 1)
    assert [one.first_offset for one in answer.aborted_transactions] == [2], "as in Kafka"


def test_earliest_open_transaction_bounds_the_last_stable_offset(leader: Broker) -> None:
    leader.produce(transactional(0, producer_id=7), acks=1)
    leader.produce(transactional(0, producer_id=8), acks=1)
    end(leader, TransactionResult.COMMIT, producer_id=7)
    replicate(leader)
    assert leader.replica().last_stable_offset == 1

    end(leader, TransactionResult.COMMIT, producer_id=8)
    replicate(leader)

    assert leader.replica().last_stable_offset == 4


def test_a_client_cannot_end_a_transaction(leader: Broker) -> None:
    leader.produce(transactional(0), acks=1)
    marker = RecordBatch(
        0,
        1,
        78,
        producer_id=7,
        producer_epoch=0,
        transactional=True,
        control=TransactionResult.COMMIT,
    )

    assert leader.produce(marker, acks=1).of().error is ErrorCode.INVALID_RECORD


def test_records_without_a_producer_are_in_no_transaction(leader: Broker) -> None:
    answer = leader.produce(RecordBatch(0, 1, 100, transactional=True), acks=1)

    assert answer.of().error is ErrorCode.NONE
    replicate(leader)
    assert leader.replica().last_stable_offset == 1
