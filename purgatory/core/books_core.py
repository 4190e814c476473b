"""What a purgatory's books do for every operation, in pure Python.

The ground rules are those of ``books``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Any, Generic
from weakref import WeakValueDictionary

from purgatory.core.counters import Counters
from purgatory.core.counting import WAIT_BOUNDS_NS
from purgatory.core.outcome import PENDING
from purgatory.core.reaper import Reaper
from purgatory.core.turn import Me
from purgatory.core.watchers import W, WatcherList
from timer import Timer

LISTS = ((None,),)
"""The note that the lists are to be mended, and that values may have been told to nobody."""


class PureBooks(Generic[W]):
    """What is booked for every operation."""

    __slots__ = (
        *("broken_off", "closing_error", "counters", "expires", "full_log_ns", "gave_up_error"),
        *("is_closed", "max_pending", "name", "now_ns", "on_settled", "pending", "placed"),
        *("reaper", "reaper_look_ns", "settling", "still_checked", "timer", "turn", "values"),
        "watchers",
    )

    name: str
    timer: Timer
    expires: bool
    on_settled: Callable[[Any, str, int], object] | None
    max_pending: int | None
    now_ns: Callable[[], int]
    reaper: Reaper | None
    is_closed: bool
    closing_error: BaseException | None
    """What all get who are failed by closing, once that has begun."""
    gave_up_error: BaseException | None
    """What those get whose lock was taken when a close came to the end of its time."""

    def _start_empty(self, counters: Counters) -> None:
        """Forget all operations, and all that is known of keys."""
        self.watchers: WatcherList[W] = WatcherList()
        self.turn = self.watchers.turn
        self.pending: dict[int, W] = {}
        self.settling: dict[int, W] = {}
        self.still_checked: WeakValueDictionary[int, W] = WeakValueDictionary()
        self.broken_off: list[tuple[W | None]] = []
        self.placed: set[int] = set()
        self.values: dict[Hashable, int] = {}
        self.counters = counters
        self.reaper_look_ns = 0
        self.full_log_ns = 0

    def unwatch(self, operation: W, me: Me) -> Exception | None:
        """Take a claimed operation off all lists. O(keys).

        Returns:
            What a key raised when it was compared, if one did.
        """
        identity = id(operation)
        turn = self.turn
        try:
            if turn.setdefault("holder", me) is not me:
                turn = turn.wait(me)
            if identity in self.pending:
                self.settling[identity] = operation
                self.pending.pop(identity, None)
            if self.max_pending is not None:
                self.placed.discard(identity)
            key_error = self.watchers.unwatch(operation)
            del turn["holder"]
        except BaseException:
            if "holder" in turn and turn["holder"] is me:
                del turn["holder"]
            raise
        if key_error is not None:
            self.broken_off += LISTS
        return key_error

    def count_settled(self, operation: W, counted_as: str, wait_ns: int, me: Me) -> None:
        """Book a settled operation, whose callbacks are done, and forget it."""
        identity = id(operation)
        counters = self.counters
        counter = counters.by_outcome.get(counted_as)
        bucket = bisect_left(WAIT_BOUNDS_NS, wait_ns)
        turn = self.turn
        try:
            if turn.setdefault("holder", me) is not me:
                turn = turn.wait(me)
            if identity in self.settling:
                # Counted and forgotten without a call, hence without an interrupt in between.
                del self.settling[identity]
                if counter is None:
                    counters.rejected += 1
                else:
                    counter.bucket_counts[bucket] += 1
                    counter.wait_sum_ns += wait_ns
            del turn["holder"]
        except BaseException:
            if "holder" in turn and turn["holder"] is me:
                del turn["holder"]
            raise

    # What it holds, in a turn.

    def pending_operations(self) -> list[W]:
        """Return what is pending, in the order in which it came."""
        return list(self.pending.values())

    def pending_ends(self, limit: int) -> tuple[list[W], list[W]]:
        """Return those that came first and those that came last, in a turn. O(limit).

        Args:
            limit: of how many at most, each; who is among the first is not among the last.
        """
        while True:
            try:
                first = list(islice(self.pending.values(), limit))
                last = list(islice(reversed(self.pending.values()), limit))
            except RuntimeError:
                continue  # a finalizer came in between and changed it
            among_first = set(map(id, first))
            return first, [one for one in last[::-1] if id(one) not in among_first]

    def settling_operations(self) -> list[W]:
        """Return what is claimed, and has yet to be booked."""
        return list(self.settling.values())

    @property
    def pending_count(self) -> int:
        """How many operations are pending. O(1)."""
        return len(self.pending)

    def forget_pending(self, operation: W) -> None:
        """Let go of ``operation``, which stays pending."""
        self.pending.pop(id(operation), None)

    def oldest(self) -> W | None:
        """Return the pending operation that came first, in a turn."""
        while True:
            try:
                for operation in self.pending.values():
                    if operation.outcome is PENDING:
                        return operation
                return None
            except RuntimeError:
                continue  # a finalizer came in between and changed it
