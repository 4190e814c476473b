"""Compaction: the latest record of each key stays, at its offset.

Compaction takes whole segments of decided, replicated records, never the active one, and none with
a record that is younger than ``min_compaction_lag_ms``. In these:

    a record that a later one of its key replaces is removed
    a record without a key, and one of an aborted transaction, is removed
    a tombstone (a record without a value) is removed ``delete_retention_ms`` after its first pass
    the marker of a transaction stays
    the last batch of the log stays, as that of Kafka's active segment does

A placeholder, a batch without records, holds the offsets of a batch that is removed as a whole, for
replicas and for recovery: to these, a gap means a loss. Consumers are served none (`read_records`):
to them, a compacted log has gaps. The last batch of each producer stays for its numbers, without
records.

Replicas compact each for itself, and may differ in the removable records that they still have.

Ground rules
------------
* Only the broker's loop touches the log. The log may change between the steps of a compaction,
  which then leaves changed segments as they are.
* No clock: the time of day comes in from outside.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from purgatory.kafka.log.log import Log, Segment
from purgatory.kafka.log.record_batch import NO_PRODUCER_ID, RecordBatch

_MAX_OFFSETS = 2**31 - 1


class KeyedRecord(NamedTuple):
    """A record, as far as compaction needs it."""

    offset: int
    key: bytes | None
    is_tombstone: bool


class BatchContents(Protocol):
    """Decodes batches, and makes others of them."""

    def records(self, batch: RecordBatch) -> Iterable[KeyedRecord]:
        """Return its records."""

    def retain_records(self, batch: RecordBatch, offsets: Collection[int]) -> RecordBatch:
        """Return the batch with only the records at these offsets."""

    def empty(self, base_offset: int, next_offset: int, leader_epoch: int) -> RecordBatch:
        """Return a batch without records that spans these offsets."""


class LogCleaning:
    """The end of a log's compacted part, and the time of the compaction.

    The records from ``cleaned_until`` on were never compacted. A restart forgets that: then
    tombstones stay for longer.
    """

    __slots__ = ("_passes", "cleaned_until")

    def __init__(self) -> None:
        self.cleaned_until = 0
        # (end offset, time), of those compactions that came further than all before.
        self._passes: list[tuple[int, int]] = []

    def reset(self) -> None:
        """Forget all: the log has other records now."""
        self.cleaned_until = 0
        self._passes.clear()

    def record_pass(self, until_offset: int, now_ms: int, delete_retention_ms: int) -> None:
        """Record a compaction. Those beyond the retention of tombstones are kept as one."""
        if until_offset > self.cleaned_until:
            self.cleaned_until = until_offset
            self._passes.append((until_offset, now_ms))
        while len(self._passes) > 1 and self._passes[1][1] + delete_retention_ms <= now_ms:
            del self._passes[0]

    def tombstone_horizon(self, now_ms: int, delete_retention_ms: int) -> int:
        """Return the offset below which tombstones may be deleted."""
        return max(
            (until for until, at_ms in self._passes if at_ms + delete_retention_ms <= now_ms),
            default=0,
        )


def cleanable_segments(log: Log, cleaning: LogCleaning, now_ms: int) -> Sequence[Segment]:
    """Return the segments to compact now, oldest first; none, if a compaction isn't worth it.

    Compaction is worth it once ``min_dirty_ratio`` of their bytes were never compacted, or the
    oldest of these are older than ``max_compaction_lag_ms``, or tombstones may be removed.
    O(segments, and the batches of young ones).

    Args:
        log: of a replica.
        cleaning: the state of the log's cleaning.
        now_ms: in milliseconds since 1970.
    """
    config = log.config
    if not config.compacts:
        return ()
    if cleaning.cleaned_until > log.active_base_offset:
        cleaning.reset()  # the log was truncated, and has other records now
    decided = min(log.last_stable_offset, log.high_watermark)
    youngest_ms = now_ms - config.min_compaction_lag_ms
    segments: list[Segment] = []
    for segment in log.closed_segments():
        if segment.end_offset > decided or (
            config.min_compaction_lag_ms
            and any(batch.max_timestamp_ms > youngest_ms for batch in segment.batches)
        ):
            break
        segments.append(segment)
    total_bytes = sum(segment.size_bytes for segment in segments)
    dirty = [segment for segment in segments if segment.end_offset > cleaning.cleaned_until]
    dirty_bytes = sum(segment.size_bytes for segment in dirty)
    if dirty_bytes and dirty_bytes >= config.min_dirty_ratio * total_bytes:
        return segments
    if dirty and config.max_compaction_lag_ms is not None:
        oldest_ms = dirty[0].batches[0].max_timestamp_ms
        if oldest_ms <= now_ms - config.max_compaction_lag_ms:
            return segments
    horizon_offset = cleaning.tombstone_horizon(now_ms, config.delete_retention_ms)
    return (
        [segment for segment in segments if segment.base_offset < horizon_offset]
        if horizon_offset
        else ()
    )


def compact(
    log: Log,
    segments: Sequence[Segment],
    cleaning: LogCleaning,
    contents: BatchContents,
    now_ms: int,
) -> Iterator[None]:
    """Compact segments, step by step. O(their records).

    Args:
        log: of a replica.
        segments: the result of `cleanable_segments`.
        cleaning: the state of the log's cleaning.
        contents: decodes the batches.
        now_ms: in milliseconds since 1970.

    Yields:
        After each batch: other work may run.

    Raises:
        ValueError: a batch can't be decoded; segments that were replaced before remain so.
    """
    until_offset = segments[-1].end_offset
    config = log.config
    rules = _RetentionRules(
        log, contents, cleaning.tombstone_horizon(now_ms, config.delete_retention_ms)
    )
    for segment in segments:
        for batch in list(segment.batches):
            rules.add(batch)
            yield
    group: list[Segment] = []
    retained: list[RecordBatch] = []
    for segment in segments:
        remaining: list[RecordBatch] = []
        for batch in list(segment.batches):
            _append_merged(remaining, rules.retain(batch), contents)
            yield
        if group and _size_bytes(retained) + _size_bytes(remaining) > config.segment_bytes:
            if not _replace(log, group, retained):
                return
            group, retained = [], []
        group.append(segment)
        for batch in remaining:
            _append_merged(retained, batch, contents)
    if _replace(log, group, retained):
        cleaning.record_pass(until_offset, now_ms, config.delete_retention_ms)


def _size_bytes(batches: Sequence[RecordBatch]) -> int:
    return sum(batch.size_bytes for batch in batches)


def _replace(log: Log, group: Sequence[Segment], retained: Sequence[RecordBatch]) -> bool:
    """Replace segments by one with the retained batches; False if the segments are deleted."""
    is_same = (
        len(group) == 1
        and len(group[0].batches) == len(retained)
        and all(old is new for old, new in zip(group[0].batches, retained, strict=True))
    )
    return is_same or log.replace_segments(group, retained) is not None


def _append_merged(
    retained: list[RecordBatch], batch: RecordBatch, contents: BatchContents
) -> None:
    """Append a batch; one without records joins another such, of the same leader, before it."""
    last = retained[-1] if retained else None
    if (
        last is not None
        and last.is_placeholder
        and batch.is_placeholder
        and last.leader_epoch == batch.leader_epoch
        and batch.next_offset - last.base_offset <= _MAX_OFFSETS
    ):
        retained[-1] = contents.empty(last.base_offset, batch.next_offset, batch.leader_epoch)
    else:
        retained.append(batch)


class _RetentionRules:
    """The decision which records of a log stay."""

    def __init__(self, log: Log, contents: BatchContents, tombstone_horizon: int) -> None:
        self._contents = contents
        self._tombstone_horizon = tombstone_horizon
        self._latest: dict[bytes, int] = {}
        self._last_of_producers: dict[int, int] = {}
        for segment in (*log.closed_segments(), log.active_segment):
            for batch in segment.batches:
                if batch.control is None:
                    self._last_of_producers[batch.producer_id] = batch.base_offset
        self._aborted = log.producers.aborted_between
        self._end_offset = log.end_offset

    def add(self, batch: RecordBatch) -> None:
        """Record which records are the latest of their keys."""
        if batch.control is not None or self._is_aborted(batch):
            return
        for record in self._contents.records(batch):
            if record.key is not None:
                self._latest[record.key] = record.offset

    def retain(self, batch: RecordBatch) -> RecordBatch:
        """Return the retained part of a batch: the batch itself if all records are retained."""
        if batch.control is not None or batch.next_offset == self._end_offset:
            return batch
        retained = set()
        if not self._is_aborted(batch):
            retained = {
                record.offset
                for record in self._contents.records(batch)
                if self._is_retained(record)
            }
        if retained and len(retained) == batch.record_count:
            return batch
        is_last = self._last_of_producers[batch.producer_id] == batch.base_offset
        if retained or (batch.producer_id != NO_PRODUCER_ID and is_last):
            return (
                batch if not batch.record_count else self._contents.retain_records(batch, retained)
            )
        if batch.is_placeholder:
            return batch
        return self._contents.empty(batch.base_offset, batch.next_offset, batch.leader_epoch)

    def _is_retained(self, record: KeyedRecord) -> bool:
        if record.key is None or self._latest[record.key] > record.offset:
            return False
        return not (record.is_tombstone and record.offset < self._tombstone_horizon)

    def _is_aborted(self, batch: RecordBatch) -> bool:
        return batch.transactional and any(
            transaction.producer_id == batch.producer_id
            and transaction.first_offset <= batch.base_offset <= transaction.last_offset
            for transaction in self._aborted(batch.base_offset, batch.next_offset)
        )
