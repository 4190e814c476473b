"""A bucket: order, removal from anywhere, its expiration, and emptying it."""

from __future__ import annotations

from tests.unit.timer.named_task import NamedTask
from timer import TimerTask
from timer.timer_task import TimerTaskEntry
from timer.timer_task_list import TimerTaskList


def entry_for(name: str) -> TimerTaskEntry:
    task: TimerTask = NamedTask(0, name, [])
    entry = TimerTaskEntry(task, 0)
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
    bucket = TimerTaskList(level=2, index=7)
    assert (len(bucket), list(bucket), bucket.expiration_ms) == (0, [], -1)
    assert (bucket.level, bucket.index) == (2, 7)


def test_entries_keep_the_order_in_which_they_were_added() -> None:
    bucket, entries = filled("abcde")
    assert list(bucket) == entries
    assert len(bucket) == 5


def test_bucket_removes_any_entry_once() -> None:
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
    entry.task._timer_entry = TimerTaskEntry(entry.task, 5)
    assert entry.cancelled


def test_removing_while_looking_is_safe() -> None:
    bucket, entries = filled("abcde")
    seen = [entry for entry in bucket if entry.remove()]
    assert seen == entries
    assert len(bucket) == 0


def test_emptied_bucket_is_idle_and_its_entries_are_removable() -> None:
    bucket, entries = filled("ab")
    bucket.expiration_ms = 400
    held = bucket.entries
    bucket.flush()
    assert (len(bucket), bucket.expiration_ms) == (0, -1)
    assert entries[0].remove()
    assert list(held.values()) == entries[1:]


def test_a_cascaded_entry_keeps_its_home_and_is_listed_while_it_waits() -> None:
    above, entries = filled("abc")
    below, (own,) = filled("d")
    homes = [(entry.bucket, entry.number) for entry in entries]
    for entry in entries:
        below.add(entry)
    assert list(below) == [*entries, own]
    assert [(entry.bucket, entry.number) for entry in entries] == homes
    assert entries[1].remove()
    assert list(below) == [entries[0], entries[2], own]
    assert len(above.entries) == 2, "it is counted where it is at home"


def test_an_entry_that_its_task_no_longer_points_at_is_not_listed() -> None:
    bucket, entries = filled("ab")
    assert entries[0].task is not None
    entries[0].task._timer_entry = None
    assert list(bucket) == entries[1:]


def test_bucket_gives_each_entry_another_number() -> None:
    bucket, entries = filled("abc")
    assert entries[2].remove()
    again = entry_for("d")
    bucket.add(again)
    assert again.number not in {entry.number for entry in entries}


def test_a_task_that_is_cancelled_leaves_its_list() -> None:
    bucket, (entry,) = filled("a")
    task = entry.task
    assert task is not None
    assert task.cancel()
    assert len(bucket) == 0
    assert not task.cancel()
