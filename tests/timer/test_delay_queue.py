"""The buckets in use, in the order in which they fall due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timer import DelayQueue, TimerTaskList


def bucket_at(expiration_ms: int, level: int = 1, index: int = 0) -> TimerTaskList:
    bucket = TimerTaskList(level, index)
    assert bucket.set_expiration(expiration_ms)
    return bucket


def test_an_empty_queue_has_nothing_due() -> None:
    queue = DelayQueue()
    assert len(queue) == 0
    assert queue.first_expiration_ms is None
    assert queue.poll(2**63) is None


def test_a_bucket_is_due_at_its_expiration_and_not_before() -> None:
    queue = DelayQueue()
    bucket = bucket_at(10)
    queue.offer(bucket)
    assert queue.poll(9) is None
    assert queue.first_expiration_ms == 10
    assert queue.poll(10) is bucket
    assert queue.poll(10) is None


def test_buckets_of_one_expiration_come_by_level_then_index() -> None:
    queue = DelayQueue()
    places = [(3, 2), (1, 1), (2, 5), (1, 0), (2, 4)]
    for level, index in places:
        queue.offer(bucket_at(400, level, index))
    assert [(bucket.level, bucket.index) for bucket in queue.in_order()] == sorted(places)
    polled = [queue.poll(400) for _ in places]
    assert [(bucket.level, bucket.index) for bucket in polled if bucket is not None] == sorted(
        places
    )


@given(st.lists(st.integers(0, 10**6), unique=True))
def test_buckets_come_in_the_order_of_their_expiration(expirations: list[int]) -> None:
    queue = DelayQueue()
    for expiration_ms in expirations:
        queue.offer(bucket_at(expiration_ms))
    assert [bucket.expiration_ms for bucket in queue.in_order()] == sorted(expirations)
    assert len(queue) == len(expirations), "in_order takes nothing out"
    assert sorted(bucket.expiration_ms for bucket in queue) == sorted(expirations)
    polled: list[int] = []
    while (bucket := queue.poll(10**6)) is not None:
        polled.append(bucket.expiration_ms)
    assert polled == sorted(expirations)


def test_who_waits_is_told_of_an_earlier_bucket_only() -> None:
    told: list[int | None] = []
    queue = DelayQueue(on_earlier=lambda: told.append(queue.first_expiration_ms))
    for index, expiration_ms in enumerate([50, 60, 40, 45, 10]):
        queue.offer(bucket_at(expiration_ms, index=index))
    assert told == [50, 40, 10]


def test_a_cleared_queue_is_empty() -> None:
    queue = DelayQueue()
    queue.offer(bucket_at(5))
    queue.clear()
    assert len(queue) == 0
    assert queue.first_expiration_ms is None
