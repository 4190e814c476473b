"""Replicas that are copied no quicker than a rate: until they are in sync, and no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from purgatory.kafka import FetchParams, LogConfig, RecordBatch
from purgatory.kafka.follower_fetching import FollowerFetching
from purgatory.kafka.replication_throttle import ReplicationThrottle, is_listed
from tests.kafka.conftest import OTHER, TP, Broker
from timer import ManualClock


@pytest.mark.parametrize(
    ("replicas", "listed"),
    [("", False), ("*", True), ("0:1", True), ("1:0,0:1", True), ("0:11,10:1", False)],
)
def test_a_list_names_replicas_by_partition_and_broker(replicas: str, listed: bool) -> None:
    assert is_listed(replicas, 0, 1) is listed


def test_what_was_copied_takes_its_time(clock: ManualClock) -> None:
    throttle = ReplicationThrottle(clock.now_ms)
    throttle.count(10_000)
    assert throttle.wait_ms() == 0, "without a rate nothing waits"
    throttle.set_rate(1_000)
    assert throttle.wait_ms() == 0
    throttle.count(1_500)
    assert throttle.wait_ms() == 1_500
    clock.advance(1_000)
    throttle.count(500)
    assert throttle.wait_ms() == 1_000
    clock.advance(2_000)
    assert throttle.wait_ms() == 0
    throttle.count(1_000)
    assert throttle.wait_ms() == 1_000, "what wasn't used before is no credit"
    throttle.set_rate(2_000)
    assert throttle.wait_ms() == 0
    throttle.set_rate(0)
    assert throttle.wait_ms() > 0


class _Moved:
    """Broker 1 begins to copy two partitions of 30 batches; the first one is throttled."""

    def __init__(self, make_broker: Callable[..., Broker], clock: ManualClock) -> None:
        self.clock = clock
        self.leader = make_broker(0, log_config=LogConfig())
        self.follower = make_broker(1, log_config=LogConfig())
        for key in (TP, OTHER):
            self.leader.lead(isr=(0,), replicas=(0, 1), tp=key)
            for _ in range(30):
                self.leader.produce(RecordBatch(0, 1, 100), acks=1, tps=(key,))
            self.follower.manager.become_follower(key, 0, 1, (0, 1))
        self.throttle = ReplicationThrottle(clock.now_ms)
        self.throttle.set_rate(1_000)
        self.in_sync = False
        self.begin()

    def begin(self) -> None:
        """Fetch with a new fetcher, which knows nothing of what was copied."""
        self.fetching = FollowerFetching(
            self.follower.manager,
            0,
            400,
            lambda key: (self.throttle,) if key == TP else (),
            lambda _: self.in_sync,
        )
        self.fetching.start_anew()

    def turn(self) -> None:
        asked = self.fetching.next_fetches()
        answers = self.leader.manager.fetch_in_session(FetchParams(1, 0), asked, lambda _: None)
        assert answers is not None
        self.fetching.take(answers)

    def copied(self) -> tuple[int, int]:
        one, other = self.follower.replica(TP), self.follower.replica(OTHER)
        return one.log_end_offset, other.log_end_offset


@pytest.fixture
def moved(make_broker: Callable[..., Broker], clock: ManualClock) -> _Moved:
    return _Moved(make_broker, clock)


def test_a_replica_that_is_behind_is_copied_at_the_rate_and_others_are_not_held(
    moved: _Moved,
) -> None:
    for _ in range(10):
        moved.turn()
    assert moved.copied() == (4, 30), "400 bytes, for 400 ms"
    moved.clock.advance(399)
    moved.turn()
    assert moved.copied() == (4, 30)
    for round_ in range(2, 8):
        moved.clock.advance(1 if round_ == 2 else 400)
        moved.turn()
        assert moved.copied() == (4 * round_, 30)


def test_one_that_is_in_sync_is_not_held(moved: _Moved) -> None:
    moved.throttle.set_rate(None)
    for _ in range(10):
        moved.turn()
    assert moved.copied() == (30, 30)
    moved.throttle.set_rate(1_000)
    for number in range(31, 41):
        moved.leader.produce(acks=1)
        moved.turn()
        assert moved.copied() == (number, 30)
        moved.turn()  # which tells how far it is


def test_one_that_is_in_sync_is_not_held_by_a_fetcher_that_is_new(moved: _Moved) -> None:
    moved.throttle.set_rate(None)
    for _ in range(10):
        moved.turn()
    moved.throttle.set_rate(0)
    moved.leader.produce(acks=1)
    moved.begin()
    for _ in range(5):
        moved.clock.advance(10_000)
        moved.turn()
    assert moved.copied() == (30, 30), "it isn't known to be in sync"
    moved.in_sync = True
    moved.clock.advance(10_000)
    moved.turn()
    assert moved.copied() == (31, 30)


def test_a_rate_of_nothing_lets_nothing_pass(moved: _Moved) -> None:
    moved.turn()
    moved.throttle.set_rate(0)
    for _ in range(5):
        moved.clock.advance(10_000)
        moved.turn()
    assert moved.copied()[0] == 4
    moved.throttle.set_rate(None)
    moved.clock.advance(1_000)
    for _ in range(10):
        moved.turn()
    assert moved.copied() == (30, 30)
