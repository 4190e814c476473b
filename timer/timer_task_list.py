"""A bucket of the wheel: the tasks of one slot, and the time at which the slot begins.

The entries are in a dict: it keeps the order of insertion, and adds and removes any entry in O(1),
as Kafka's cyclic linked list does, but in one step of the interpreter instead of four pointer
assignments, and without reference cycles for the garbage collector to follow. What was removed
leaves a gap, which the dict closes when it next grows: it is never larger than three times what it
holds. The keys are numbers that ascend, so that neighbours in time are neighbours in the dict's
table: with a million tasks pending, the place of one that was added just now is still in the
processor's cache when it is cancelled.

Ground rules
------------
* A bucket changes under the lock of the timer that drives the wheel. Only ``TimerTask.cancel`` pops
  an entry without it (see ``timer_task``), so nothing may iterate over ``entries`` itself in Python
  while other threads may cancel: iterate over a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from timer.timer_task import Entries, TimerTaskEntry

IDLE_MS = -1
"""The expiration of a bucket that is not in the delay queue."""

NUMBERS = 2**50
"""How many numbers a bucket has for its entries: enough for a million a second for 35 years."""


class TimerTaskList:
    """One bucket.

    Args:
        level: of its wheel; the finest is 1.
        index: in its wheel.
        number: tells the buckets of one timer apart.
    """

    __slots__ = ("entries", "expiration_ms", "index", "level", "next_number")

    def __init__(self, level: int = 1, index: int = 0, number: int = 0) -> None:
        self.level = level
        self.index = index
        self.expiration_ms = IDLE_MS
        self.entries: Entries = {}
        self.next_number = number * NUMBERS

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[TimerTaskEntry]:
        return iter(list(self.entries.values()))

    def add(self, entry: TimerTaskEntry) -> None:
        """Append ``entry``, which is in no bucket. O(1)."""
        number = entry.number = self.next_number
        self.next_number = number + 1
        entry.held_in = self.entries
        self.entries[number] = entry

    def set_expiration(self, expiration_ms: int) -> bool:
        """Set when the bucket is due, and say whether that changed its value. O(1)."""
        if self.expiration_ms == expiration_ms:
            return False
        self.expiration_ms = expiration_ms
        return True

    def take(self) -> Entries:
        """Make the bucket empty and idle, and return what it held. O(1).

        The entries are still held in the dict that is returned, and can be cancelled there.
        """
        entries = self.entries
        self.entries = {}
        self.expiration_ms = IDLE_MS
        return entries

    def flush(self, f: Callable[[TimerTaskEntry], object]) -> None:
        """Make the bucket empty and idle, and give each entry that it held to ``f``. O(n)."""
        entries = self.take()
        for entry in list(entries.values()):
            if entries.pop(entry.number, None) is not None:
                f(entry)
