"""How a follower's log takes its leader's answers: copy records, cut what the leader hasn't.

A follower never cuts on its own at a change of leader: what it has may be just what the new leader
has. The answer to its next fetch tells, by the epochs of both logs.

Ground rules: called with the lock of the log's partition held.
"""

from __future__ import annotations

from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.leader_epoch_cache import UNKNOWN_EPOCH
from purgatory.kafka.log import Log
from purgatory.kafka.record_batch import RecordBatch
from purgatory.kafka.requests import EpochEndOffset, PartitionFetchResponse


def take_response(log: Log, response: PartitionFetchResponse) -> bool:
    """Do what the leader's answer says; False, and nothing changed, for an error to wait out.

    Raises:
        KafkaError: INVALID_RECORD, when the batches don't follow one another.
    """
    if response.error is not ErrorCode.NONE:
        return _find_way_back(log, response)
    if response.diverging_epoch is not None:
        _truncate_where_diverging(log, response.diverging_epoch)
        return True
    batches = response.batches
    if batches and batches[0].base_offset < log.end_offset <= response.log_start_offset:
        # The leader deleted up to a point within a batch, and remembers no epoch from before it. So
        # this log's last batches may be others than the leader's were. All are deleted there.
        log.truncate_fully_and_start_at(log.end_offset)
    elif batches and _ends_within(log, batches[0]):
        # The leader compacted what lies there, which only one who is out of sync may have yet.
        log.truncate_to(batches[0].base_offset)
        if log.end_offset != batches[0].base_offset:
            return True  # this log was compacted, too, into other pieces: the next fetch finds one
    for batch in batches:
        log.append(batch)
    if response.high_watermark > log.high_watermark:
        log.update_high_watermark(response.high_watermark)
    if response.log_start_offset > log.start_offset:
        log.delete_up_to(min(response.log_start_offset, log.high_watermark))
    return True


def _ends_within(log: Log, batch: RecordBatch) -> bool:
    """Whether a log that isn't empty ends within a batch that was compacted."""
    is_empty = log.start_offset == log.end_offset
    was_compacted = batch.record_count < batch.offset_count
    return was_compacted and not is_empty and batch.base_offset < log.end_offset


def _find_way_back(log: Log, response: PartitionFetchResponse) -> bool:
    """Out of the leader's range: cut off what is beyond its end, or begin at its start."""
    if response.error is not ErrorCode.OFFSET_OUT_OF_RANGE:
        return False
    if 0 <= response.log_end_offset < log.end_offset:
        log.truncate_to(response.log_end_offset)
        return True
    if response.log_start_offset > log.end_offset:
        log.truncate_fully_and_start_at(response.log_start_offset)
        return True
    return False


def _truncate_where_diverging(log: Log, leaders: EpochEndOffset) -> None:
    """Cut the log to the last point that both may have in common.

    Where this log doesn't know the leader's epoch either, the next fetch goes one epoch further
    back, until one is found that both know.
    """
    own = log.end_offset_for_epoch(leaders.leader_epoch)
    if own == UNKNOWN_EPOCH:
        log.truncate_to(min(leaders.end_offset, log.end_offset))
    else:
        log.truncate_to(min(leaders.end_offset, own.end_offset, log.end_offset))
