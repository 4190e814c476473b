"""A follower in a fetch session has the logs of one that requests all partitions each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.kafka import (
    ErrorCode,
    FetchParams,
    Partition,
    PartitionFetch,
    PartitionFetchResponse,
    RecordBatch,
    ReplicaManager,
    TopicPartition,
)
from purgatory.kafka.replication.replica_fetcher import BACKOFF_MS, FollowerFetching
from purgatory.kafka.replication.requests import SessionFetchRequest, SessionFetchResponse
from tests.unit.kafka.conftest import Broker
from timer import ManualClock

PARTITIONS = [TopicPartition("topic", number) for number in range(4)]
LEADER, FOLLOWER = 0, 1
MAX_LAG_MS = 2_000
MAX_WAIT_MS = 500
SIZE_BYTES = 100
_NONE = ErrorCode.NONE


class Pair:
    """A leader and its follower, in a world of their own."""

    def __init__(self, clock: ManualClock, max_bytes: int = 2**31) -> None:
        self.agrees = True
        self.clock = clock
        self.max_bytes = max_bytes
        self.leader = Broker(
            LEADER, clock, max_lag_ms=MAX_LAG_MS, on_isr_change=lambda *_: self.agrees
        )
        self.follower = Broker(FOLLOWER, clock)
        self.fetching = FollowerFetching(self.follower.manager, LEADER)
        self.epoch = 0
        self.elect()

    def elect(self) -> None:
        """Begin a new term of the same leader."""
        self.epoch += 1
        for one in PARTITIONS:
            state = self.leader.manager.partition(one)
            isr = (LEADER, FOLLOWER) if state is None else state.isr
            self.leader.manager.become_leader(one, self.epoch, isr, (LEADER, FOLLOWER))
        for one in PARTITIONS:
            self.follow(one, LEADER)

    def follow(self, topic_partition: TopicPartition, leader_id: int) -> None:
        """Have the follower follow a leader."""
        self.follower.manager.become_follower(
            topic_partition, leader_id, self.epoch, (LEADER, FOLLOWER)
        )
        self.fetching.update_partition(topic_partition)

    def restart_leader(self) -> None:
        """Give the leader a new process on the same logs, without sessions."""
        logs = self.leader.manager.detach_logs()
        self.leader = Broker(LEADER, self.clock, max_lag_ms=MAX_LAG_MS, logs=logs)
        self.elect()

    def append(self, topic_partition: TopicPartition) -> None:
        """Append a record at the leader."""
        batch = RecordBatch(0, 1, SIZE_BYTES)
        self.leader.manager.append_records(0, 1, {topic_partition: batch}, lambda _: None)

    def delete(self, topic_partition: TopicPartition) -> None:
        """Delete the committed records."""
        self.leader.manager.delete_records(0, {topic_partition: -1}, lambda _: None)

    def fetch_all(self) -> None:
        """Request all partitions without a session, and apply the responses."""
        fetches: dict[TopicPartition, PartitionFetch] = {}
        for one in PARTITIONS:
            fetch = self.follower.manager.follower_fetch(one)
            assert fetch is not None
            fetches[one] = fetch
        responses: list[dict[TopicPartition, PartitionFetchResponse]] = []
        params = FetchParams(FOLLOWER, max_wait_ms=0)
        self.leader.manager.fetch_records(params, fetches, responses.append)
        for one, response in responses[0].items():
            self.follower.manager.append_as_follower(one, fetches[one], response)

    def send(
        self,
        respond: Callable[[SessionFetchResponse], object],
        max_wait_ms: int = MAX_WAIT_MS,
        min_bytes: int = 1,
    ) -> SessionFetchRequest:
        """Send the follower's next request."""
        request = self.fetching.next_request()
        assert request is not None
        params = FetchParams(FOLLOWER, max_wait_ms, min_bytes, self.max_bytes)
        self.leader.manager.fetch_in_session(params, request, respond)
        return request

    def fetch(self) -> tuple[set[TopicPartition], set[TopicPartition]]:
        """Fetch once, without a wait; return which partitions were in the request, and in the
        response. After an error of the session, begin another."""
        responses: list[SessionFetchResponse] = []
        request = self.send(responses.append, max_wait_ms=0)
        [response] = responses
        self.fetching.handle_response(response)
        if response.error is not _NONE:
            return self.fetch()
        return set(request.fetches), set(response.partitions)

    def settle(self) -> None:
        """Fetch until there is nothing new."""
        while self.fetch() != (set(), set()):
            pass

    def replicas(self) -> list[tuple[object, ...]]:
        """Return the state in which followers with a session and without agree."""
        return [
            (
                leads.log_end_offset,
                leads.high_watermark,
                leads.isr,
                follows.log_end_offset,
                follows.high_watermark,
                follows.log_start_offset,
            )
            for leads, follows in zip(
                _partitions(self.leader.manager), _partitions(self.follower.manager), strict=True
            )
        ]

    def check(self) -> None:
        self.leader.check()
        self.follower.check()


def _partitions(manager: ReplicaManager) -> list[Partition]:
    return [one for one in map(manager.partition, PARTITIONS) if one is not None]


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(PARTITIONS)),
        st.tuples(st.just("delete"), st.sampled_from(PARTITIONS)),
        st.tuples(st.just("wait"), st.sampled_from([1, 100, 499, 500, 1_500, 3_000])),
        st.tuples(st.just("fetch"), st.none()),
        st.tuples(st.just("lose"), st.none()),
        st.tuples(st.just("shrink"), st.none()),
        st.tuples(st.just("elect"), st.none()),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(steps=_steps)
def test_sessions_and_full_fetches_give_followers_the_same_logs(
    steps: list[tuple[str, object]],
) -> None:
    clock = ManualClock()
    full, in_session = Pair(clock), Pair(clock)
    for what, argument in steps:
        for pair in (full, in_session):
            if isinstance(argument, TopicPartition):
                (pair.append if what == "append" else pair.delete)(argument)
            elif what == "shrink":
                pair.leader.manager.maybe_shrink_isr()
            elif what == "elect":
                pair.elect()
            elif what == "restart":
                pair.restart_leader()
        if isinstance(argument, int):
            clock.advance(argument)
        elif what == "fetch":
            full.fetch_all()
            in_session.fetch()
        elif what == "lose" and in_session.fetching.requested:
            # The leader takes note of the fetch; with a session, a full one follows.
            in_session.fetching.handle_error()
        assert full.replicas() == in_session.replicas(), (what, argument)
    for pair in (full, in_session):
        pair.check()


def test_fetch_reads_only_changed_partitions() -> None:
    pair = Pair(ManualClock())
    written = {PARTITIONS[2]}
    assert pair.fetch() == (set(PARTITIONS), set(PARTITIONS)), "the first fetch requests all"
    assert pair.fetch() == (set(), set())
    pair.append(PARTITIONS[2])
    assert pair.fetch() == (set(), written), "the record comes"
    assert pair.fetch() == (written, set()), "the follower's fetch moves the high watermark"
    assert pair.fetch() == (set(), written), "the high watermark comes"
    assert pair.fetch() == (set(), set())


def test_waiting_fetch_is_completed_by_the_first_append() -> None:
    pair = Pair(ManualClock())
    pair.append(PARTITIONS[0])
    for _ in range(2):
        pair.fetch()
    responses: list[SessionFetchResponse] = []
    pair.send(responses.append)
    pair.clock.advance(MAX_WAIT_MS - 1)
    pair.leader.timer.advance_clock(0)
    assert not responses, "a watermark that moved is not worth a response"
    pair.append(PARTITIONS[1])
    pair.append(PARTITIONS[1])
    [response] = responses
    assert {one: len(news.batches) for one, news in response.partitions.items()} == {
        PARTITIONS[1]: 1,
        PARTITIONS[0]: 0,
    }
    pair.leader.check()


def test_response_at_the_timeout_has_the_moved_watermarks() -> None:
    pair = Pair(ManualClock())
    pair.append(PARTITIONS[0])
    for _ in range(2):
        pair.fetch()
    responses: list[SessionFetchResponse] = []
    pair.send(responses.append)
    pair.clock.advance(MAX_WAIT_MS)
    pair.leader.timer.advance_clock(0)
    [response] = responses
    assert set(response.partitions) == {PARTITIONS[0]}
    pair.fetching.handle_response(response)
    assert _partitions(pair.follower.manager)[0].high_watermark == 1


def test_bytes_are_counted_over_all_partitions_of_the_session() -> None:
    pair = Pair(ManualClock())
    pair.settle()
    responses: list[SessionFetchResponse] = []
    pair.send(responses.append, min_bytes=3 * SIZE_BYTES)
    for one in PARTITIONS[:2]:
        pair.append(one)
    assert not responses
    pair.append(PARTITIONS[0])
    assert [set(response.partitions) for response in responses] == [set(PARTITIONS[:2])]


def test_change_of_leader_ends_the_wait_whatever_min_bytes_is() -> None:
    pair = Pair(ManualClock())
    pair.settle()
    responses: list[SessionFetchResponse] = []
    pair.send(responses.append, min_bytes=3 * SIZE_BYTES)
    pair.leader.manager.become_leader(PARTITIONS[1], 2, (LEADER, FOLLOWER), (LEADER, FOLLOWER))
    [response] = responses
    assert {one: news.error for one, news in response.partitions.items()} == {
        PARTITIONS[1]: ErrorCode.FENCED_LEADER_EPOCH
    }


def test_partitions_get_equal_parts_of_full_responses() -> None:
    pair = Pair(ManualClock(), max_bytes=SIZE_BYTES)
    pair.settle()
    for _ in range(3):
        for one in PARTITIONS:
            pair.append(one)
    came = []
    for _ in range(12):
        responses: list[SessionFetchResponse] = []
        pair.send(responses.append, max_wait_ms=0)
        came += [one for one, news in responses[0].partitions.items() if news.batches]
        pair.fetching.handle_response(responses[0])
    for first in range(0, 12, 4):
        assert set(came[first : first + 4]) == set(PARTITIONS), came


def test_next_fetch_of_a_session_ends_the_former_wait() -> None:
    pair = Pair(ManualClock())
    pair.settle()
    responses: list[SessionFetchResponse] = []
    request = pair.send(responses.append)
    params = FetchParams(FOLLOWER)
    again = replace(request, session_epoch=request.session_epoch + 1)
    pair.leader.manager.fetch_in_session(params, again, responses.append)
    assert [response.error for response in responses] == [_NONE]
    assert pair.leader.fetches.num_delayed == 1
    pair.leader.manager.end_session_wait(FOLLOWER)
    assert [response.error for response in responses] == [_NONE, _NONE]
    pair.leader.check()


@pytest.mark.parametrize(
    ("session_id", "session_epoch", "error"),
    [
        (1, 7, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (7, 2, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ],
)
def test_follower_replaces_an_unknown_session(
    session_id: int, session_epoch: int, error: ErrorCode
) -> None:
    pair = Pair(ManualClock())
    pair.settle()
    request = pair.fetching.next_request()
    assert request is not None
    other = replace(request, session_id=session_id, session_epoch=session_epoch)
    responses: list[SessionFetchResponse] = []
    params = FetchParams(FOLLOWER, max_wait_ms=0)
    pair.leader.manager.fetch_in_session(params, other, responses.append)
    assert responses == [SessionFetchResponse(error)]
    pair.fetching.handle_response(responses[0])
    assert pair.fetch() == (set(PARTITIONS), set(PARTITIONS))
    assert len(pair.leader.manager.fetch_sessions()) == 1


def test_a_lost_response_is_fetched_again_in_another_session() -> None:
    pair = Pair(ManualClock())
    pair.settle()
    lost: list[SessionFetchResponse] = []
    pair.append(PARTITIONS[3])
    pair.send(lost.append)
    assert set(lost[0].partitions) == {PARTITIONS[3]}
    pair.fetching.handle_error()
    pair.settle()
    assert _partitions(pair.follower.manager)[3].high_watermark == 1


def test_fetch_of_a_replaced_session_still_waits_and_is_notified() -> None:
    """Its connection broke: the follower began another session, and ignores the response."""
    pair = Pair(ManualClock())
    pair.settle()
    responses: list[SessionFetchResponse] = []
    pair.send(responses.append)
    pair.fetching.handle_error()
    pair.settle()
    assert not responses
    assert len(pair.leader.manager.fetch_sessions()) == 2
    pair.append(PARTITIONS[0])
    assert [set(response.partitions) for response in responses] == [{PARTITIONS[0]}]
    pair.fetching.handle_error()
    pair.settle()
    assert len(pair.leader.manager.fetch_sessions()) == 1


def test_partition_no_longer_followed_leaves_the_session() -> None:
    pair = Pair(ManualClock())
    pair.settle()
    pair.follow(PARTITIONS[0], -1)
    request = pair.fetching.next_request()
    assert request is not None
    assert (request.fetches, request.forgotten) == ({}, (PARTITIONS[0],))
    params = FetchParams(FOLLOWER, max_wait_ms=0)
    pair.leader.manager.fetch_in_session(params, request, pair.fetching.handle_response)
    [session] = pair.leader.manager.fetch_sessions()
    assert session.topic_partitions == tuple(PARTITIONS[1:])
    pair.append(PARTITIONS[0])
    assert pair.fetch() == (set(), set())


def test_failing_partition_leaves_the_session_for_a_backoff() -> None:
    pair = Pair(ManualClock())
    pair.settle()
    pair.leader.manager.become_leader(PARTITIONS[1], 2, (LEADER, FOLLOWER), (LEADER, FOLLOWER))
    assert pair.fetch() == (set(), {PARTITIONS[1]})
    assert pair.fetching.is_backing_off
    assert pair.fetch() == (set(), set()), "the partition is forgotten"
    pair.epoch = 2
    pair.follow(PARTITIONS[1], LEADER)
    pair.clock.advance(BACKOFF_MS)
    assert pair.fetch() == ({PARTITIONS[1]}, {PARTITIONS[1]})


def test_follower_without_fetches_lags_since_its_last_fetch() -> None:
    clock = ManualClock()
    pair = Pair(clock)
    for _ in range(20):
        pair.fetch()
        clock.advance(500)
    pair.append(PARTITIONS[0])
    clock.advance(MAX_LAG_MS - 500)
    pair.leader.manager.maybe_shrink_isr()
    assert _partitions(pair.leader.manager)[0].isr == (LEADER, FOLLOWER)
    clock.advance(1)
    pair.leader.manager.maybe_shrink_isr()
    assert _partitions(pair.leader.manager)[0].isr == (LEADER,)
    assert _partitions(pair.leader.manager)[1].isr == (LEADER, FOLLOWER), (
        "the follower has all records of it"
    )


def _with_a_follower_out_of_the_isr(clock: ManualClock) -> Pair:
    """Return two of which one did not fetch the first partition's record in time."""
    pair = Pair(clock)
    pair.fetch()
    pair.append(PARTITIONS[0])
    clock.advance(MAX_LAG_MS + 1)
    pair.leader.manager.maybe_shrink_isr()
    assert _partitions(pair.leader.manager)[0].isr == (LEADER,)
    return pair


def test_follower_removed_from_the_isr_returns_without_an_append() -> None:
    pair = _with_a_follower_out_of_the_isr(ManualClock())
    for _ in range(2):
        pair.fetch()
    assert _partitions(pair.leader.manager)[0].isr == (LEADER, FOLLOWER)


def test_follower_refused_by_the_isr_retries_at_each_fetch() -> None:
    clock = ManualClock()
    pair = _with_a_follower_out_of_the_isr(clock)
    pair.agrees = False
    for _ in range(3):
        pair.fetch()
    responses: list[SessionFetchResponse] = []
    pair.send(responses.append)
    assert not responses, "a refusal sends no response, which would make the follower fetch again"
    assert pair.leader.fetches.num_delayed == 1
    clock.advance(MAX_WAIT_MS)
    pair.leader.timer.advance_clock(0)
    pair.fetching.handle_response(responses[0])
    assert _partitions(pair.leader.manager)[0].isr == (LEADER,)
    pair.agrees = True
    pair.fetch()
    assert _partitions(pair.leader.manager)[0].isr == (LEADER, FOLLOWER)


def test_append_wakes_a_consumer_beside_a_session() -> None:
    """An append looks for other waiters only if there are some beside sessions."""
    pair = Pair(ManualClock())
    pair.settle()
    manager = pair.leader.manager
    responses: list[SessionFetchResponse] = []
    read: list[dict[TopicPartition, PartitionFetchResponse]] = []
    pair.send(responses.append)
    end = _partitions(manager)[0].high_watermark
    manager.fetch_records(FetchParams(), {PARTITIONS[0]: PartitionFetch(end)}, read.append)
    manager._check()
    assert not responses and not read
    pair.append(PARTITIONS[0])
    [response] = responses
    pair.fetching.handle_response(response)
    pair.fetch()  # reports that the follower has the record
    assert [len(answers[PARTITIONS[0]].batches) for answers in read] == [1]
    manager._check()
