"""A follower applies its leader's response though their batches end at different offsets."""

from __future__ import annotations

import pytest

from purgatory.kafka import ErrorCode, KafkaError, PartitionFetchResponse, RecordBatch
from purgatory.kafka.log.log import Log
from purgatory.kafka.replication.partition import apply_response


def log_of(*counts: int, epoch: int) -> Log:
    log = Log()
    for count in counts:
        log.append(RecordBatch(log.end_offset, count, 100, epoch))
    return log


def test_follower_empties_its_log_before_a_partial_batch() -> None:
    # The leader's third batch holds 35 to 39, and 38 is the first record that is not deleted. The
    # follower ends at 38 too, but by batches of an old leader, whose epoch is forgotten.
    leader = log_of(20, 15, 5, epoch=2)
    leader.update_high_watermark(40)
    leader.delete_up_to(38)
    follower = log_of(20, 18, epoch=1)
    response = PartitionFetchResponse(
        ErrorCode.NONE,
        leader.high_watermark,
        leader.last_stable_offset,
        leader.start_offset,
        tuple(leader.read(38, 10_000)),
    )
    assert response.batches[0].base_offset == 35
    assert apply_response(follower, response)
    assert (follower.start_offset, follower.end_offset) == (38, 40)
    assert follower.high_watermark == 40
    assert follower.last_epoch == 2
    follower._check()


def test_follower_refuses_an_overlapping_batch() -> None:
    follower = log_of(20, 18, epoch=1)
    response = PartitionFetchResponse(
        ErrorCode.NONE, 40, 40, 36, (RecordBatch(35, 5, 100, leader_epoch=2),)
    )
    with pytest.raises(KafkaError, match="the log ends at 38"):
        apply_response(follower, response)
    assert follower.end_offset == 38
