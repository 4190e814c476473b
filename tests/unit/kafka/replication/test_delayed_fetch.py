"""Each way in which a fetch stops waiting, by the letter of its case.

The leader's segments hold three batches of 100 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from purgatory import PurgatoryClosedError
from purgatory.kafka import (
    AppendOrigin,
    DelayedFetch,
    EpochEndOffset,
    ErrorCode,
    FetchCase,
    FetchIsolation,
    FetchParams,
    LogConfig,
    PartitionFetch,
    PartitionFetchResponse,
    RecordBatch,
)
from purgatory.kafka.replication.partition import Partition
from tests.unit.kafka.conftest import OTHER, TP, append, offsets

if TYPE_CHECKING:
    from tests.unit.kafka.conftest import Broker


# ---- the cases


def waiting_fetch(leader: Broker) -> DelayedFetch:
    operation = leader.waiting(leader.fetches)
    assert isinstance(operation, DelayedFetch)
    return operation


def test_case_a_this_broker_leads_no_more(leader: Broker) -> None:
    answer = leader.fetch(0)
    operation = waiting_fetch(leader)

    leader.manager.become_follower(TP, 1, 2)

    assert operation.case is FetchCase.NOT_LEADER
    assert answer.of().error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_case_b_the_replica_is_gone(leader: Broker) -> None:
    answer = leader.fetch(0)
    operation = waiting_fetch(leader)

    leader.manager.stop_replica(TP, delete=True)

    assert operation.case is FetchCase.REPLICA_GONE
    assert answer.of().error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_case_c_the_partition_is_unknown(leader: Broker) -> None:
    answer = leader.fetch(0)
    operation = waiting_fetch(leader)

    leader.manager.delete_topic("topic")

    assert operation.case is FetchCase.UNKNOWN_PARTITION
    assert answer.of().error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_case_d_the_partition_is_offline(leader: Broker) -> None:
    answer = leader.fetch(0)
    operation = waiting_fetch(leader)

    leader.manager.mark_offline(TP)

    assert operation.case is FetchCase.OFFLINE
    assert answer.of().error is ErrorCode.KAFKA_STORAGE_ERROR


def test_case_e_the_epoch_is_fenced(leader: Broker) -> None:
    fenced = leader.fetch(0, 1, epoch=1)
    operation = waiting_fetch(leader)

    leader.lead(epoch=2)  # the same leader, in a new epoch

    assert operation.case is FetchCase.FENCED
    assert fenced.of().error is ErrorCode.FENCED_LEADER_EPOCH


def test_case_f_the_fetch_offset_is_on_an_older_segment(leader: Broker) -> None:
    append(leader, 2)
    answer = leader.fetch(1, 1, min_bytes=10_000)
    operation = waiting_fetch(leader)
    append(leader, 1)
    assert not answer.given  # the segment is full, and the log ends in it

    append(leader, 1)

    assert operation.case is FetchCase.OFFSET_OUT_OF_RANGE
    assert offsets(answer.of()) == [1, 2]


def test_case_f_fetch_at_a_segments_end_falls_behind_by_a_roll(
    leader: Broker,
) -> None:
    append(leader, 3)
    answer = leader.fetch(3, 1, min_bytes=10_000)
    operation = waiting_fetch(leader)

    append(leader, 1)

    assert operation.case is FetchCase.OFFSET_OUT_OF_RANGE
    assert offsets(answer.of()) == [3]


def test_roll_does_not_complete_a_consumer_at_the_high_watermark(
    leader: Broker,
) -> None:
    append(leader, 3)
    leader.followers_fetch(3, 1, 2)
    answer = leader.fetch(3)

    append(leader, 1)

    assert leader.replica().log.segment_bases == (0, 3)
    assert not answer.given


def test_case_f_consumer_falls_behind_by_a_roll_alone(
    leader: Broker,
) -> None:
    leader.lead(tp=OTHER)
    append(leader, 3)
    append(leader, 3, OTHER)
    leader.followers_fetch(3, 1, 2)
    answer = leader.fetch(1, min_bytes=10_000, tps=(TP, OTHER))
    operation = waiting_fetch(leader)

    append(leader, 1)  # the high watermark, 3, is where the new segment begins

    assert operation.case is FetchCase.OFFSET_OUT_OF_RANGE
    assert offsets(answer.of()) == [1, 2]


def test_check_reads_only_the_partitions_that_changed(
    leader: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader.lead(tp=OTHER)
    looked_at = []
    look = Partition.fetch_progress

    def looking(partition: Partition, *args: Any) -> int:
        looked_at.append(partition.topic_partition)
        return look(partition, *args)

    monkeypatch.setattr(Partition, "fetch_progress", looking)
    answer = leader.fetch(0, 1, min_bytes=300, tps=(TP, OTHER))
    assert looked_at == [TP, OTHER]

    append(leader, 1)
    append(leader, 1, OTHER)
    append(leader, 1)

    assert looked_at == [TP, OTHER, TP, OTHER, TP]
    assert offsets(answer.of()) == [0, 1]


def test_case_f_fetch_offset_is_past_a_truncated_end(leader: Broker) -> None:
    append(leader, 2)
    answer = leader.fetch(2, min_bytes=1, isolation=FetchIsolation.LOG_END)
    operation = waiting_fetch(leader)
    partition = leader.replica()

    partition.log.truncate_to(1)
    leader.check_all_that_waits()

    assert operation.case is FetchCase.OFFSET_OUT_OF_RANGE
    assert answer.of().error is ErrorCode.OFFSET_OUT_OF_RANGE


def test_case_g_the_bytes_over_all_partitions_reach_min_bytes(leader: Broker) -> None:
    leader.lead(tp=OTHER)
    append(leader, 1, TP)
    answer = leader.fetch(0, 1, min_bytes=300, tps=(TP, OTHER))
    operation = waiting_fetch(leader)
    append(leader, 1, OTHER)
    assert not answer.given

    append(leader, 1, TP)

    assert operation.case is FetchCase.ENOUGH_BYTES
    assert [offsets(answer.of(tp)) for tp in (TP, OTHER)] == [[0, 1], [0]]


def test_case_g_partition_counts_up_to_its_own_limit(leader: Broker) -> None:
    leader.lead(tp=OTHER)
    answer = leader.fetch(0, 1, min_bytes=250, partition_max_bytes=150, tps=(TP, OTHER))
    append(leader, 3, TP)
    assert not answer.given

    append(leader, 1, OTHER)

    assert offsets(answer.of(TP)) == [0]
    assert offsets(answer.of(OTHER)) == [0]


def test_case_g_a_consumer_waits_for_the_high_watermark(leader: Broker) -> None:
    answer = leader.fetch(0)
    operation = waiting_fetch(leader)
    append(leader, 1)
    leader.followers_fetch(1, 1)
    assert not answer.given

    leader.followers_fetch(1, 2)

    assert operation.case is FetchCase.ENOUGH_BYTES
    assert offsets(answer.of()) == [0]


def test_case_h_the_followers_log_diverges(leader: Broker) -> None:
    """The follower's last record is of epoch 1. Then the leader's epoch 1 gets shorter."""
    append(leader, 2)
    leader.lead(epoch=3)
    answer = leader.fetch(2, 1, epoch=3, fetched_epoch=1)
    operation = waiting_fetch(leader)
    partition = leader.replica()

    partition.log.truncate_to(1)
    partition.log.epochs.assign(3, 1)
    partition.log.append(RecordBatch(1, 1, 50, 3))
    leader.check_all_that_waits()

    assert operation.case is FetchCase.DIVERGED
    assert answer.of().diverging_epoch == EpochEndOffset(1, 1)


# ---- timeouts, and events meanwhile


def test_timeout_returns_no_records_and_no_error(leader: Broker) -> None:
    answer = leader.fetch(0, max_wait_ms=500)

    leader.pass_time(499)
    assert not answer.given
    leader.pass_time(1)

    assert answer.of().error is ErrorCode.NONE
    assert answer.of().batches == ()
    assert leader.fetches.counters.outcomes["expired"] == 1


def test_timeout_returns_the_available_records(leader: Broker) -> None:
    answer = leader.fetch(0, 1, min_bytes=10_000, max_wait_ms=500)
    append(leader, 2)

    leader.pass_time(500)

    assert offsets(answer.of()) == [0, 1]


def test_completed_fetch_reads_the_present_records(leader: Broker) -> None:
    """The fetch waited for one byte; the append that completes it brings three batches."""
    answer = leader.fetch(0, 1)

    batches = [RecordBatch(0, 1, 50) for _ in range(3)]
    leader.produce(*batches, acks=1, origin=AppendOrigin.COORDINATOR)

    assert offsets(answer.of()) == [0, 1, 2]


def test_the_second_read_does_not_count_as_another_fetch(leader: Broker) -> None:
    append(leader, 1)
    leader.fetch(1, 1, max_wait_ms=500)
    leader.clock.advance(100)
    leader.pass_time(400)

    follower = leader.replica()._members.followers[1]
    assert follower.last_fetch_ms == 1_000


def test_a_consumer_beyond_a_new_leaders_high_watermark_waits(
    make_broker: Callable[..., Broker],
) -> None:
    """The consumer read up to 2 from the old leader. The new one has the records, but doesn't know
    yet that they are committed: nothing was truncated, so this isn't case F."""
    broker = make_broker(1, log_config=LogConfig(segment_bytes=300))
    broker.manager.become_follower(TP, 0, 1, (0, 1))
    fetch = broker.manager.follower_fetch(TP)
    assert fetch is not None
    batches = tuple(RecordBatch(offset, 1, 100, 1) for offset in range(2))
    response = PartitionFetchResponse(ErrorCode.NONE, 1, 1, 0, batches)
    broker.manager.append_as_follower(TP, fetch, response)
    broker.lead(epoch=2, isr=(1, 0), replicas=(0, 1))

    answer = broker.fetch(2)
    assert not answer.given
    append(broker, 1)
    broker.followers_fetch(3, 0)

    assert offsets(answer.of()) == [2]


def test_closing_with_failure_completes_waiting_fetches(leader: Broker) -> None:
    answer = leader.fetch(0)

    leader.fetches.close(policy="fail")

    assert answer.of().error is ErrorCode.UNKNOWN_SERVER_ERROR
    with pytest.raises(PurgatoryClosedError):
        leader.fetch(0)


def test_respond_that_raises_is_not_called_again(leader: Broker) -> None:
    calls = []

    def respond(responses: object) -> None:
        calls.append(responses)
        raise RuntimeError("the connection broke")

    leader.manager.fetch_records(FetchParams(), {TP: PartitionFetch(0)}, respond)
    leader.pass_time(500)

    assert len(calls) == 1
    leader.expected_callback_errors = 1


def test_waiting_fetch_knows_whether_a_follower_sent_it(leader: Broker) -> None:
    leader.fetch(0, 1)
    assert waiting_fetch(leader).is_from_follower
    leader.pass_time(500)
    leader.fetch(0)
    assert not waiting_fetch(leader).is_from_follower


def test_deleting_an_open_transaction_ends_the_wait_behind_it(leader: Broker) -> None:
    leader.produce(RecordBatch(0, 1, 100, -1, 7, 0, 0, transactional=True), acks=1)
    append(leader, 4)
    leader.followers_fetch(5, 1, 2)
    answer = leader.fetch(0, isolation=FetchIsolation.TXN_COMMITTED)
    assert not answer.given

    leader.delete_records(3)

    assert answer.of().error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert answer.of().log_start_offset == 3
