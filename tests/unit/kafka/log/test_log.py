from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from purgatory.kafka import ErrorCode, KafkaError, Log, LogConfig, RecordBatch, Segment


def log_of(
    *sizes: int, count: int = 1, epoch: int = 1, config: LogConfig | None = None, start: int = 0
) -> Log:
    log = Log(config, start)
    for size in sizes:
        log.append(RecordBatch(log.end_offset, count, size, epoch))
    log._check()
    return log


def offsets(batches: list[RecordBatch]) -> list[int]:
    return [batch.base_offset for batch in batches]


# ---- segments


def test_a_segment_finds_a_batch_by_any_of_its_offsets() -> None:
    segment = Segment(10, 1_000)
    for base_offset in (10, 13, 16):
        segment.append(RecordBatch(base_offset, 3, 100))
    segment._check()

    assert [segment.position_of(offset) for offset in (10, 12, 13, 18, 19)] == [
        1_000,
        1_000,
        1_100,
        1_200,
        1_300,
    ]
    assert offsets(segment.read(14, 10_000, 100, False)) == [13, 16]


# ---- appending


def test_append_begins_at_the_log_end() -> None:
    log = log_of(100, 100, count=3)

    assert log.append(RecordBatch(6, 2, 50, 1)) == 6
    assert log.end_offset == 8


def test_batch_that_does_not_begin_at_the_log_end_is_refused() -> None:
    log = log_of(100)

    for offset in (0, 2):
        with pytest.raises(KafkaError, match="the log ends at 1"):
            log.append(RecordBatch(offset, 1, 100, 1))
    assert log.end_offset == 1


def test_a_full_segment_is_followed_by_a_new_one() -> None:
    log = log_of(100, 100, 100, 100, 100, config=LogConfig(segment_bytes=200))

    assert log.segment_bases == (0, 2, 4)
    assert [log.location_of(offset)[0] for offset in range(6)] == [0, 0, 2, 2, 4, 4]


def test_a_batch_larger_than_a_segment_has_one_to_itself() -> None:
    log = log_of(500, 100, 500, config=LogConfig(segment_bytes=200))

    assert log.segment_bases == (0, 1, 2)


def test_end_of_a_full_segment_is_in_it_until_an_append() -> None:
    log = log_of(100, 100, config=LogConfig(segment_bytes=200))

    assert log.location_of(2)[0] == 0
    log.append(RecordBatch(2, 1, 100, 1))
    assert log.location_of(2)[0] == 2


@pytest.mark.parametrize("name", ["segment_bytes", "max_batch_bytes"])
def test_a_limit_below_one_byte_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"LogConfig.{name}=0: it is at least 1 byte"):
        Log(replace(LogConfig(), **{name: 0}))  # type: ignore[arg-type]


def test_a_negative_retention_is_refused() -> None:
    with pytest.raises(ValueError, match="retention_bytes=-1"):
        Log(LogConfig(retention_bytes=-1))


# ---- reading


def test_read_from_within_a_batch_returns_the_whole_batch() -> None:
    log = log_of(100, 100, count=5)

    assert offsets(log.read(7, 1_000)) == [5]


def test_read_stops_at_the_upper_offset() -> None:
    log = log_of(100, 100, 100, count=2)

    assert offsets(log.read(0, 1_000, upto_offset=4)) == [0, 2]
    assert offsets(log.read(0, 1_000, upto_offset=5)) == [0, 2]  # never half a batch
    assert offsets(log.read(0, 1_000, upto_offset=1)) == []
    assert offsets(log.read(4, 1_000, upto_offset=4)) == []


@pytest.mark.parametrize(
    ("max_bytes", "min_one", "expected"),
    [
        (99, True, [0]),
        (99, False, []),
        (0, True, [0]),
        (100, False, [0]),
        (199, False, [0]),
        (200, False, [0, 1]),
        (10_000, False, [0, 1, 2]),
    ],
)
def test_read_stops_at_the_byte_limit(max_bytes: int, min_one: bool, expected: list[int]) -> None:
    log = log_of(100, 100, 100)

    assert offsets(log.read(0, max_bytes, min_one_batch=min_one)) == expected


def test_read_stays_within_a_segment() -> None:
    log = log_of(100, 100, 100, config=LogConfig(segment_bytes=200))

    assert offsets(log.read(0, 10_000)) == [0, 1]
    assert offsets(log.read(2, 10_000)) == [2]


@pytest.mark.parametrize("offset", [1, 6])
def test_reading_outside_of_the_log_is_out_of_range(offset: int) -> None:
    log = log_of(100, 100, 100, start=2)

    with pytest.raises(KafkaError, match=f"offset {offset} was requested, the log holds 2 to 5"):
        log.read(offset, 1_000)
    assert log.read(5, 1_000) == []


def test_positions_count_bytes_across_segments() -> None:
    log = log_of(100, 50, 70, 100, config=LogConfig(segment_bytes=150))

    assert [log.position_of(offset) for offset in range(5)] == [0, 100, 150, 220, 320]
    assert log.size_bytes == 320


def test_offset_behind_another_ends_with_its_segment() -> None:
    log = log_of(100, 100, 100, 100, 100, config=LogConfig(segment_bytes=300))

    assert [log.offset_behind(0, size) for size in (0, 1, 100, 101, 999)] == [0, 1, 1, 2, 3]
    assert [log.offset_behind(offset, 100) for offset in (2, 3, 5)] == [3, 4, 5]


# ---- the high watermark


def test_the_high_watermark_stays_within_the_log() -> None:
    log = log_of(100, 100)

    assert log.update_high_watermark(5)
    assert log.high_watermark == 2
    assert not log.update_high_watermark(9)


# ---- truncation


def test_truncation_lowers_the_high_watermark() -> None:
    log = log_of(100, 100, 100, 100, config=LogConfig(segment_bytes=200))
    log.append(RecordBatch(4, 1, 100, 2))
    log.update_high_watermark(5)

    log.truncate_to(3)

    assert log.end_offset == log.high_watermark == 3
    assert log.segment_bases == (0, 2)
    assert log.last_epoch == 1
    log._check()


def test_truncation_within_a_batch_drops_it_whole() -> None:
    log = log_of(100, 100, count=4)

    log.truncate_to(6)

    assert log.end_offset == 4
    log._check()


def test_truncation_at_the_end_forgets_an_epoch_without_records() -> None:
    log = log_of(100, epoch=1)
    log.epochs.assign(4, 1)

    log.truncate_to(1)

    assert log.end_offset == 1
    assert log.last_epoch == 1


def test_truncation_below_the_start_empties_the_log_there() -> None:
    log = log_of(100, 100, 100, start=10)

    log.truncate_to(4)

    assert (log.start_offset, log.end_offset, log.high_watermark) == (4, 4, 4)
    assert log.last_epoch is None
    log._check()


def test_truncation_into_the_first_batch_empties_the_log() -> None:
    log = log_of(100, count=10)
    log.update_high_watermark(10)
    log.delete_up_to(5)

    log.truncate_to(7)

    assert (log.start_offset, log.end_offset) == (5, 5)
    log.append(RecordBatch(5, 1, 100, 1))
    log._check()


def test_empty_log_takes_a_batch_that_spans_its_start() -> None:
    log = Log()
    log.truncate_fully_and_start_at(5)

    log.append(RecordBatch(0, 10, 100, 1))

    assert (log.start_offset, log.end_offset) == (5, 10)
    assert offsets(log.read(5, 1_000)) == [0]
    log._check()


# ---- deletion and retention


def test_deletion_drops_whole_segments_below_the_new_start() -> None:
    log = log_of(*[100] * 6, config=LogConfig(segment_bytes=200))
    log.update_high_watermark(6)

    assert log.delete_up_to(3)

    assert log.start_offset == 3
    assert log.segment_bases == (2, 4)
    assert not log.delete_up_to(3)
    log._check()


def test_uncommitted_records_are_not_deleted() -> None:
    log = log_of(100, 100)
    log.update_high_watermark(1)

    with pytest.raises(KafkaError, match=r"up to 2 .* the high watermark is 1") as failure:
        log.delete_up_to(2)
    assert failure.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.start_offset == 0


def test_positions_survive_deletion() -> None:
    log = log_of(*[100] * 6, config=LogConfig(segment_bytes=200))
    log.update_high_watermark(6)
    before = log.position_of(5)

    log.delete_up_to(4)

    assert log.position_of(5) == before


def test_deleted_active_segment_is_dropped_at_the_next_roll() -> None:
    log = log_of(100, 100, config=LogConfig(segment_bytes=200))
    log.update_high_watermark(2)
    log.delete_up_to(2)
    assert log.segment_bases == (0,)  # the active one stays

    log.append(RecordBatch(2, 1, 100, 1))

    assert log.segment_bases == (2,)
    log._check()


def test_retention_drops_old_segments_as_the_log_rolls() -> None:
    log = Log(LogConfig(segment_bytes=200, retention_bytes=400))
    for offset in range(20):
        log.append(RecordBatch(offset, 1, 100, 1))
        log.update_high_watermark(offset + 1)
        assert log.size_bytes <= 400 + 200
    assert log.start_offset == 14
    log._check()


def test_retention_keeps_uncommitted_records() -> None:
    log = Log(LogConfig(segment_bytes=200, retention_bytes=0))
    for offset in range(10):
        log.append(RecordBatch(offset, 1, 100, 1))
    assert log.start_offset == 0

    log.update_high_watermark(5)
    assert log.apply_retention()

    assert log.start_offset == 4  # the segment with offset 5 isn't whole below the start
    log._check()


# ---- against an oracle


class LogAgainstAList(RuleBasedStateMachine):
    """The log beside the plainest thing that could be one: a list of batches."""

    @initialize(segment_bytes=st.sampled_from([1, 150, 400, 10_000]))
    def begin(self, segment_bytes: int) -> None:
        self.log = Log(LogConfig(segment_bytes=segment_bytes))
        self.batches: list[RecordBatch] = []
        self.start = self.end = self.high_watermark = 0
        self.epoch = 1
        self.sequences = [0, 0]

    @rule(count=st.integers(1, 4), size=st.integers(1, 200), producer=st.integers(-1, 1))
    def append(self, count: int, size: int, producer: int) -> None:
        sequence = -1 if producer < 0 else self.sequences[producer]
        batch = RecordBatch(self.end, count, size, self.epoch, producer, min(producer, 0), sequence)
        self.log.append(batch)
        self.batches.append(batch)
        self.end += count
        if producer >= 0:
            self.sequences[producer] += count

    @rule()
    def next_epoch(self) -> None:
        self.epoch += 1
        self.log.epochs.assign(self.epoch, self.end)

    @rule(part=st.floats(0, 1))
    def commit(self, part: float) -> None:
        self.high_watermark = self.start + round(part * (self.end - self.start))
        self.log.update_high_watermark(self.high_watermark)

    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        offset = self.start + round(part * (self.end - self.start))
        self.log.truncate_to(offset)
        if offset < self.end:
            self.batches = [batch for batch in self.batches if batch.next_offset <= offset]
            self.end = self.batches[-1].next_offset if self.batches else 0
            if self.end < self.start:  # the batch that held the log's start went
                self.batches, self.end = [], self.start
        self.high_watermark = min(self.high_watermark, self.end)
        for producer in (0, 1):
            mine = [batch for batch in self.batches if batch.producer_id == producer]
            # A producer that the log forgot may begin again at any sequence.
            self.sequences[producer] = mine[-1].last_sequence + 1 if mine else 0

    @rule(part=st.floats(0, 1))
    def delete(self, part: float) -> None:
        offset = self.start + round(part * (self.high_watermark - self.start))
        self.log.delete_up_to(offset)
        self.start = max(self.start, offset)

    @rule(part=st.floats(0, 1), max_bytes=st.integers(0, 500), min_one=st.booleans())
    def read(self, part: float, max_bytes: int, min_one: bool) -> None:
        offset = self.start + round(part * (self.end - self.start))
        got = self.log.read(offset, max_bytes, self.high_watermark, min_one)
        expected = [
            batch
            for batch in self.batches
            if batch.next_offset > offset and batch.next_offset <= self.high_watermark
        ]
        # A prefix of the available batches, within the byte limit, and as much as a segment has.
        assert got == expected[: len(got)]
        size = sum(batch.size_bytes for batch in got)
        assert size <= max_bytes or (len(got) == 1 and min_one)
        if len(got) < len(expected):
            following = expected[len(got)]
            at_boundary = following.base_offset in self.log.segment_bases
            assert size + following.size_bytes > max_bytes or (got and at_boundary)

    @rule(parts=st.tuples(st.floats(0, 1), st.floats(0, 1)))
    def measure(self, parts: tuple[float, float]) -> None:
        begin, end = (self.start + round(p * (self.end - self.start)) for p in sorted(parts))
        between = [b for b in self.batches if b.next_offset > begin and b.next_offset <= end]
        size = self.log.position_of(end) - self.log.position_of(begin)
        assert size == sum(batch.size_bytes for batch in between)

    @invariant()
    def same(self) -> None:
        log = self.log
        assert (log.start_offset, log.high_watermark, log.end_offset) == (
            self.start,
            self.high_watermark,
            self.end,
        )
        log._check()

    @invariant()
    def producers_resume_at_their_sequences(self) -> None:
        for producer, following in enumerate(self.sequences):
            entry = self.log.producers.entry(producer)
            if entry is not None and entry.batches:
                assert entry.last_sequence + 1 == following


TestLogAgainstAList = LogAgainstAList.TestCase
TestLogAgainstAList.settings = settings(max_examples=120, stateful_step_count=40)
