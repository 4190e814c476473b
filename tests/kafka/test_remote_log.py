"""What of a log is in the remote tier, here, or gone: whatever happens, nothing else is missing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from purgatory.kafka import ErrorCode, KafkaError, Log, LogConfig, RecordBatch
from purgatory.kafka.follower_copies import take_response
from purgatory.kafka.leader_reads import refusal
from purgatory.kafka.tiers.remote_log import RemoteLog, RemoteSegment

_TIERED = LogConfig(segment_bytes=300, is_tiered=True, local_retention_bytes=0)


def _batch(records: int = 1) -> RecordBatch:
    return RecordBatch(0, records, 100)


def _log(batches: int, config: LogConfig = _TIERED) -> Log:
    """A log of batches with one record, three to a segment, all committed."""
    log = Log(config)
    for _ in range(batches):
        log.append(_batch().with_offset(log.end_offset, 1))
    log.update_high_watermark(log.end_offset)
    return log


def _copied(log: Log, remote: RemoteLog, max_timestamp_ms: int = -1) -> RemoteSegment | None:
    batches = remote.to_copy(log)
    if not batches:
        return None
    segment = RemoteSegment(
        f"{batches[0].base_offset}-{batches[-1].next_offset}",
        batches[0].base_offset,
        batches[-1].next_offset,
        sum(batch.size_bytes for batch in batches),
        batches[-1].leader_epoch,
        max_timestamp_ms,
    )
    assert remote.add(segment)
    log.tiered_end_offset = remote.end_offset
    return segment


def _filled(batches: int, config: LogConfig = _TIERED) -> tuple[Log, RemoteLog]:
    """A log whose closed segments are in the tier; the times are those of their first offsets."""
    log, remote = _log(batches, config), RemoteLog()
    while batches := len(remote.to_copy(log)):
        _copied(log, remote, max_timestamp_ms=max(0, remote.end_offset) * 10)
    return log, remote


def test_closed_segments_are_copied_in_order_and_the_active_one_is_not() -> None:
    _, remote = _filled(10)
    assert [segment[1:3] for segment in remote.segments] == [(0, 3), (3, 6), (6, 9)]
    assert remote.size_bytes == 900


@pytest.mark.parametrize(("high_watermark", "copied"), [(0, 0), (2, 0), (3, 1), (8, 2), (10, 3)])
def test_only_what_is_committed_is_copied(high_watermark: int, copied: int) -> None:
    log, remote = Log(_TIERED), RemoteLog()
    for _ in range(10):
        log.append(_batch().with_offset(log.end_offset, 1))
    log.update_high_watermark(high_watermark)
    while _copied(log, remote):
        pass
    assert len(remote.segments) == copied


def test_an_open_transaction_holds_copies_back() -> None:
    log, remote = _log(4), RemoteLog()
    open_one = RecordBatch(0, 1, 100, producer_id=1, producer_epoch=0, base_sequence=0)
    open_one.transactional = True
    log.append(open_one.with_offset(4, 1))
    for _ in range(5):
        log.append(_batch().with_offset(log.end_offset, 1))
    log.update_high_watermark(log.end_offset)
    assert log.last_stable_offset == 4
    _copied(log, remote)
    assert remote.to_copy(log) == [] and remote.end_offset == 3


@pytest.mark.parametrize("config", [{"is_tiered": False}, {"copies": False}])
def test_nothing_is_copied_of_who_says_so(config: dict[str, bool]) -> None:
    assert RemoteLog().to_copy(_log(10, _TIERED._replace(**config))) == []


def test_only_what_was_copied_goes_here() -> None:
    log, remote = _log(10), RemoteLog()
    assert not log.apply_retention() and log.local_start_offset == 0
    _copied(log, remote)
    assert log.apply_retention()
    assert (log.start_offset, log.local_start_offset) == (0, 3)
    with pytest.raises(KafkaError, match="OFFSET_MOVED_TO_TIERED_STORAGE"):
        log.read(2, 1)
    assert log.read(3, 1)[0].base_offset == 3
    log._check()


def test_local_retention_keeps_so_many_bytes() -> None:
    log, _ = _filled(10, _TIERED._replace(local_retention_bytes=450))
    assert log.apply_retention()
    assert log.local_start_offset == 3, "700 bytes are left; without the next 300 too few"


def test_a_segment_is_found_by_its_offsets() -> None:
    _, remote = _filled(10)
    found = [remote.segment_of(offset) for offset in (-1, 0, 2, 3, 8, 9)]
    assert [one and one.base_offset for one in found] == [None, 0, 0, 3, 6, None]


def test_a_leader_with_other_segments_goes_on_where_the_former_stopped() -> None:
    _, remote = _filled(10)
    other = _log(20, _TIERED._replace(segment_bytes=400))
    _copied(other, remote)
    assert remote.segments[-1][1:3] == (9, 12), "its segment from 8 on, without what is there"


def test_of_two_copies_of_the_same_one_is_kept() -> None:
    first, longer = RemoteSegment("a", 0, 3, 1, 1), RemoteSegment("b", 0, 6, 1, 1)
    within, after = RemoteSegment("c", 3, 6, 1, 1), RemoteSegment("d", 5, 9, 1, 1)
    remote = RemoteLog([after, within, longer, first])
    assert remote.segments == (longer, after)
    assert not remote.add(first)


def test_retention_by_bytes_counts_what_is_here_and_there_once() -> None:
    log, remote = _filled(10, _TIERED._replace(retention_bytes=500))
    assert remote.start_after_retention(log, 0) == 3, "of 1000 bytes 300 may go: 700 are left"
    log.apply_retention()
    assert log.local_start_offset == 9
    assert remote.start_after_retention(log, 0) == 3


def test_retention_by_time_takes_what_is_too_old() -> None:
    log, remote = _filled(10, _TIERED._replace(retention_ms=100))
    found = [remote.start_after_retention(log, now_ms) for now_ms in (100, 101, 130, 131, 500)]
    assert found == [0, 3, 3, 6, 9]


def test_what_lies_before_the_start_is_deleted() -> None:
    log, remote = _filled(10)
    assert remote.to_delete(log) == []
    log.delete_up_to(5)
    assert [segment.base_offset for segment in remote.to_delete(log)] == [0]
    log.configure(_TIERED._replace(is_tiered=False))
    assert len(remote.to_delete(log)) == 3


def test_what_an_unclean_leader_has_not_is_no_part_of_its_log() -> None:
    _, remote = _filled(10)
    shorter = _log(7)
    assert [segment.base_offset for segment in remote.not_of(shorter)] == [6]
    otherwise = _log(4)
    for _ in range(6):
        otherwise.append(_batch().with_offset(otherwise.end_offset, 2))
    otherwise.update_high_watermark(10)
    assert [segment.base_offset for segment in remote.not_of(otherwise)] == [3, 6]


def test_what_may_have_a_time_is_what_is_not_here() -> None:
    log, remote = _filled(10)
    assert list(remote.since(0, log)) == []
    log.apply_retention()
    assert [one.base_offset for one in remote.since(25, log)] == [3, 6]
    log.delete_up_to(7)
    assert [one.base_offset for one in remote.since(0, log)] == [6]


def test_a_follower_that_is_behind_begins_where_the_leader_s_own_log_does() -> None:
    log, _ = _filled(10)
    log.apply_retention()
    with pytest.raises(KafkaError) as failed:
        log.read(4, 1)
    follower = _log(4)
    assert take_response(follower, refusal(log, failed.value))
    assert (follower.start_offset, follower.local_start_offset, follower.end_offset) == (0, 9, 9)
    follower._check()


class _Tier:
    """What was copied, by its offsets."""

    def __init__(self) -> None:
        self.remote = RemoteLog()
        self.batches: dict[str, list[RecordBatch]] = {}

    def copy(self, log: Log) -> None:
        batches = self.remote.to_copy(log)
        segment = _copied(log, self.remote)
        if segment is not None:
            self.batches[segment.segment_id] = batches

    def read(self, offset: int) -> RecordBatch:
        segment = self.remote.segment_of(offset)
        assert segment is not None, offset
        return next(
            one
            for one in self.batches[segment.segment_id]
            if one.base_offset <= offset < one.next_offset
        )


class TieredReplicas(RuleBasedStateMachine):
    """Two replicas of other segments; each leads at times, copies and goes by its retention."""

    def __init__(self) -> None:
        super().__init__()
        self.replicas = [
            Log(_TIERED._replace(segment_bytes=size, local_retention_bytes=local))
            for size, local in ((300, 0), (700, 500))
        ]
        self.written: list[int] = []  # which batch each offset is of
        self.tier = _Tier()
        self.leads = 0
        self.epoch = 1

    @property
    def leader(self) -> Log:
        return self.replicas[self.leads]

    @rule(records=st.integers(1, 3), count=st.integers(1, 8))
    def append(self, records: int, count: int) -> None:
        for _ in range(count):
            batch = _batch(records).with_offset(self.leader.end_offset, self.epoch)
            self.written += [batch.base_offset] * records
            for log in self.replicas:
                log.append(batch)

    @rule(part=st.floats(0, 1))
    def commit(self, part: float) -> None:
        for log in self.replicas:
            log.update_high_watermark(max(log.high_watermark, round(part * self.leader.end_offset)))

    @rule()
    def copy(self) -> None:
        self.tier.copy(self.leader)

    @rule(which=st.integers(0, 1))
    def keep_less_here(self, which: int) -> None:
        log = self.replicas[which]
        log.tiered_end_offset = self.tier.remote.end_offset
        log.apply_retention()

    @rule(part=st.floats(0, 1))
    def delete(self, part: float) -> None:
        offset = round(part * min(log.high_watermark for log in self.replicas))
        for log in self.replicas:
            log.delete_up_to(offset)

    @rule(most=st.integers(0, 3_000))
    def retain(self, most: int) -> None:
        self.leader.configure(self.leader.config._replace(retention_bytes=most))
        start = self.tier.remote.start_after_retention(self.leader, 0)
        assert (
            self.leader.start_offset
            <= start
            <= max(self.leader.start_offset, self.tier.remote.end_offset)
        )
        for log in self.replicas:
            log.delete_up_to(min(start, log.high_watermark))

    @rule()
    def delete_there(self) -> None:
        for segment in self.tier.remote.to_delete(self.leader):
            self.tier.remote.remove(segment)

    @rule()
    def another_leads(self) -> None:
        self.leads = 1 - self.leads
        self.epoch += 1
        for log in self.replicas:
            log.epochs.assign(self.epoch, log.end_offset)

    @precondition(lambda self: self.leader.high_watermark < self.leader.end_offset)
    @rule()
    def lose_what_is_not_committed(self) -> None:
        committed = max(log.high_watermark for log in self.replicas)
        for log in self.replicas:
            log.truncate_to(committed)
        end = self.leader.end_offset
        for log in self.replicas:
            log.truncate_to(end)
        del self.written[end:]

    @invariant()
    def everything_is_here_or_there(self) -> None:
        assert self.tier.remote.not_of(self.leader) == []
        for log in self.replicas:
            log._check()
            for offset, batch in self._read(log):
                assert batch.base_offset == self.written[offset], offset

    def _read(self, log: Log) -> Iterator[tuple[int, RecordBatch]]:
        for offset in range(log.start_offset, log.end_offset):
            if offset >= log.local_start_offset:
                yield offset, log.read(offset, 1)[0]
                continue
            with pytest.raises(KafkaError) as moved:
                log.read(offset, 1)
            assert moved.value.code is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
            yield offset, self.tier.read(offset)


TestTieredReplicas = TieredReplicas.TestCase
TestTieredReplicas.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
