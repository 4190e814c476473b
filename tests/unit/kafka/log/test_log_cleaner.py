"""Compaction against an oracle: which records stay, at which offsets, whatever was written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.kafka import (
    FetchIsolation,
    Log,
    LogConfig,
    PartitionFetch,
    RecordBatch,
    TopicPartition,
    TransactionResult,
)
from purgatory.kafka.log.log_cleaner import KeyedRecord, LogCleaning, cleanable_segments, compact
from purgatory.kafka.replication.partition import Partition, apply_response

_KEEP_MS = 1_000
_CONFIG = LogConfig(
    segment_bytes=300,
    compacts=True,
    deletes=False,
    min_dirty_ratio=0,
    delete_retention_ms=_KEEP_MS,
)


class _Record(NamedTuple):
    delta: int
    key: bytes | None
    value: bytes | None


class _Batch(RecordBatch):
    """A batch whose latest time is its offset."""

    @property
    def max_timestamp_ms(self) -> int:
        return self.base_offset


class _Contents:
    """Batches whose records are their tags."""

    def records(self, batch: RecordBatch) -> Iterable[KeyedRecord]:
        for record in _records(batch):
            yield KeyedRecord(batch.base_offset + record.delta, record.key, record.value is None)

    def retain_records(self, batch: RecordBatch, offsets: Collection[int]) -> RecordBatch:
        records = [one for one in _records(batch) if batch.base_offset + one.delta in offsets]
        return _Batch(
            batch.base_offset,
            len(records),
            batch.size_bytes - len(_records(batch)) + len(records),
            batch.leader_epoch,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            tag=tuple(records),
            transactional=batch.transactional,
            offset_count=batch.offset_count,
        )

    def empty(self, base_offset: int, next_offset: int, leader_epoch: int) -> RecordBatch:
        count = next_offset - base_offset
        return _Batch(base_offset, 0, 61, leader_epoch, tag=(), offset_count=count)


def _records(batch: RecordBatch) -> Sequence[_Record]:
    tag = batch.tag
    return tag if isinstance(tag, tuple) else ()


def _append(log: Log, records: Sequence[tuple[bytes | None, bytes | None]], epoch: int = 0) -> None:
    tag = tuple(_Record(delta, *record) for delta, record in enumerate(records))
    log.append(_Batch(log.end_offset, len(tag), 61 + len(tag), epoch, tag=tag))
    log.update_high_watermark(log.end_offset)


def _contents(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """Read all records as a consumer does, from segment to segment."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    offset = log.start_offset
    while offset < log.end_offset:
        batches = log.read(offset, 1 << 30)
        assert batches, "a gap"
        for batch in batches:
            for record in _records(batch):
                found.append((batch.base_offset + record.delta, record.key, record.value))
        offset = batches[-1].next_offset
    return found


def _compact(log: Log, cleaning: LogCleaning, now_ms: int) -> bool:
    segments = cleanable_segments(log, cleaning, now_ms)

    if segments:
        for _ in compact(log, segments, cleaning, _Contents(), now_ms):
            pass
    log._check()
    return bool(segments)


_keys = st.none() | st.sampled_from([b"a", b"b", b"c", b"d"])
_writes = st.lists(
    st.tuples(
        st.lists(st.tuples(_keys, st.none() | st.binary(max_size=2)), min_size=1, max_size=4),
        st.booleans(),  # another leader from here on
        st.booleans(),  # compact afterwards
    ),
    max_size=60,
)


@given(_writes)
@settings(max_examples=150, deadline=None)
def test_cleaner_keeps_each_keys_latest_record_at_its_offset(
    writes: list[tuple[list[tuple[bytes | None, bytes | None]], bool, bool]],
) -> None:
    log, cleaning = Log(_CONFIG), LogCleaning()
    written: list[tuple[int, bytes | None, bytes | None]] = []
    first_looked_at: dict[int, int] = {}
    epoch = now_ms = 0
    for records, elected, compacts in writes:
        epoch += elected
        written += [(log.end_offset + n, *record) for n, record in enumerate(records)]
        _append(log, records, epoch)
        now_ms += 100
        if not compacts or not _compact(log, cleaning, now_ms):
            continue
        active = log.active_base_offset
        latest = {key: offset for offset, key, _ in written if offset < active}
        there = _contents(log)
        for offset, key, value in written:
            if offset >= active:
                assert (offset, key, value) in there, "the active segment is as it was"
                continue
            is_latest = key is not None and latest[key] == offset
            seen_ms = first_looked_at.setdefault(offset, now_ms)
            if is_latest and value is not None:
                assert (offset, key, value) in there
            elif is_latest and now_ms - seen_ms < _KEEP_MS:
                assert (offset, key, value) in there, "a tombstone stays for its retention"
            elif not is_latest:
                assert (offset, key, value) not in there
        assert set(there) <= set(written), "nothing is made up"
        assert log.epochs.entries() == _epochs_of(log), "a restart finds the same leaders"


def _epochs_of(log: Log) -> list[tuple[int, int]]:
    begun: dict[int, int] = {}
    for segment in (*log.closed_segments(), log.active_segment):
        for batch in segment.batches:
            begun.setdefault(batch.leader_epoch, batch.base_offset)
    return list(begun.items())


def _log_of(*values: tuple[bytes, bytes | None], config: LogConfig = _CONFIG) -> Log:
    log = Log(config)
    for value in values:
        _append(log, [value])
    log.roll()
    return log


def test_tombstones_are_removed_after_their_retention() -> None:
    log, cleaning = _log_of((b"a", b"1"), (b"a", None), (b"b", b"2")), LogCleaning()
    assert _compact(log, cleaning, 5_000)
    assert _contents(log) == [(1, b"a", None), (2, b"b", b"2")]
    assert not _compact(log, cleaning, 5_000 + _KEEP_MS - 1)
    assert _compact(log, cleaning, 5_000 + _KEEP_MS)
    assert _contents(log) == [(2, b"b", b"2")]
    assert (log.start_offset, log.end_offset, len(log.read(0, 1_000))) == (0, 3, 2)


def test_young_undecided_and_clean_segments_are_not_compacted() -> None:
    values = [(b"a", b"%d" % number) for number in range(10)]
    young = _log_of(*values, config=replace(_CONFIG, min_compaction_lag_ms=100))
    assert not _compact(young, LogCleaning(), 100 + 2), "times are offsets here"
    assert _compact(young, LogCleaning(), 100 + 9)
    uncommitted = _log_of(*values)
    uncommitted.high_watermark = 3
    assert not _compact(uncommitted, LogCleaning(), 1)
    clean, cleaning = _log_of(*values, config=replace(_CONFIG, min_dirty_ratio=0.9)), LogCleaning()
    assert _compact(clean, cleaning, 1)
    _append(clean, [(b"b" * 10, b"")] * 3)
    clean.roll()
    size_bytes = clean.size_bytes
    assert not _compact(clean, cleaning, 1)
    assert clean.size_bytes == size_bytes
    assert not _compact(_log_of(*values, config=LogConfig(segment_bytes=300)), LogCleaning(), 1)


def test_max_compaction_lag_forces_a_compaction() -> None:
    config = replace(_CONFIG, min_dirty_ratio=1.0, max_compaction_lag_ms=100)
    log, cleaning = _log_of((b"a", b"1"), (b"b", b"2"), config=config), LogCleaning()
    assert _compact(log, cleaning, 1)
    _append(log, [(b"a", b"3")])
    log.roll()
    written_ms = 2  # times are offsets here
    assert not _compact(log, cleaning, written_ms + 99)
    assert _compact(log, cleaning, written_ms + 100)
    assert _contents(log) == [(1, b"b", b"2"), (2, b"a", b"3")]
    assert not _compact(log, cleaning, written_ms + 500), "nothing has come since"


def test_segment_with_uncommitted_records_is_not_compacted() -> None:
    log = _log_of(*[(b"a", b"%d" % number) for number in range(20)])
    log.high_watermark = log.segment_bases[2]
    assert _compact(log, LogCleaning(), 1)
    kept = [offset for offset, _, _ in _contents(log)]
    second = log.high_watermark
    assert kept == [second - 1, *range(second, 20)]


def test_compaction_removes_aborted_records_and_keeps_markers() -> None:
    log = Log(replace(_CONFIG, segment_bytes=10_000))

    def write(producer: int, sequence: int, key: bytes) -> None:
        tag = (_Record(0, key, b"v"),)
        log.append(_Batch(log.end_offset, 1, 70, 0, producer, 0, sequence, None, tag, True))

    def end(producer: int, how: TransactionResult) -> None:
        marker = RecordBatch.end_transaction(producer, 0, how)
        log.append(marker.with_offset(log.end_offset, 0))

    write(1, 0, b"a")
    end(1, TransactionResult.COMMIT)
    write(2, 0, b"a")
    end(2, TransactionResult.ABORT)
    log.roll()
    log.update_high_watermark(4)
    states = log.producers.to_json()
    assert _compact(log, LogCleaning(), 1)
    assert _contents(log) == [(0, b"a", b"v")], "the aborted one replaces nothing"
    batches = log.read(0, 1_000)
    assert [batch.control for batch in batches] == [
        None,
        TransactionResult.COMMIT,
        None,
        TransactionResult.ABORT,
    ]
    assert (batches[2].producer_id, batches[2].record_count) == (2, 0)
    log._rebuild_producers()
    assert log.producers.to_json() == states, "a retry of the last batch is known still"


def test_segments_deleted_during_a_compaction_stay_deleted() -> None:
    log = _log_of(*[(b"a", b"%d" % number) for number in range(20)])
    cleaning = LogCleaning()
    segments = cleanable_segments(log, cleaning, 1)
    steps = compact(
        log,
        segments,
        cleaning,
        _Contents(),
        1,
    )
    next(steps)
    log.delete_up_to(log.segment_bases[1])
    before = _contents(log)
    for _ in steps:
        pass
    log._check()
    assert _contents(log) == before
    assert cleaning.cleaned_until == 0


def test_compaction_merges_segments() -> None:
    log = _log_of(*[(b"a", b"%d" % number) for number in range(400)])
    many = len(log.segment_bases)
    assert _compact(log, LogCleaning(), 1)
    assert (many, len(log.segment_bases)) == (101, 2)
    assert _contents(log) == [(399, b"a", b"399")]
    positions = [log.position_of(offset) for offset in range(400)]
    assert all(one <= other for one, other in pairwise(positions))


def _fetch_once(follower: Log, leader: Log) -> None:
    """Copy the records of one fetch."""
    fetch = PartitionFetch(follower.end_offset, 200, 0, follower.last_epoch, follower.start_offset)
    partition = Partition(TopicPartition("topic", 0), 0, leader)
    assert partition.make_leader(0, (0,), (0,), now_ms=0)
    answer = partition.fetch(fetch, FetchIsolation.LOG_END, 200, True)
    assert apply_response(follower, answer)
    follower._check()


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.binary(max_size=1)), min_size=5),
    st.integers(0, 100),
    st.sampled_from([100, 300, 700]),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_follower_out_of_sync_copies_a_log_compacted_meanwhile(
    written: list[tuple[bytes, bytes]], copied: int, segment_bytes: int, compacts_too: bool
) -> None:
    leader, follower = Log(_CONFIG), Log(replace(_CONFIG, segment_bytes=segment_bytes))
    for record in written:
        _append(leader, [record])
        if follower.end_offset < copied:
            _fetch_once(follower, leader)
    leader.roll()
    for now_ms in range(2):
        _compact(leader, LogCleaning(), now_ms)
    if compacts_too:
        _compact(follower, LogCleaning(), 1)
    fetches = 0
    while follower.end_offset < leader.end_offset:
        _fetch_once(follower, leader)
        fetches += 1
        assert fetches <= 3 * len(written), "the follower makes no progress"
    latest = {key: (offset, key, value) for offset, (key, value) in enumerate(written)}
    assert set(latest.values()) <= set(_contents(follower))
    assert set(_contents(follower)) <= {(n, *record) for n, record in enumerate(written)}


def test_follower_within_a_compacted_batch_truncates_to_it() -> None:
    leader = _log_of(*[(b"a", b"%d" % number) for number in range(20)])
    follower = Log(_CONFIG)
    for _ in range(6):
        _append(follower, [(b"a", b"%d" % follower.end_offset)])
    _compact(leader, LogCleaning(), 1)
    assert leader.read(6, 1)[0].base_offset == 0
    while follower.end_offset < 20:
        _fetch_once(follower, leader)
    assert _contents(follower) == [(19, b"a", b"19")]


def _consume(partition: Partition, offset: int, max_bytes: int = 200) -> list[RecordBatch]:
    """Return all batches from an offset on, as a consumer gets them, fetch by fetch."""
    found: list[RecordBatch] = []
    while True:
        fetch = PartitionFetch(offset, max_bytes)
        answer = partition.fetch(fetch, FetchIsolation.HIGH_WATERMARK, max_bytes, True)
        if not answer.batches:
            return found
        found += answer.batches
        assert answer.batches[-1].next_offset > offset, "the consumer makes no progress"
        offset = answer.batches[-1].next_offset


def _leader(log: Log) -> Partition:
    partition = Partition(TopicPartition("topic", 0), 0, log)
    assert partition.make_leader(0, (0,), (0,), now_ms=0)
    return partition


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.binary(max_size=1)), min_size=5),
    st.integers(1, 300),
)
@settings(max_examples=100, deadline=None)
def test_consumers_are_served_gaps_and_no_placeholders(
    written: list[tuple[bytes, bytes]], max_bytes: int
) -> None:
    log = _log_of(*written)
    for now_ms in range(2):
        _compact(log, LogCleaning(), now_ms)
    there, partition = _contents(log), _leader(log)
    for offset in range(log.end_offset + 1):
        batches = _consume(partition, offset, max_bytes)
        assert not any(batch.is_placeholder for batch in batches)
        assert [batch.base_offset for batch in batches] == [
            record_offset for record_offset, _, _ in there if record_offset >= offset
        ]


def test_last_record_of_a_log_stays() -> None:
    log, cleaning = _log_of((b"a", b"1"), (b"a", None)), LogCleaning()
    for now_ms in (0, _KEEP_MS):
        _compact(log, cleaning, now_ms)
    assert _contents(log) == [(1, b"a", None)], "consumers get to the log's end by it"
    assert [batch.base_offset for batch in _consume(_leader(log), 0)] == [1]
    _append(log, [(b"b", b"2")])
    log.roll()
    _compact(log, cleaning, 2 * _KEEP_MS)
    assert _contents(log) == [(2, b"b", b"2")]


def test_segments_without_records_do_not_outlive_their_retention() -> None:
    config = replace(_CONFIG, deletes=True, retention_ms=100)
    log, cleaning = _log_of((b"a", b"1"), (b"a", None), config=config), LogCleaning()
    for now_ms in (0, _KEEP_MS):
        _compact(log, cleaning, now_ms)
    assert log.read(0, 1)[0].is_placeholder
    assert log.apply_retention(now_ms=_KEEP_MS)
    assert log.start_offset == log.end_offset
