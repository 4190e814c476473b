"""Fetches and lookups that need the remote tier: what ends their wait, and what they are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from purgatory import DelayedOperationPurgatory
from purgatory.kafka import ErrorCode, FetchIsolation, LogConfig, RecordBatch, TopicPartition
from purgatory.kafka.requests import AbortedTransaction
from purgatory.kafka.tiers.remote_log import RemoteLog, RemoteSegment
from purgatory.kafka.tiers.remote_offsets import RemoteOffset
from purgatory.kafka.tiers.remote_tasks import (
    RemoteAccess,
    RemoteLookup,
    RemoteRead,
    RemoteTask,
)
from tests.kafka.conftest import OTHER, TP, Answer, Broker, append, offsets
from timer import InlineExecutor, ManualClock, SystemTimer

_TIERED = LogConfig(segment_bytes=300, is_tiered=True, local_retention_bytes=0)
_MAX_WAIT_MS = 200
_ABORTED = AbortedTransaction(7, 1, 2)


class _Tier:
    """Has the first nine records of a partition, and notes what is read of it."""

    def __init__(self) -> None:
        self.segments = [
            RemoteSegment(str(base), base, base + 3, 300, 1, 10 * base, (_ABORTED,) * (base == 0))
            for base in (0, 3, 6)
        ]
        self.logs: dict[TopicPartition, RemoteLog] = {}
        self.begun: list[RemoteTask] = []
        self.at_once = False

    def log_of(self, topic_partition: TopicPartition) -> RemoteLog:
        return self.logs.get(topic_partition, RemoteLog())

    def begin(self, task: RemoteTask) -> None:
        self.begun.append(task)
        if self.at_once:
            self.finish(task)

    def finish(self, task: RemoteTask, error: ErrorCode = ErrorCode.NONE) -> None:
        if isinstance(task, RemoteRead):
            first = task.segment.base_offset
            task.batches = tuple(
                RecordBatch(0, 1, 100).with_offset(offset, 1)
                for offset in range(first, first + 3)
                if offset >= task.offset
            )
        elif isinstance(task, RemoteLookup):
            task.offset, task.found_ms, task.leader_epoch = 5, 50, 1
        task.done(error)


class _World:
    """Broker 0 leads two partitions alone; of the first all but the end is in the tier."""

    def __init__(self, make_broker: Callable[..., Broker], clock: ManualClock) -> None:
        self.tier = _Tier()
        self.timer = SystemTimer("tier", clock=clock, executor=InlineExecutor())
        self.fetches, self.lookups = (
            DelayedOperationPurgatory(name, timer=self.timer, reaper_enabled=False)
            for name in ("RemoteFetch", "RemoteListOffsets")
        )
        self.access = RemoteAccess(self.tier, self.fetches, self.lookups, _MAX_WAIT_MS)
        self.broker = make_broker(0, log_config=_TIERED, remote=self.access)
        for key in (TP, OTHER):
            self.broker.lead(isr=(0,), replicas=(0,), tp=key)
            append(self.broker, 10, key)
        self.to_tier(TP)

    def to_tier(self, key: TopicPartition) -> None:
        self.tier.logs[key] = RemoteLog(self.tier.segments)
        self.broker.manager.note_tiered(key, 9)
        assert self.broker.replica(key).log.local_start_offset == 9

    def pass_time(self, ms: int) -> None:
        self.broker.pass_time(ms)
        self.timer.advance_clock(0)

    def find(self, times_ms: Mapping[TopicPartition, int]) -> Answer[Any]:
        answer: Answer[Any] = Answer()
        assert self.broker.manager.remote_offsets is not None
        self.broker.manager.remote_offsets.find(
            _MAX_WAIT_MS, times_ms, lambda found: answer(dict(found))
        )
        return answer

    def check(self) -> None:
        for purgatory in (self.fetches, self.lookups):
            purgatory._check()
            assert purgatory.num_delayed == purgatory.watched == 0
            assert purgatory.counters.missed_wakeups == 0


@pytest.fixture
def world(make_broker: Callable[..., Broker], clock: ManualClock) -> Any:
    made = _World(make_broker, clock)
    yield made
    made.check()


def _code_of(answer: Answer[Any], key: TopicPartition = TP) -> ErrorCode:
    found: ErrorCode = answer.of(key).error
    return found


# ---- fetches


def test_it_is_answered_when_it_was_read(world: _World) -> None:
    answer = world.broker.fetch(4)
    [read] = world.tier.begun
    assert isinstance(read, RemoteRead)
    assert (read.segment.base_offset, read.offset, read.max_bytes) == (3, 4, 10_000)
    assert not answer.given
    world.tier.finish(read)
    response = answer.of()
    assert (response.error, offsets(response), response.size_bytes) == (0, [4, 5], 200)
    assert (response.log_start_offset, response.high_watermark) == (0, 10)


def test_a_tier_that_is_quick_answers_at_once(world: _World) -> None:
    world.tier.at_once = True
    assert offsets(world.broker.fetch(0).of()) == [0, 1, 2]
    assert world.fetches.counters.outcomes["immediate"] == 1


def test_of_two_partitions_each_has_its_own(world: _World) -> None:
    answer = world.broker.fetch(1, tps=(TP, OTHER))
    assert len(world.tier.begun) == 1, "the other one is here"
    world.tier.finish(world.tier.begun[0])
    assert offsets(answer.of(TP)) == [1, 2]
    assert offsets(answer.of(OTHER)) == [1, 2]


def test_it_waits_for_all_that_is_read(world: _World) -> None:
    world.to_tier(OTHER)
    answer = world.broker.fetch(0, tps=(TP, OTHER))
    first, second = world.tier.begun
    world.tier.finish(second)
    assert not answer.given
    world.tier.finish(first)
    assert offsets(answer.of(TP)) == offsets(answer.of(OTHER)) == [0, 1, 2]


def test_the_bytes_of_a_request_are_for_all_its_partitions(world: _World) -> None:
    world.to_tier(OTHER)
    world.tier.at_once = True
    answer = world.broker.fetch(0, tps=(TP, OTHER), max_bytes=200)
    assert len(world.tier.begun) == 1, "nothing is left for the other"
    assert (answer.of(OTHER).error, answer.of(OTHER).batches) == (0, ())


def test_when_time_is_up_what_was_not_read_is_empty_and_no_error(world: _World) -> None:
    world.to_tier(OTHER)
    answer = world.broker.fetch(0, tps=(TP, OTHER), max_wait_ms=1)
    first, second = world.tier.begun
    world.tier.finish(second)
    world.pass_time(_MAX_WAIT_MS - 1)
    assert not answer.given, "its own time is not what counts"
    world.pass_time(1)
    assert (_code_of(answer), offsets(answer.of())) == (0, [])
    assert offsets(answer.of(OTHER)) == [0, 1, 2]
    assert first.is_cancelled and not second.is_cancelled
    world.tier.finish(first)  # too late: nobody is told


def test_a_failure_is_that_partition_s_alone(world: _World) -> None:
    answer = world.broker.fetch(0, tps=(TP, OTHER))
    world.tier.begun[0].done(ErrorCode.KAFKA_STORAGE_ERROR)
    assert (_code_of(answer), _code_of(answer, OTHER)) == (56, 0)
    assert offsets(answer.of(OTHER)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("lose", "code"),
    [
        (lambda it: it.become_follower(TP, 1, 2), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (lambda it: it.stop_replica(TP), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (lambda it: it.delete_topic(TP.topic), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda it: it.mark_offline(TP), ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_a_partition_that_is_lost_ends_the_wait(
    world: _World, lose: Callable[[Any], object], code: ErrorCode
) -> None:
    answer, found = world.broker.fetch(0), world.find({TP: 0})
    lose(world.broker.manager)
    assert _code_of(answer) is code
    assert found.of() == RemoteOffset(code)
    assert all(task.is_cancelled for task in world.tier.begun)


def test_what_is_deleted_meanwhile_is_out_of_range(world: _World) -> None:
    answer = world.broker.fetch(0)
    world.broker.delete_records(5)
    assert not answer.given
    world.tier.finish(world.tier.begun[0])
    assert (_code_of(answer), answer.of().batches) == (ErrorCode.OFFSET_OUT_OF_RANGE, ())
    assert answer.of().log_start_offset == 5


def test_what_is_in_no_segment_is_out_of_range(world: _World) -> None:
    world.tier.logs[TP] = RemoteLog(world.tier.segments[1:])
    assert _code_of(world.broker.fetch(1)) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert world.tier.begun == []


def test_a_read_committed_reader_is_told_what_was_aborted(world: _World) -> None:
    world.tier.at_once = True
    for isolation, aborted in (
        (FetchIsolation.TXN_COMMITTED, (_ABORTED,)),
        (FetchIsolation.HIGH_WATERMARK, ()),
    ):
        answer = world.broker.fetch(0, isolation=isolation)
        assert answer.of().aborted_transactions == aborted
    later = world.broker.fetch(3, isolation=FetchIsolation.TXN_COMMITTED)
    assert later.of().aborted_transactions == ()


def test_a_follower_is_told_where_the_log_begins_here(world: _World) -> None:
    world.broker.lead(epoch=2, isr=(0,), replicas=(0, 1))
    answer = world.broker.fetch(0, replica_id=1, max_wait_ms=0).of()
    assert answer.error is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    assert (answer.local_start_offset, answer.log_start_offset) == (9, 0)
    assert world.tier.begun == []


def test_an_operation_that_fails_is_answered(world: _World) -> None:
    answer, found = world.broker.fetch(0, tps=(TP, OTHER)), world.find({TP: 0})
    world.fetches.close("fail")
    world.lookups.close("fail")
    assert _code_of(answer) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert offsets(answer.of(OTHER)) == [0, 1, 2]
    assert found.of().error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert all(task.is_cancelled for task in world.tier.begun)


# ---- lookups


def test_a_lookup_is_answered_when_it_is_done(world: _World) -> None:
    found = world.find({TP: 25, OTHER: 25})
    [lookup] = world.tier.begun
    assert isinstance(lookup, RemoteLookup)
    assert [one.base_offset for one in lookup.segments] == [3, 6]
    world.tier.finish(lookup)
    assert found.all == {TP: RemoteOffset(ErrorCode.NONE, 5, 50, 1)}, "the other one is here"


def test_when_time_is_up_each_lookup_has_its_own_answer(world: _World) -> None:
    world.to_tier(OTHER)
    found = world.find({TP: 0, OTHER: 0})
    world.tier.finish(world.tier.begun[0])
    world.pass_time(_MAX_WAIT_MS)
    assert found.all == {
        TP: RemoteOffset(ErrorCode.NONE, 5, 50, 1),
        OTHER: RemoteOffset(ErrorCode.REQUEST_TIMED_OUT),
    }


def test_a_lookup_that_failed_says_so(world: _World) -> None:
    found = world.find({TP: 0})
    world.tier.begun[0].done(ErrorCode.CORRUPT_MESSAGE)
    assert found.all == {TP: RemoteOffset(ErrorCode.CORRUPT_MESSAGE)}


def test_what_is_newer_than_all_there_is_looked_for_here(world: _World) -> None:
    assert world.find({TP: 61}).all == {}
    assert world.tier.begun == []


def test_a_lookup_in_a_later_term_is_none_of_this_one(world: _World) -> None:
    found = world.find({TP: 0})
    world.broker.manager.become_follower(TP, 1, 2)
    assert found.of().error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.broker.lead(epoch=3, isr=(0,), replicas=(0,))
    world.tier.finish(world.tier.begun[0])
    assert len(found.all) == 1
