"""A bucket: order, removal from anywhere, its expiration, and emptying it."""

from __future__ import annotations

import threading

from tests.timer.named_task import NamedTask
from timer import TimerTask, TimerTaskEntry, TimerTaskList

GUARD = threading.RLock()


def entry_for(name: str) -> TimerTaskEntry:
    task: TimerTask = NamedTask(0, name, [])
    entry = TimerTaskEntry(task, 0, GUARD)
    task._timer_entry = entry
    return entry


def filled(names: str) -> tuple[TimerTaskList, list[TimerTaskEntry]]:
    """Return a bucket with one entry for each letter, and the entries."""
    bucket = TimerTaskList()
    entries = [entry_for(name) for name in names]
    for entry in entries:
        bucket.add(entry)
    return bucket, entries


def test_a_new_bucket_is_empty_and_idle() -> None:
    bucket = TimerTaskList(level=2, index=7, number=47)
    assert (len(bucket), list(bucket), bucket.expiration_ms) == (0, [], -1)
    assert (bucket.level, bucket.index) == (2, 7)


def test_entries_keep_the_order_in_which_they_were_added() -> None:
    bucket, entries = filled("abcde")
    assert list(bucket) == entries
    assert len(bucket) == 5


def test_any_entry_can_be_removed_once() -> None:
    for position in range(5):
        bucket, entries = filled("abcde")
        removed = entries.pop(position)
        assert removed.remove()
        assert not removed.remove()
        assert list(bucket) == entries
        assert removed.cancelled
        assert not any(entry.cancelled for entry in entries)


def test_an_entry_that_is_in_no_bucket_cannot_be_removed() -> None:
    assert not entry_for("a").remove()


def test_an_entry_is_cancelled_when_its_task_points_elsewhere() -> None:
    entry = entry_for("a")
    assert not entry.cancelled
    assert entry.task is not None
    entry.task._timer_entry = TimerTaskEntry(entry.task, 5, GUARD)
    assert entry.cancelled


def test_removing_while_looking_is_safe() -> None:
    bucket, entries = filled("abcde")
    seen = [entry for entry in bucket if entry.remove()]
    assert seen == entries
    assert len(bucket) == 0


def test_setting_the_expiration_says_whether_it_changed() -> None:
    bucket = TimerTaskList()
    assert bucket.set_expiration(400)
    assert not bucket.set_expiration(400)
    assert bucket.set_expiration(800)
    assert bucket.expiration_ms == 800


def test_a_flush_gives_all_entries_in_order_and_leaves_the_bucket_idle() -> None:
    bucket, entries = filled("abcde")
    bucket.set_expiration(400)
    flushed: list[TimerTaskEntry] = []
    bucket.flush(flushed.append)
    assert flushed == entries
    assert (len(bucket), bucket.expiration_ms) == (0, -1)
    assert bucket.set_expiration(400), "the same expiration counts as new after a flush"


def test_a_flush_leaves_out_what_is_removed_meanwhile() -> None:
    bucket, entries = filled("abcde")
    flushed: list[TimerTaskEntry] = []

    def remove_the_next_but_one(entry: TimerTaskEntry) -> None:
        flushed.append(entry)
        if entry is entries[0]:
            assert entries[2].remove()

    bucket.flush(remove_the_next_but_one)
    assert flushed == [entries[0], entries[1], entries[3], entries[4]]


def test_what_is_added_during_a_flush_stays_in_the_bucket() -> None:
    bucket, entries = filled("ab")
    again: list[TimerTaskEntry] = []

    def add_back(entry: TimerTaskEntry) -> None:
        bucket.add(entry)
        again.append(entry)

    bucket.flush(add_back)
    assert again == entries
    assert list(bucket) == entries


def test_what_was_taken_can_still_be_removed() -> None:
    bucket, entries = filled("ab")
    taken = bucket.take()
    assert len(bucket) == 0
    assert entries[0].remove()
    assert list(taken.values()) == entries[1:]


def test_no_two_buckets_give_out_the_same_number() -> None:
    first, second = TimerTaskList(number=20), TimerTaskList(number=21)
    numbers: list[int] = []
    for bucket in (first, second):
        for _ in range(3):
            entry = entry_for("a")
            bucket.add(entry)
            numbers.append(entry.number)
        bucket.take()
        entry = entry_for("after it was emptied")
        bucket.add(entry)
        numbers.append(entry.number)
    assert len(set(numbers)) == len(numbers) == 8
