"""The buckets in use, in the order in which they fall due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timer.delay_queue import DelayQueue
from timer.timer_task_list import TimerTaskList


def offer(queue: DelayQueue, expiration_ms: int, level: int = 1, index: int = 0) -> TimerTaskList:
    """Put in a new bucket, and return it."""
    bucket = TimerTaskList(level, index)
    queue.offer(bucket, expiration_ms)
    assert bucket.expiration_ms == expiration_ms
    return bucket


def poll(queue: DelayQueue, now_ms: int) -> TimerTaskList | None:
    """Take out the first bucket if it is due."""
    queued = queue.first_due(now_ms)
    if queued is None:
        return None
    assert queue.first_due(now_ms) is queued, "it stays until it is removed"
    queue.remove(queued)
    return queued[3]


def test_an_empty_queue_has_nothing_due() -> None:
    queue = DelayQueue()
    assert len(queue) == 0
    assert queue.first_expiration_ms is None
    assert poll(queue, 2**63) is None


def test_a_bucket_is_due_at_its_expiration_and_not_before() -> None:
    queue = DelayQueue()
    bucket = offer(queue, 10)
    assert poll(queue, 9) is None
    assert queue.first_expiration_ms == 10
    assert poll(queue, 10) is bucket
    assert poll(queue, 10) is None


def test_buckets_of_one_expiration_are_polled_by_level_then_index() -> None:
    queue = DelayQueue()
    places = [(3, 2), (1, 1), (2, 5), (1, 0), (2, 4)]
    for level, index in places:
        offer(queue, 400, level, index)
    assert [(level, index) for _, level, index in queue.states()] == sorted(places)
    polled = [poll(queue, 400) for _ in places]
    assert [(bucket.level, bucket.index) for bucket in polled if bucket is not None] == sorted(
        places
    )


@given(st.lists(st.integers(0, 10**6), unique=True))
def test_buckets_are_polled_in_the_order_of_their_expiration(expirations: list[int]) -> None:
    queue = DelayQueue()
    for expiration_ms in expirations:
        offer(queue, expiration_ms)
    assert [expiration_ms for expiration_ms, *_ in queue.states()] == sorted(expirations)
    assert len(queue) == len(expirations), "to look takes nothing out"
    assert sorted(bucket.expiration_ms for bucket in queue) == sorted(expirations)
    polled: list[int] = []
    while (bucket := poll(queue, 10**6)) is not None:
        polled.append(bucket.expiration_ms)
    assert polled == sorted(expirations)


def test_a_driver_is_notified_of_an_earlier_bucket_only() -> None:
    told: list[int | None] = []
    queue = DelayQueue(on_earlier=lambda: told.append(queue.first_expiration_ms))
    for index, expiration_ms in enumerate([50, 60, 40, 45, 10]):
        offer(queue, expiration_ms, index=index)
    assert told == [50, 40, 10]


def test_a_cleared_queue_is_empty() -> None:
    queue = DelayQueue()
    offer(queue, 5)
    queue.clear()
    assert len(queue) == 0
    assert queue.first_expiration_ms is None


def test_a_bucket_that_has_its_expiration_is_not_queued_again() -> None:
    queue = DelayQueue()
    bucket = offer(queue, 5)
    queue.offer(bucket, 5)
    assert len(queue) == 1


def test_a_bucket_that_is_no_longer_first_is_not_removed() -> None:
    """A finalizer may add between the look and the removal; the bucket comes round once more."""
    queue = DelayQueue()
    late = offer(queue, 10)
    queued = queue.first_due(10)
    assert queued is not None
    early = offer(queue, 5)
    queue.remove(queued)
    assert poll(queue, 10) is early
    assert poll(queue, 10) is late
    queue.remove(queued)
    assert len(queue) == 0


def test_a_driver_is_notified_before_the_bucket_counts_as_queued() -> None:
    """An interrupt in between has the next add notify again."""
    bucket = TimerTaskList()
    told: list[int] = []
    queue = DelayQueue(on_earlier=lambda: told.append(bucket.expiration_ms))
    queue.offer(bucket, 5)
    assert told == [-1]
