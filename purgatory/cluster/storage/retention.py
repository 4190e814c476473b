"""Retention by time: segments whose youngest record is too old go.

How old a record is stands in its batch's header. As in Kafka, segments go as a whole, oldest first,
and only what is committed; the active one too, once all of it is too old.
"""

from __future__ import annotations

from purgatory.cluster.record_times import max_timestamp_ms
from purgatory.kafka import Log


def drop_old_segments(log: Log, now_ms: int) -> bool:
    """Drop the segments whose records are all older than the log keeps them; say if any went.

    Args:
        log: of a replica on this broker.
        now_ms: in milliseconds since 1970. A batch without a time, -1, stays.
    """
    config, start = log.config, log.start_offset
    if config.retention_ms is None or not config.deletes or start == log.end_offset:
        return False
    oldest_ms = now_ms - config.retention_ms
    ends = [*log.segment_bases[1:], log.end_offset]
    end_offset = start
    for base_offset, segment_end in zip(log.segment_bases, ends, strict=True):
        if segment_end > log.high_watermark or not _is_older(
            log, max(base_offset, start), segment_end, oldest_ms
        ):
            break
        end_offset = segment_end
    if end_offset == log.end_offset:
        log.roll()
    return log.delete_up_to(end_offset)


def close_old_segment(log: Log, now_ms: int) -> None:
    """Begin a new segment, where the first batch of the active one is older than ``segment_ms``.

    Args:
        log: of a replica on this broker.
        now_ms: in milliseconds since 1970.
    """
    segment_ms, batches = log.config.segment_ms, log.active_segment.batches
    if segment_ms is not None and batches:
        begun_ms = max_timestamp_ms(batches[0])
        if 0 <= begun_ms <= now_ms - segment_ms:
            log.roll()


def _is_older(log: Log, offset: int, end_offset: int, oldest_ms: int) -> bool:
    # The youngest record is most likely at the end, but times are the clients'.
    batches = log.read(offset, 2**62, end_offset)
    return all(0 <= max_timestamp_ms(batch) < oldest_ms for batch in reversed(batches))
