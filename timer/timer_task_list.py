"""A bucket of the wheel: the tasks of one slot, and the time at which the slot begins.

The entries that were added here are in a dict, their home: it keeps the order of insertion, and
adds and removes any entry in O(1), as Kafka's cyclic linked list does, but in one step of the
interpreter instead of four pointer assignments, and without reference cycles for the garbage
collector to follow. A removed entry leaves a gap, which the dict closes when it next grows: it is
never larger than three times what it held. The keys are numbers that ascend, so that neighbours in
time are neighbours in the dict's table: with a million tasks pending, the place of one that was
added just now is still in the processor's cache when it is cancelled.

Entries that fell from a coarser level keep their home, and are only listed here.

Ground rules
------------
* A bucket changes under the lock of the timer that drives the wheel, but for two single steps of
  the interpreter: ``TimerTask.cancel`` pops an entry out of ``entries``, ``add`` puts one in.
  Hence Python code iterates over a copy of ``entries``, never over the dict itself.
* Code that puts an entry into ``entries`` without the lock looks at the bucket afterwards (see
  ``TimingWheel.add_if_queued``). For that look, ``flush`` puts new containers in place of the old.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from timer.snapshot import IDLE_MS
from timer.timer_task import NOWHERE, Entries, TimerTaskEntry


class TimerTaskList:
    """One bucket.

    Args:
        level: of its wheel; the finest is 1.
        index: in its wheel.
    """

    __slots__ = ("cascaded", "entries", "expiration_ms", "index", "level", "numbers")

    def __init__(self, level: int = 1, index: int = 0) -> None:
        self.level = level
        self.index = index
        self.expiration_ms = IDLE_MS
        self.entries: Entries = {}
        self.cascaded: list[TimerTaskEntry] = []
        self.numbers = count()

    def __len__(self) -> int:
        return len(self._waiting())

    def __repr__(self) -> str:
        begin = "idle" if self.expiration_ms == IDLE_MS else f"at {self.expiration_ms} ms"
        place = f"level={self.level} index={self.index}"
        return f"<{type(self).__name__} {place} {begin}: {len(self)} pending>"

    def __iter__(self) -> Iterator[TimerTaskEntry]:
        """Iterate over a copy of the entries that wait."""
        return iter(self._waiting())

    def _waiting(self) -> list[TimerTaskEntry]:
        return [entry for entry in [*self.cascaded, *self.entries.values()] if entry.waits]

    def add(self, entry: TimerTaskEntry) -> None:
        """Put in ``entry``: it gets its home here, or, if it has one, it cascades here. O(1)."""
        if entry.bucket is NOWHERE:
            number = entry.number = next(self.numbers)
            entry.bucket = self.entries
            self.entries[number] = entry
        else:
            self.cascaded.append(entry)

    def flush(self) -> None:
        """Empty the bucket and mark it idle; the old containers keep its entries. O(1)."""
        entries: Entries = {}
        cascaded: list[TimerTaskEntry] = []
        # First idle, then empty: an add without the lock looks at the containers, then at this.
        self.expiration_ms = IDLE_MS
        self.entries = entries
        self.cascaded = cascaded
