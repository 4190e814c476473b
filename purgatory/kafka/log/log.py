"""A replica's log: batches in segments, and its offsets.

    log start  <=  last stable offset  <=  high watermark  <=  log end

The log is a data structure. The partition decides whether to append, and how far the high watermark
moves.

Ground rules
------------
* Only the broker's loop touches a log; while a replica manager hosts it, by the log's partition.
* Batches are shared with other replicas' logs and with readers, and never changed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.log.leader_epoch_cache import UNKNOWN_OFFSET, EpochEndOffset, LeaderEpochCache
from purgatory.kafka.log.producer_state import ProducerStates
from purgatory.kafka.log.record_batch import NO_LEADER_EPOCH, RecordBatch
from purgatory.settings.typed_duration import OrTimedelta, default, timed_dataclass


class Segment:
    """Batches from ``base_offset`` on.

    Positions count the bytes since the log's beginning, across segments, so that the bytes between
    two offsets are one subtraction wherever they lie. The two indexes are arrays of 64-bit numbers
    beside the batches: a simulation holds millions, and boxed ints would double its memory.
    """

    __slots__ = (
        "_offsets",
        "_positions",
        "base_offset",
        "base_position",
        "batches",
        "end_position",
    )

    def __init__(self, base_offset: int, base_position: int) -> None:
        self.base_offset = base_offset
        self.base_position = base_position
        self.end_position = base_position
        self.batches: list[RecordBatch] = []
        self._offsets = array("q")
        self._positions = array("q")

    @property
    def size_bytes(self) -> int:
        """The bytes of all its batches."""
        return self.end_position - self.base_position

    @property
    def end_offset(self) -> int:
        """The offset behind its last record."""
        return self.batches[-1].next_offset if self.batches else self.base_offset

    def append(self, batch: RecordBatch) -> None:
        """Put a batch at the end. Amortised O(1)."""
        self.batches.append(batch)
        self._offsets.append(batch.base_offset)
        self._positions.append(self.end_position)
        self.end_position += batch.size_bytes

    def position_of(self, offset: int) -> int:
        """Return where the batch with ``offset`` begins; behind them all, the end. O(log n)."""
        if not self.batches or offset >= self.batches[-1].next_offset:
            return self.end_position
        return self._positions[self._index_of(offset)]

    def batch_at(self, offset: int) -> RecordBatch:
        """Return the batch that holds ``offset``, one of the segment's. O(log n)."""
        return self.batches[self._index_of(offset)]

    def read(
        self, offset: int, max_bytes: int, upto_offset: int, min_one_batch: bool
    ) -> list[RecordBatch]:
        """Return whole batches from the one with ``offset`` on. O(log n + those returned).

        Args:
            offset: at or above the base offset.
            max_bytes: the limit of their size.
            upto_offset: a batch that reaches beyond this offset is excluded.
            min_one_batch: the first batch comes even if it alone is larger than ``max_bytes``.
        """
        batches = self.batches
        if not batches or offset >= batches[-1].next_offset:
            return []
        begin = self._index_of(offset)
        end = len(batches)
        if upto_offset < batches[-1].next_offset:
            # The batch at `end` holds upto_offset: it is excluded.
            end = max(begin, bisect_right(self._offsets, upto_offset) - 1)
        limit = self._positions[begin] + max_bytes
        if self.end_position > limit:
            # positions[k] is where batch k - 1 ends.
            fits = bisect_right(self._positions, limit, begin) - 1
            if fits == begin and min_one_batch:
                fits = begin + 1
            end = min(end, fits)
        return batches[begin:end]

    def offset_behind(self, offset: int, size_bytes: int) -> int:
        """Return where a batch begins that is so far behind the one with ``offset``, or the end."""
        position = self.position_of(offset) + size_bytes
        at = bisect_left(self._positions, position)
        return self.batches[at].base_offset if at < len(self.batches) else self.end_offset

    def truncate_to(self, offset: int) -> None:
        """Drop every batch that reaches beyond ``offset``."""
        count = len(self.batches)
        while count and self.batches[count - 1].next_offset > offset:
            count -= 1
        if count < len(self.batches):
            self.end_position = self._positions[count]
            del self.batches[count:], self._offsets[count:], self._positions[count:]

    def _index_of(self, offset: int) -> int:
        offsets = self._offsets
        if offset >= offsets[-1]:  # most often: who follows the log reads its end
            return len(offsets) - 1
        # The first batch may begin before the segment; its earlier offsets may be looked up, too.
        return (bisect_right(offsets, offset) or 1) - 1

    def _check(self) -> None:
        """Assert every invariant. O(n)."""
        assert len(self.batches) == len(self._offsets) == len(self._positions)
        position = self.base_position
        for index, batch in enumerate(self.batches):
            assert self._offsets[index] == batch.base_offset, (index, batch)
            assert self._positions[index] == position, (index, batch)
            position += batch.size_bytes
            if index:
                assert batch.base_offset == self.batches[index - 1].next_offset, (index, batch)
        assert self.end_position == position, (self.end_position, position)
        # The first batch may begin before the segment when a log was restarted within it.
        assert not self.batches or self.batches[0].base_offset <= self.base_offset
        assert not self.batches or self.batches[0].next_offset > self.base_offset


_MAX_SNAPSHOTS = 2
CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
"""The codecs of batches, by Kafka's numbers."""

WEEK_MS = 7 * 24 * 60 * 60 * 1000

ZSTD = CODECS.index("zstd")
"""The codec that older versions of Produce and Fetch lack."""


@timed_dataclass
class LogConfig:
    """The settings of a log, with Kafka's defaults.

    Args:
        segment_bytes: a batch that would make a segment larger than this begins a new one.
        retention_bytes: delete the oldest segments as long as this much remains; None keeps all.
        max_batch_bytes: a larger batch is refused.
        retention_ms: delete segments whose records are all older: a week; None keeps them.
        deletes: whether old segments may be deleted, by size or by age.
        compacts: whether records are replaced by later ones with their key.
        is_log_append_time: whether records get the leader's time, in place of their producer's.
        segment_ms: the log rolls when the first records of its segment are that old; None: by size
            alone.
        min_dirty_ratio: compact once such a part of the bytes was never compacted.
        min_compaction_lag_ms: younger records are not compacted.
        max_compaction_lag_ms: compact records that are older, however few they are; None: never for
            their age.
        delete_retention_ms: tombstones stay for so long after their first compaction.
        codec: of `CODECS`, the one by which batches are compressed; None: as the producer did.
        codec_level: the codec's level; None: it has none.
        forces: whether each batch is forced onto the disk before a response is sent, even where
            the cluster's setting is not to.
        timestamp_before_max_ms, timestamp_after_max_ms: how far a record's time may lie from the
            leader's; None: without limit.

    Raises:
        ValueError: by ``Log``, for a value below 1 (``retention_bytes``: below 0).
    """

    segment_bytes: int = 1024 * 1024 * 1024
    retention_bytes: int | None = None
    max_batch_bytes: int = 1024 * 1024 + 12
    retention_ms: OrTimedelta[int | None] = default(WEEK_MS)
    deletes: bool = True
    compacts: bool = False
    is_log_append_time: bool = False
    timestamp_before_max_ms: OrTimedelta[int | None] = default(None)
    timestamp_after_max_ms: OrTimedelta[int | None] = default(60 * 60 * 1000)
    segment_ms: OrTimedelta[int | None] = default(WEEK_MS)
    min_dirty_ratio: float = 0.5
    min_compaction_lag_ms: OrTimedelta[int] = default(0)
    max_compaction_lag_ms: OrTimedelta[int | None] = default(None)
    delete_retention_ms: OrTimedelta[int] = default(24 * 60 * 60 * 1000)
    codec: int | None = None
    codec_level: int | None = None
    forces: bool = False


class Log:
    """The records of one replica, from ``start_offset`` to before ``end_offset``."""

    __slots__ = (
        "_active",
        "_bases",
        "_before",
        "_has_placeholders",
        "_segment_bytes",
        "_segments",
        "_snapshots",
        "config",
        "end_offset",
        "epochs",
        "high_watermark",
        "producers",
        "start_offset",
    )

    def __init__(self, config: LogConfig | None = None, start_offset: int = 0) -> None:
        self.config = config if config is not None else LogConfig()
        _check_config(self.config)
        self._segment_bytes = self.config.segment_bytes
        self.start_offset = start_offset
        self.end_offset = start_offset
        self.high_watermark = start_offset
        self.epochs = LeaderEpochCache()
        self.producers = ProducerStates()
        self._active = Segment(start_offset, 0)
        self._segments = [self._active]
        self._bases = [start_offset]
        self._has_placeholders = False
        self._before = ProducerStates()  # as of the first batch that is here
        # (offset, the producers as of there), oldest first: where a rebuild may begin.
        self._snapshots: list[tuple[int, ProducerStates]] = []

    def configure(self, config: LogConfig) -> None:
        """Apply new settings. Retention applies them at its next run.

        Raises:
            ValueError: as for a new log.
        """
        _check_config(config)
        self.config = config
        self._segment_bytes = config.segment_bytes

    # ---- writing

    def append(self, batch: RecordBatch) -> int:
        """Append a batch that has its offset and epoch already. Amortised O(1).

        Returns:
            The batch's base offset.

        Raises:
            KafkaError: INVALID_RECORD, when it doesn't begin where the log ends. An empty log may
                end within a batch, after a truncation to another replica's log start.
        """
        base_offset, end_offset = batch.base_offset, self.end_offset
        if base_offset != end_offset and not self._is_inside_batch(batch):
            raise KafkaError(
                ErrorCode.INVALID_RECORD, f"the log ends at {end_offset}, but {batch!r} came"
            )
        active, size_bytes = self._active, batch.size_bytes
        if active.end_position - active.base_position + size_bytes > self._segment_bytes:
            active = self._roll()
        # Segment.append(batch), written out.
        active.batches.append(batch)
        active._offsets.append(base_offset)
        active._positions.append(active.end_position)
        active.end_position += size_bytes
        self.end_offset = batch.next_offset
        if batch.leader_epoch > self.epochs.latest:
            self.epochs.assign(batch.leader_epoch, max(base_offset, end_offset))
        if batch.producer_id >= 0:
            self.producers.update(batch)
        elif not batch.record_count:
            self._has_placeholders = True
        return base_offset

    def _is_inside_batch(self, batch: RecordBatch) -> bool:
        empty = self.start_offset == self.end_offset and not self._active.batches
        return empty and batch.base_offset < self.end_offset < batch.next_offset

    def roll(self) -> None:
        """Begin a new segment, unless the active one is still empty."""
        self._roll()

    def _roll(self) -> Segment:
        """Begin a new segment at the log's end, unless the active one is still empty."""
        if not self._active.batches:
            return self._active
        self._active = Segment(self.end_offset, self._active.end_position)
        self._segments.append(self._active)
        self._bases.append(self.end_offset)
        self._snapshots.append((self.end_offset, self.producers.copy()))
        del self._snapshots[:-_MAX_SNAPSHOTS]
        self._drop_deleted_segments()
        self.apply_retention()
        return self._active

    def update_high_watermark(self, offset: int) -> bool:
        """Set the high watermark to ``offset``, kept within the log; return whether it moved."""
        if not self.start_offset <= offset <= self.end_offset:
            offset = min(max(offset, self.start_offset), self.end_offset)
        if offset == self.high_watermark:
            return False
        self.high_watermark = offset
        self.producers.advance_high_watermark(offset)
        return True

    # ---- reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        upto_offset: int | None = None,
        min_one_batch: bool = True,
    ) -> list[RecordBatch]:
        """Return whole batches from the one that holds ``offset`` on. O(log n + those returned).

        One call stays within one segment, as in Kafka: the next call continues.

        Args:
            offset: of the first record wanted.
            max_bytes: the limit of their size.
            upto_offset: a batch that reaches beyond this offset is excluded; None: the log's end.
            min_one_batch: the first batch comes even if it alone is larger than ``max_bytes``.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, below the log's start or beyond its end.
        """
        if not self.start_offset <= offset <= self.end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} was requested, the log holds "
                f"{self.start_offset} to {self.end_offset}",
            )
        if upto_offset is None:
            upto_offset = self.end_offset
        if offset >= upto_offset:
            return []
        segment = self._active
        if offset < segment.base_offset:
            segment = self._segment_at(offset)
        return segment.read(offset, max_bytes, upto_offset, min_one_batch)

    def read_records(
        self, offset: int, max_bytes: int, upto_offset: int, min_one_batch: bool
    ) -> list[RecordBatch]:
        """Read as ``read``, for a consumer: without the placeholders of compaction.

        O(log n + batches returned + placeholders before them).
        """
        if not self._has_placeholders:
            return self.read(offset, max_bytes, upto_offset, min_one_batch)
        batches = self.read(self.skip_placeholders(offset), max_bytes, upto_offset, min_one_batch)
        return [batch for batch in batches if not batch.is_placeholder]

    def skip_placeholders(self, offset: int) -> int:
        """Return the first offset from this one on that no placeholder holds: of a batch that
        consumers are served, or the log's end. O(placeholders * log n)."""
        if self._has_placeholders:
            while self.start_offset <= offset < self.end_offset:
                batch = self._segment_at(offset).batch_at(offset)
                if not batch.is_placeholder:
                    break
                offset = batch.next_offset
        return offset

    def position_of(self, offset: int) -> int:
        """Return the byte position of the batch that holds ``offset``. O(log n), O(1) at the end.

        Positions are counted from the log's beginning and never change while their batch lives.
        """
        if offset >= self.end_offset:
            return self._active.end_position
        return self._segment_at(offset).position_of(offset)

    def offset_behind(self, offset: int, size_bytes: int) -> int:
        """Return where a batch begins that is so far behind the one with ``offset``; in its
        segment there may be none, and then it is the segment's end. O(log n)."""
        return self._segment_at(offset).offset_behind(offset, size_bytes)

    def location_of(self, offset: int) -> tuple[int, int]:
        """Return the base offset of the segment that holds ``offset`` or ends there, and
        ``position_of``. O(log n), O(1) at the end."""
        active = self._active
        if offset >= self.end_offset:
            return active.base_offset, active.end_position
        segment = self._segment_at(offset)
        return segment.base_offset, segment.position_of(offset)

    @property
    def size_bytes(self) -> int:
        """The bytes of all segments, records below the log start included. O(segments)."""
        return sum(segment.size_bytes for segment in self._segments)

    def closed_segments(self) -> list[Segment]:
        """Return all segments but the active one, oldest first. O(segments)."""
        return self._segments[:-1]

    @property
    def active_segment(self) -> Segment:
        """The last segment, to which batches are appended."""
        return self._active

    @property
    def segment_bases(self) -> tuple[int, ...]:
        """The base offsets of the segments, oldest first."""
        return tuple(self._bases)

    @property
    def active_base_offset(self) -> int:
        """The base offset of the active segment."""
        return self._active.base_offset

    @property
    def last_stable_offset(self) -> int:
        """The end of a read-committed reader's view: the first open transaction."""
        producers = self.producers
        if not producers.ongoing and not producers.unreplicated:
            return self.high_watermark
        unstable = producers.first_unstable_offset
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self.start_offset)

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset:
        """Return the largest epoch not above the requested one, and its end. O(log n)."""
        return self.epochs.end_offset_for(leader_epoch, self.end_offset)

    @property
    def last_epoch(self) -> int | None:
        """The epoch of the log's end; None before the first leader."""
        latest = self.epochs.latest
        return None if latest == NO_LEADER_EPOCH else latest

    def _segment_at(self, offset: int) -> Segment:
        active = self._active
        if offset >= active.base_offset:
            return active
        return self._segments[max(0, bisect_right(self._bases, offset) - 1)]

    # ---- cutting

    def truncate_to(self, offset: int) -> None:
        """Drop every batch that reaches beyond ``offset``; the high watermark follows.

        O(dropped batches + those from which the producers' state is rebuilt: at most two segments,
        or the whole log when more is dropped).
        """
        if offset < self.start_offset:
            self.truncate_fully_and_start_at(offset)
            return
        # Even when no batch is dropped, an epoch that began at the end may be wrong.
        self.epochs.truncate_from_end(offset)
        if offset >= self.end_offset:
            return
        while len(self._segments) > 1 and self._active.base_offset >= offset:
            self._segments.pop()
            self._bases.pop()
            self._active = self._segments[-1]
        self._active.truncate_to(offset)
        if self._active.end_offset < self.start_offset:
            # The batch that held the log's start is dropped: the log is empty.
            self.truncate_fully_and_start_at(self.start_offset)
            return
        self.end_offset = self._active.end_offset
        self._rebuild_producers()
        self.update_high_watermark(self.high_watermark)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and begin again at ``offset``."""
        self._active = Segment(offset, self._active.end_position)
        self._segments = [self._active]
        self._bases = [offset]
        self._snapshots = []
        self.epochs.clear()
        self._before = ProducerStates()
        self.producers = ProducerStates()
        self._has_placeholders = False
        self.start_offset = self.end_offset = self.high_watermark = offset

    def _rebuild_producers(self) -> None:
        while self._snapshots and self._snapshots[-1][0] > self.end_offset:
            self._snapshots.pop()
        at_start = UNKNOWN_OFFSET, self._before
        begin, states = self._snapshots[-1] if self._snapshots else at_start
        self.producers = states.copy()
        for segment in self._segments[max(0, bisect_right(self._bases, begin) - 1) :]:
            for batch in segment.batches:
                if batch.producer_id >= 0 and batch.base_offset >= begin:
                    self.producers.update(batch)
        self.producers.forget_before(self.start_offset)
        self.producers.advance_high_watermark(self.high_watermark)

    def delete_up_to(self, offset: int) -> bool:
        """Move the log's start to ``offset``; return whether it moved. O(segments dropped).

        Whole segments below it are dropped, never the active one.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, beyond the high watermark: uncommitted records may
                not be deleted.
        """
        if offset > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"records up to {offset} were to be deleted, but the high watermark is "
                f"{self.high_watermark}",
            )
        if offset <= self.start_offset:
            return False
        self.start_offset = offset
        self._drop_deleted_segments()
        self.epochs.truncate_from_start(offset)
        self.producers.forget_before(offset)
        return True

    def restore_producers(self, producers: ProducerStates) -> None:
        """Restore the producers' state at the start of an empty log. O(producers)."""
        assert not self._active.batches and len(self._segments) == 1, "it is empty"
        self._before = producers
        self.producers = producers.copy()

    def _drop_deleted_segments(self) -> None:
        # A segment's successor begins where it ends.
        dropped = bisect_right(self._bases, self.start_offset) - 1
        if dropped > 0:
            for segment in self._segments[:dropped]:
                for batch in segment.batches:
                    if batch.producer_id >= 0:
                        self._before.update(batch)
            self._before.forget_before(self.start_offset)
            del self._segments[:dropped], self._bases[:dropped]
            # A copy from before the first batch would be continued with a gap.
            first = self._bases[0]
            self._snapshots = [snapshot for snapshot in self._snapshots if snapshot[0] >= first]

    # ---- retention

    def apply_retention(self, now_ms: int | None = None) -> bool:
        """Delete the oldest segments, where they are committed: those beyond ``retention_bytes``,
        and those whose records are all older than ``retention_ms``; return whether any were.

        The active segment is deleted, too, once all of its records are too old. O(segments, and the
        batches of old ones).

        Args:
            now_ms: in milliseconds since 1970; None: by size alone.
        """
        if not self.config.deletes:
            return False
        start = max(self._start_by_size(), self._start_by_age(now_ms))
        if self.start_offset < start == self.end_offset:
            self._roll()
        return self.delete_up_to(start)

    def _start_by_size(self) -> int:
        start, keep_bytes = self.start_offset, self.config.retention_bytes
        if keep_bytes is None:
            return start
        excess = self.size_bytes - keep_bytes
        for segment, end_offset in zip(self._segments, self._bases[1:], strict=False):
            excess -= segment.size_bytes
            if excess < 0 or end_offset > self.high_watermark:
                break
            start = end_offset
        return start

    def _start_by_age(self, now_ms: int | None) -> int:
        start, retention_ms = self.start_offset, self.config.retention_ms
        if now_ms is None or retention_ms is None:
            return start
        oldest_ms = now_ms - retention_ms
        ends = [*self._bases[1:], self.end_offset]
        for segment, end_offset in zip(self._segments, ends, strict=True):
            # The youngest record is most likely at the end, but times are the clients'. A batch
            # without a time, -1, stays.
            if end_offset > self.high_watermark or not all(
                0 <= batch.max_timestamp_ms < oldest_ms
                for batch in reversed(segment.batches)
                if batch.record_count and batch.next_offset > self.start_offset
            ):
                break
            start = end_offset
        return start

    def roll_if_old(self, now_ms: int) -> None:
        """Begin a new segment if the first batch of the active one is older than ``segment_ms``.

        Args:
            now_ms: in milliseconds since 1970.
        """
        segment_ms, batches = self.config.segment_ms, self._active.batches
        if segment_ms is not None and batches:
            begun_ms = batches[0].max_timestamp_ms
            if 0 <= begun_ms <= now_ms - segment_ms:
                self._roll()

    # ---- compaction

    def replace_segments(
        self, segments: Sequence[Segment], batches: Sequence[RecordBatch]
    ) -> Segment | None:
        """Replace closed segments by one with these batches; return it. O(batches + segments).

        Args:
            segments: consecutive ones.
            batches: with the same offsets, without gaps.

        Returns:
            None, without a change, if the log has these segments no longer.
        """
        begin = self._closed_segment_index(segments)
        if begin is None:
            return None
        end = begin + len(segments)
        first = segments[0]
        replacement = Segment(first.base_offset, first.base_position)
        for batch in batches:
            replacement.append(batch)
            self._has_placeholders |= batch.is_placeholder
        assert replacement.end_offset == segments[-1].end_offset, "the same offsets"
        self._segments[begin:end] = [replacement]
        self._bases[begin:end] = [replacement.base_offset]
        return replacement

    def _closed_segment_index(self, segments: Sequence[Segment]) -> int | None:
        """Return the index of the first of these segments; None if the log lacks any of them."""
        begin = bisect_right(self._bases, segments[0].base_offset) - 1
        end = begin + len(segments)
        is_present = end < len(self._segments) and self._segments[begin:end] == list(segments)
        return begin if is_present else None

    # ---- checking

    def _check(self) -> None:
        """Assert every invariant of the log. O(n)."""
        assert (
            self.start_offset <= self.last_stable_offset <= self.high_watermark <= self.end_offset
        ), (self.start_offset, self.last_stable_offset, self.high_watermark, self.end_offset)
        assert self._segments and self._active is self._segments[-1]
        assert self._bases == [segment.base_offset for segment in self._segments]
        assert self._active.end_offset <= self.end_offset
        # A log whose batches were all dropped begins, empty, at its start.
        assert self._active.batches == [] or self._active.end_offset == self.end_offset
        for segment, following in pairwise(self._segments):
            assert segment.batches, "only the active segment may be empty"
            assert segment.end_offset == following.base_offset
            # Compaction leaves fewer bytes, and the positions of all others as they are.
            assert segment.end_position <= following.base_position
        for segment in self._segments:
            segment._check()
        # No whole segment below the log's start is kept, but for the active one.
        assert len(self._bases) == 1 or self._bases[1] > self.start_offset
        self.epochs._check(self.start_offset, self.end_offset)
        self.producers._check(self.end_offset)
        assert len(self._snapshots) <= _MAX_SNAPSHOTS
        assert all(offset <= self.end_offset for offset, _ in self._snapshots)


def _check_config(config: LogConfig) -> None:
    for name in ("segment_bytes", "max_batch_bytes"):
        if getattr(config, name) < 1:
            raise ValueError(f"LogConfig.{name}={getattr(config, name)!r}: it is at least 1 byte")
    if config.retention_bytes is not None and config.retention_bytes < 0:
        raise ValueError(
            f"LogConfig.retention_bytes={config.retention_bytes!r}: 0 or more, or None to keep all"
        )
