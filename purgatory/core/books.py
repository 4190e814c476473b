"""The books of a purgatory: what it shares with its operations, and with whoever closes it.

Ground rules
------------
* The watch lists, what is pending, the counters and whether the purgatory is closed change in a
  turn (see ``turn``), in which no user code runs, and no lock is waited for.
* An operation is ``pending`` from before its first check until it is claimed, then it is in
  ``settling`` until its callbacks are done. If another thread is still checking it by then, it is
  ``still_checked``. Closing waits for all of these, and lets nothing in after that.
* What an interrupt broke off stands in ``broken_off`` until it is finished: by whoever comes next.
  It is noted without a call, since a call is where the next interrupt could come.
* Where there is a ``max_pending``, ``placed`` are the identities of those that may wait: from after
  their first check until they are settled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from purgatory.core.books_core import PureBooks
from purgatory.core.counters import Counters
from purgatory.core.errors import FAULTS
from purgatory.core.fault_log import log_safely
from purgatory.core.recent_faults import RecentFaults
from purgatory.core.retry_task import RetryTask
from purgatory.core.watchers import W
from purgatory.core.which_core import NATIVE
from timer import Timer
from timer.safe_log import safe_repr

_NS_PER_S = 1_000_000_000

if TYPE_CHECKING or not NATIVE:
    BooksCore = PureBooks
else:
    from purgatory.core.native.books import NativeBooks as BooksCore


class Books(BooksCore[W]):
    """All that is known of one purgatory's operations; its arguments are the purgatory's."""

    __slots__ = ("faults", "retries")

    faults: RecentFaults
    retries: WeakSet[RetryTask]
    """Of the operations whose user's lock was found taken; most are over."""

    def __init__(
        self,
        name: str,
        timer: Timer,
        expires: bool,
        on_settled: Callable[[Any, str, int], object] | None,
        max_pending: int | None,
    ) -> None:
        self.name = name
        self.timer = timer
        self.expires = expires
        self.on_settled = on_settled
        self.max_pending = max_pending
        self.now_ns = timer.clock.now_ns
        self.reaper = None
        self.is_closed = False
        self.closing_error = None
        self.gave_up_error = None
        self.start_empty()

    def start_empty(self) -> None:
        """Forget all operations, and all that is known of keys."""
        self._start_empty(Counters())
        self.faults = RecentFaults()
        self.retries = WeakSet()

    # Coming in.

    def has_place_for(self, operation: W) -> bool:
        """Give ``operation`` one of the places, until it is settled, if one is free."""
        assert self.max_pending is not None
        limit = self.max_pending

        def place() -> bool:
            self.placed.add(id(operation))
            full = len(self.placed) > limit
            if full or operation.is_completed:
                self.placed.discard(id(operation))
            return full

        return not self.turn.run(place) or operation.is_completed

    def log_full(self, operation: W) -> None:
        """Log, once a second, that ``operation`` found no place."""
        now_ns = self.now_ns()
        if now_ns < self.full_log_ns:
            return
        self.full_log_ns = now_ns + _NS_PER_S
        log_safely(
            "warning",
            "purgatory_full",
            purgatory=self.name,
            operation=safe_repr(operation),
            limit=self.max_pending,
        )

    def look_after_reaper(self, now_ns: int) -> None:
        """Once a second, on a thread that submits: see that the reaper lives."""
        self.reaper_look_ns = now_ns + _NS_PER_S
        if self.reaper is not None and self.reaper.restart_if_dead():
            log_safely("error", "reaper_restarted", purgatory=self.name)

    # Going out.

    def observe(self, operation: W, counted_as: str, wait_ns: int) -> None:
        """Tell the observer."""
        assert self.on_settled is not None
        try:
            self.on_settled(operation, counted_as, wait_ns)
        except FAULTS as error:
            self.faults.note("on_settled_failed", None, operation, error)
            log_safely(
                "error",
                "on_settled_failed",
                purgatory=self.name,
                operation=safe_repr(operation),
                exc_info=error,
            )

    def note_still_checked(self, operation: W) -> None:
        """Note a settled operation that another thread, its server, has yet to end checking.

        Whoever serves it holds it meanwhile: so no one need take it off again.
        """

        def note() -> None:
            self.still_checked[id(operation)] = operation

        self.turn.run(note)

    def count_callback_error(self, stage: str) -> None:
        """Count what a callback raised."""

        def count() -> None:
            self.counters.callback_errors[stage] += 1

        self.turn.run(count)

    def count_missed_wakeup(self) -> None:
        """Count a condition that was found true by nothing but its expiry."""

        def count() -> None:
            self.counters.missed_wakeups += 1

        self.turn.run(count)

    # What it holds.

    def waiting_for_locks(self) -> list[tuple[W, int]]:
        """Return who found its user's lock taken each time so far, and since when."""
        while True:
            try:
                retries = list(self.retries)
                break
            except RuntimeError:
                continue  # another thread noted one just now
        found = [(retry.operation, retry.since_ns) for retry in retries if retry.is_due]
        return [(operation, since_ns) for operation, since_ns in found if since_ns is not None]

    def mend(self) -> list[tuple[Hashable, int]]:
        """Put the lists right, in a turn; return the values that may have been told to nobody."""
        self.watchers.mend()
        keys = self.watchers.keys_with_numbers()
        with suppress(Exception):  # a key that can't be compared
            return [(key, self.values[key]) for key in keys if key in self.values]
        return []

    def forget_notes(self, finished: list[tuple[W | None]]) -> None:
        """Take what was finished off ``broken_off``, in a turn."""
        identities = set(map(id, finished))
        self.broken_off[:] = [note for note in self.broken_off if id(note) not in identities]

    def check(self) -> None:
        """Assert all invariants, in a turn; exact while no thread is inside. O(entries)."""
        pending = self.pending_operations()
        assert not any(operation.is_completed for operation in pending)
        assert not self.settling_operations()
        self.watchers.check(pending)
