"""What a turn of the live feed gathers: changes in their order, and the time that they are told in.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

Change = dict[str, Any]

_NS_PER_MS = 1_000_000
_NS_PER_US = 1_000

MOST_NEW = 1_000
"""How many parked operations are told of for the first time in a turn; the others in the next."""
MOST_TOLD = 250
"""How many settled ones that were not shown a turn tells of one by one; others are counted."""


class FeedClock:
    """Tells the time since the feed, or a trace, was begun, as the page counts it.

    Args:
        start_ns: what the monotonic clock showed then; None: that is now.
    """

    def __init__(self, start_ns: int | None = None) -> None:
        now_ns = time.monotonic_ns()
        self.start_ms = (now_ns if start_ns is None else start_ns) // _NS_PER_MS
        """What the timers' clocks showed then."""
        since_s = 0.0 if start_ns is None else (now_ns - start_ns) / 1_000_000_000
        self._start_wall_s = time.time() - since_s

    def now_us(self) -> int:
        """Return the time now, in microseconds."""
        return self.us_of_ns(time.monotonic_ns())

    def us_of_ns(self, monotonic_ns: int) -> int:
        """Return the time at which the timers' clocks showed this."""
        return (monotonic_ns - self.start_ms * _NS_PER_MS) // _NS_PER_US

    def us_of_wall_s(self, seconds: float) -> int:
        """Return the time at which the time of day was this, in seconds since 1970."""
        return int((seconds - self._start_wall_s) * 1_000_000)


class FeedTurn:
    """The changes since the last turn.

    Args:
        clock: the feed's.
    """

    def __init__(self, clock: FeedClock) -> None:
        self.clock = clock
        self.from_us = clock.now_us()
        self.told = 0
        self.new = 0
        self.shown = 0
        """How many parked operations the page has, those of all purgatories together."""
        self._changes: list[Change] = []
        self._numbers = itertools.count(1)

    def next_number(self) -> int:
        """Return the number of an operation: no other has it."""
        return next(self._numbers)

    def add(self, at_us: int, what: str, **values: Any) -> None:
        """Note a change; one of before the turn counts as of its begin."""
        self._changes.append({"at_us": max(at_us, self.from_us), "what": what, **values})

    def end(self) -> tuple[int, int, list[Change]]:
        """Begin the next turn; return when this one began and ended, and its changes by time."""
        begun_us, changes = self.from_us, self._changes
        changes.sort(key=lambda change: change["at_us"])
        self.from_us = max(self.clock.now_us(), changes[-1]["at_us"] if changes else 0)
        self._changes = []
        self.told = self.new = 0
        return begun_us, self.from_us, changes
