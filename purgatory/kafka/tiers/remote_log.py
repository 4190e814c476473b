"""What the remote tier has of a partition, and what is to be copied there and deleted.

Only closed segments are copied, and only what is committed and decided: what is in the tier is the
same on all replicas. So any of them may read it, and whoever leads next goes on where the former
leader stopped, though its own segments may have other bounds.

Ground rules
------------
* One thread at a time. Whoever drives it copies and deletes, and says here what is done.
* The logs' locks are the caller's to hold.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from purgatory.kafka.log import Log
from purgatory.kafka.record_batch import RecordBatch
from purgatory.kafka.requests import AbortedTransaction

NO_REMOTE_OFFSET = -1


class RemoteSegment(NamedTuple):
    """One segment in the remote tier: the records from ``base_offset`` to before ``end_offset``.

    ``leader_epoch`` is that of its last batch, ``max_timestamp_ms`` the latest time in it, -1 if
    it has none; ``aborted`` are the transactions in it that were.
    """

    segment_id: str
    base_offset: int
    end_offset: int
    size_bytes: int
    leader_epoch: int
    max_timestamp_ms: int = -1
    aborted: tuple[AbortedTransaction, ...] = ()


class RemoteLog:
    """The segments of one partition that are whole in the remote tier, oldest first.

    Args:
        segments: that are there, in any order. Of two that begin alike, or lie in one another, the
            one that reaches further is kept.
    """

    def __init__(self, segments: Sequence[RemoteSegment] = ()) -> None:
        self._segments: list[RemoteSegment] = []
        for segment in sorted(segments, key=lambda one: (one.base_offset, -one.end_offset)):
            if segment.end_offset > self.end_offset:
                self._segments.append(segment)

    @property
    def segments(self) -> tuple[RemoteSegment, ...]:
        """All of them, oldest first."""
        return tuple(self._segments)

    @property
    def end_offset(self) -> int:
        """The offset behind the last record that is there; -1 where there is none."""
        return self._segments[-1].end_offset if self._segments else NO_REMOTE_OFFSET

    @property
    def size_bytes(self) -> int:
        """The bytes of all segments. O(segments)."""
        return sum(segment.size_bytes for segment in self._segments)

    def add(self, segment: RemoteSegment) -> bool:
        """Take up a segment that was copied; False where what is there reaches as far already."""
        if segment.end_offset <= self.end_offset:
            return False
        self._segments.append(segment)
        return True

    def remove(self, segment: RemoteSegment) -> None:
        """Forget a segment. O(segments)."""
        if segment in self._segments:
            self._segments.remove(segment)

    def segment_of(self, offset: int) -> RemoteSegment | None:
        """Return the segment that has an offset, or None. O(log n)."""
        place = bisect_right(self._segments, offset, key=lambda one: one.base_offset) - 1
        if place < 0 or offset >= self._segments[place].end_offset:
            return None
        return self._segments[place]

    def since(self, timestamp_ms: int, log: Log) -> Iterator[RemoteSegment]:
        """Yield the segments that may have a record of a time or later, and aren't all here."""
        for segment in self._segments:
            if segment.base_offset >= log.local_start_offset:
                return
            if segment.max_timestamp_ms >= timestamp_ms and segment.end_offset > log.start_offset:
                yield segment

    # ---- decisions

    def to_copy(self, log: Log) -> list[RecordBatch]:
        """Return the batches that are to be the next segment in the tier, none if there is none.

        They are of one closed segment, committed, of transactions that are decided. O(segments).
        """
        if not (log.config.is_tiered and log.config.copies):
            return []
        begin = max(self.end_offset, log.start_offset)
        for segment in log.closed_segments():
            if segment.end_offset > log.last_stable_offset:
                break
            if segment.end_offset > begin:
                return [batch for batch in segment.batches if batch.next_offset > begin]
        return []

    def not_of(self, log: Log) -> list[RemoteSegment]:
        """Return the segments that a leader's log has otherwise: after an unclean election."""
        return [segment for segment in self._segments if not _is_of(segment, log)]

    def start_after_retention(self, log: Log, now_ms: int) -> int:
        """Return where a leader's log begins once whatever is too old or too much went.

        O(segments).

        Args:
            log: the leader's.
            now_ms: in milliseconds since 1970.
        """
        config, start = log.config, log.start_offset
        if not config.deletes:
            return start
        excess_bytes = -1
        if config.retention_bytes is not None:
            here_alone = log.position_of(log.end_offset) - log.position_of(
                max(self.end_offset, log.local_start_offset)
            )
            excess_bytes = self.size_bytes + here_alone - config.retention_bytes
        oldest_ms = -1 if config.retention_ms is None else now_ms - config.retention_ms
        for segment in self._segments:
            excess_bytes -= segment.size_bytes
            is_too_old = 0 <= segment.max_timestamp_ms < oldest_ms
            if not is_too_old and excess_bytes < 0:
                break
            start = max(start, segment.end_offset)
        return start

    def to_delete(self, log: Log) -> list[RemoteSegment]:
        """Return the segments that lie before a leader's log start: deleted, or not tiered now."""
        begin = log.start_offset if log.config.is_tiered else log.end_offset
        return [segment for segment in self._segments if segment.end_offset <= begin]


def _is_of(segment: RemoteSegment, log: Log) -> bool:
    last = segment.end_offset - 1
    if segment.end_offset > log.end_offset:
        return False
    return last < log.local_start_offset or log.epochs.epoch_of(last) == segment.leader_epoch
