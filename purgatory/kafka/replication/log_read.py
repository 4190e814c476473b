"""Reads of a leader's log for a fetch: records, how many bytes of them, or where logs diverge.

Functions of a log and the leader's epoch alone. Whether this broker leads, and whether the asker's
epoch is the leader's, is checked before.

Ground rules: called with the lock of the log's partition held.
"""

from __future__ import annotations

from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.log.leader_epoch_cache import UNKNOWN_EPOCH, EpochEndOffset
from purgatory.kafka.log.log import Log
from purgatory.kafka.log.log_offsets import FetchIsolation
from purgatory.kafka.log.producer_state import AbortedTransaction
from purgatory.kafka.log.record_batch import RecordBatch
from purgatory.kafka.replication.requests import PartitionFetch, PartitionFetchResponse

# What fetch_progress answers when a waiting fetch has to be answered now.
NOT_LEADER = -1
FENCED = -2
OUT_OF_RANGE = -3
DIVERGED = -4
_NONE = ErrorCode.NONE
_LOG_END = FetchIsolation.LOG_END
_HIGH_WATERMARK = FetchIsolation.HIGH_WATERMARK


def visible_end(log: Log, isolation: FetchIsolation) -> int:
    """Return the offset that a fetch can't see beyond."""
    if isolation is _LOG_END:
        return log.end_offset
    return log.high_watermark if isolation is _HIGH_WATERMARK else log.last_stable_offset


def read_for_fetch(
    log: Log,
    leader_epoch: int,
    fetch: PartitionFetch,
    isolation: FetchIsolation,
    max_bytes: int,
    min_one_batch: bool,
) -> PartitionFetchResponse:
    """Read the records of a fetch, or return where the requester's log diverges from this one.

    Raises:
        KafkaError: OFFSET_OUT_OF_RANGE.
    """
    fetch_offset = fetch.fetch_offset
    end_offset = log.end_offset
    diverging = None
    fetched_epoch = fetch.last_fetched_epoch
    if fetched_epoch is not None and (fetched_epoch != leader_epoch or fetch_offset > end_offset):
        diverging = _diverging_epoch(log, fetched_epoch, fetch_offset)
    batches: tuple[RecordBatch, ...] = ()
    aborted: tuple[AbortedTransaction, ...] = ()
    size_bytes = 0
    if diverging is None:
        if fetch_offset != end_offset:
            limit = max(0, min(max_bytes, fetch.max_bytes))
            batches = tuple(
                log.read(fetch_offset, limit, visible_end(log, isolation), min_one_batch)
            )
            for batch in batches:
                size_bytes += batch.size_bytes
        if batches and isolation is FetchIsolation.TXN_COMMITTED:
            aborted = log.producers.aborted_between(fetch_offset, batches[-1].next_offset)
    return PartitionFetchResponse(
        _NONE,
        log.high_watermark,
        log.last_stable_offset,
        log.start_offset,
        batches,
        diverging,
        aborted,
        end_offset,
        size_bytes,
    )


def refusal(log: Log, error: KafkaError) -> PartitionFetchResponse:
    """Return an error response; OFFSET_OUT_OF_RANGE also has the log's bounds."""
    if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
        return PartitionFetchResponse(error.code, message=error.message)
    return PartitionFetchResponse(
        error.code,
        log.high_watermark,
        log.last_stable_offset,
        log.start_offset,
        log_end_offset=log.end_offset,
        message=error.message,
    )


def bytes_for_fetch(
    log: Log,
    leader_epoch: int,
    fetch: PartitionFetch,
    isolation: FetchIsolation,
    segment_base: int,
    position: int,
) -> int:
    """Return the bytes available to a fetch, OUT_OF_RANGE or DIVERGED. O(log n).

    Args:
        segment_base, position: where it stood when it began to wait.
    """
    end_offset = visible_end(log, isolation)
    fetch_offset = fetch.fetch_offset
    available = 0
    # A consumer may stand beyond what it can see, when a new leader has yet to learn how much is
    # committed: it waits. Beyond the log's end the records are gone.
    if fetch_offset > log.end_offset:
        return OUT_OF_RANGE
    # Equal offsets are compared no further: after a roll the end is in the new segment, and the
    # fetch, though nothing is there for it, would look as if it had fallen behind.
    if fetch_offset < end_offset:
        end_segment, end_position = log.location_of(end_offset)
        if end_segment > segment_base:
            return OUT_OF_RANGE
        available = min(end_position - position, fetch.max_bytes)
    fetched_epoch = fetch.last_fetched_epoch
    # What was fetched in this leader's own epoch can't diverge from it.
    if fetched_epoch is not None and fetched_epoch != leader_epoch:
        epoch_end = log.end_offset_for_epoch(fetched_epoch)
        if _diverges(epoch_end, fetched_epoch, fetch_offset):
            return DIVERGED
    return available


def _diverges(epoch_end: EpochEndOffset, fetched_epoch: int, fetch_offset: int) -> bool:
    return epoch_end.leader_epoch < fetched_epoch or epoch_end.end_offset < fetch_offset


def _diverging_epoch(log: Log, fetched_epoch: int, fetch_offset: int) -> EpochEndOffset | None:
    """Return where the follower's log and this one part, None if they don't."""
    epoch_end = log.end_offset_for_epoch(fetched_epoch)
    if epoch_end == UNKNOWN_EPOCH:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the leader has no records of epoch {fetched_epoch}, which were fetched before "
            f"{fetch_offset}",
        )
    return epoch_end if _diverges(epoch_end, fetched_epoch, fetch_offset) else None
