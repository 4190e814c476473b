"""The state of a purgatory, which it shares with its operations and with a call that closes it.

Ground rules
------------
* The watch lists, what is pending, the counters and whether the purgatory is closed change under
  the ``lock``, under which no user code runs, and nothing is waited for.
* An operation is ``pending`` from before its first check until it is being completed, then it is
  ``completing`` until its callbacks are done. If another thread is still checking it by then, it is
  ``still_checked``. Closing waits for all of these, and lets nothing in after that.
* Interrupted work stands in ``interrupted`` until it is finished.
* With a ``max_pending``, ``admitted`` are the identities of the operations that may wait: from
  after their first check until they are completed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable
from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic
from weakref import WeakSet, WeakValueDictionary

from purgatory.core.backend import NATIVE
from purgatory.core.counters import Counters
from purgatory.core.errors import FAULTS, is_interrupt
from purgatory.core.interrupts import NEEDS_REPAIR
from purgatory.core.locks import StateLock
from purgatory.core.outcome import OBSERVING, PENDING, WAIT_BOUNDS_NS
from purgatory.core.reaper import Reaper
from purgatory.core.recent_errors import RecentFaults, log_safely
from purgatory.core.retry import RetryTask
from purgatory.core.watchers import W, WatcherList
from timer import Timer
from timer.log import safe_repr

REFUSED: Any = object()
"""The mark of a submission for which its purgatory has no place."""

_NS_PER_S = 1_000_000_000
_LATEST_NS = 2**63 - 1
"""The latest time that is noted: clocks may be beyond it."""


class _PureState(Generic[W]):
    """The data of every operation, in pure Python; ``NativeState`` does the same."""

    __slots__ = (
        *("admitted", "closing_error", "completing", "counters", "expires", "full_log_ns"),
        *("gave_up_error", "interrupted", "is_closed", "lock", "max_pending", "name", "now_ns"),
        *(
            "on_completed",
            "pending",
            "reaper",
            "reaper_look_ns",
            "still_checked",
            "timer",
            "values",
        ),
        "watchers",
    )

    name: str
    timer: Timer
    expires: bool
    on_completed: Callable[[Any, str, int], object] | None
    max_pending: int | None
    now_ns: Callable[[], int]
    reaper: Reaper | None
    is_closed: bool
    closing_error: BaseException | None
    """The error of operations that closing fails, once that has begun."""
    gave_up_error: BaseException | None
    """The error of operations whose lock was taken when a close came to the end of its time."""

    def _reset(self, counters: Counters) -> None:
        self.watchers: WatcherList[W] = WatcherList()
        self.lock = StateLock()
        self.pending: dict[int, W] = {}
        self.completing: dict[int, W] = {}
        self.still_checked: WeakValueDictionary[int, W] = WeakValueDictionary()
        self.interrupted: list[tuple[W | None]] = []
        self.admitted: set[int] = set()
        self.values: dict[Hashable, int] = {}
        self.counters = counters
        self.reaper_look_ns = 0
        self.full_log_ns = 0

    def detach(self, operation: W) -> Exception | None:
        """Take an operation that is being completed off all lists. O(keys).

        Returns:
            The error of a key that could not be compared, if one could not.
        """
        identity = id(operation)
        with self.lock:
            if identity in self.pending:
                self.completing[identity] = operation
                self.pending.pop(identity, None)
            if self.max_pending is not None:
                self.admitted.discard(identity)
            key_error = self.watchers.unwatch(operation)
        if key_error is not None:
            self.interrupted += NEEDS_REPAIR
        return key_error

    def count_done(self, operation: W, counted_as: str, wait_ns: int) -> None:
        """Count a completed operation, whose callbacks are done, and forget it."""
        identity = id(operation)
        counters = self.counters
        counter = counters.by_outcome.get(counted_as)
        bucket = bisect_left(WAIT_BOUNDS_NS, wait_ns)
        with self.lock:
            if identity in self.completing:
                # Counted and forgotten without a call, hence without an interrupt in between.
                del self.completing[identity]
                if counter is None:
                    counters.rejected += 1
                else:
                    counter.bucket_counts[bucket] += 1
                    counter.wait_sum_ns += wait_ns

    # Reading, under the lock.

    def pending_operations(self) -> list[W]:
        """Return the pending operations, in the order in which they came."""
        return list(self.pending.values())

    def completing_operations(self) -> list[W]:
        """Return the operations that have their outcome, and have yet to be counted."""
        return list(self.completing.values())

    @property
    def pending_count(self) -> int:
        """The number of pending operations. O(1)."""
        return len(self.pending)

    def pending_ends(self, limit: int) -> tuple[list[W], list[W]]:
        """Return the first and the last pending operations. O(limit).

        Args:
            limit: the length of each list at most; no operation is in both.
        """
        while True:
            try:
                first = list(islice(self.pending.values(), limit))
                # The reversed iterator is made in the step that goes through it: CPython reads out
                # of bounds where a finalizer changes the dict between the two.
                last: list[W] = []
                values = (self.pending.values(),)
                last += islice(chain.from_iterable(map(reversed, values)), limit)
            except RuntimeError:
                continue  # a finalizer came in between and changed it
            among_first = set(map(id, first))
            return first, [one for one in last[::-1] if id(one) not in among_first]

    def oldest(self) -> W | None:
        """Return the pending operation that came first."""
        while True:
            try:
                for operation in self.pending.values():
                    if operation._op_outcome is PENDING:
                        return operation
                return None
            except RuntimeError:
                continue  # a finalizer came in between and changed it

    def forget_pending(self, operation: W) -> None:
        """Forget ``operation``, which stays pending."""
        self.admitted.discard(id(operation))
        self.pending.pop(id(operation), None)  # last: an interrupted close finds it again


if TYPE_CHECKING or not NATIVE:
    StateBase = _PureState
else:
    from purgatory.core.native.state import NativeState as StateBase


class PurgatoryState(StateBase[W]):
    """All data of one purgatory's operations; its arguments are the purgatory's."""

    __slots__ = ("faults", "retries")

    faults: RecentFaults
    retries: WeakSet[RetryTask]
    """The retries of operations whose user's lock was found taken; most are over."""

    def __init__(
        self,
        name: str,
        timer: Timer,
        expires: bool,
        on_completed: Callable[[Any, str, int], object] | None,
        max_pending: int | None,
    ) -> None:
        self.name = name
        self.timer = timer
        self.expires = expires
        self.on_completed = on_completed
        self.max_pending = max_pending
        self.now_ns = timer.clock.now_ns
        self.reaper = None
        self.is_closed = False
        self.closing_error = None
        self.gave_up_error = None
        self.reset()

    def reset(self) -> None:
        """Forget all operations, and all values of keys."""
        self._reset(Counters())
        self.faults = RecentFaults()
        self.retries = WeakSet()

    # Coming in.

    def watch(self, operation: W) -> object:
        """Put ``operation`` on the list of each of its keys, unless it is completed. O(keys).

        Returns:
            ``REFUSED`` if it was not admitted.
        """
        if self.max_pending is not None and not self.try_admit(operation):
            assert operation._op_submitter is not None
            operation._op_submitter.append(REFUSED)
            return REFUSED
        with self.lock:
            self.watchers.watch(operation)
        return None

    def try_admit(self, operation: W) -> bool:
        """Let ``operation`` wait, until it is completed, if fewer than ``max_pending`` do."""
        assert self.max_pending is not None
        with self.lock:
            self.admitted.add(id(operation))
            full = len(self.admitted) > self.max_pending
            if full or operation.is_completed or self.is_closed:  # it may be abandoned by now
                self.admitted.discard(id(operation))
        return not full or operation.is_completed

    def log_full(self, operation: W) -> None:
        """Log, once a second, that ``operation`` was not admitted."""
        now_ns = self.now_ns()
        if now_ns < self.full_log_ns:
            return
        self.full_log_ns = min(now_ns + _NS_PER_S, _LATEST_NS)
        log_safely(
            "warning",
            "purgatory_full",
            purgatory=self.name,
            operation=safe_repr(operation),
            limit=self.max_pending,
        )

    def check_reaper(self, now_ns: int) -> None:
        """Once a second, on a thread that submits: restart the reaper if it has died."""
        self.reaper_look_ns = min(now_ns + _NS_PER_S, _LATEST_NS)
        reaper = self.reaper
        if reaper is not None and reaper.restart_if_dead():
            log_safely("error", "reaper_restarted", purgatory=self.name)

    # Going out.

    def call_observer(
        self,
        observer: Callable[[Any, str, int], object],
        operation: W,
        counted_as: str,
        wait_ns: int,
    ) -> None:
        """Call the observer, once: again only if an interrupt came before its first step."""
        stage = operation._op_stage
        try:
            operation._op_stage = OBSERVING  # with no call between the two
            observer(operation, counted_as, wait_ns)
        except BaseException as error:
            if is_interrupt(observer, error):
                operation._op_stage = stage
                raise
            if not isinstance(error, FAULTS):
                raise
            self.faults.note("on_completed_failed", None, operation, error)
            log_safely(
                "error",
                "on_completed_failed",
                purgatory=self.name,
                operation=safe_repr(operation),
                exc_info=error,
            )

    def note_still_checked(self, operation: W) -> None:
        """Note a completed operation that another thread, its owner, has yet to end checking.

        Its owner keeps it alive meanwhile, and it need not be taken off again.
        """
        with self.lock:
            self.still_checked[id(operation)] = operation

    def count_callback_error(self, stage: str) -> None:
        """Count an error of a callback."""
        with self.lock:
            self.counters.callback_errors[stage] += 1

    def count_missed_wakeup(self) -> None:
        """Count a condition that only the expiry found true."""
        with self.lock:
            self.counters.missed_wakeups += 1

    def waiting_for_locks(self) -> list[tuple[W, int]]:
        """Return the operations whose user's lock was taken at each try, and since when."""
        while True:
            try:
                retries = list(self.retries)
                break
            except RuntimeError:
                continue  # another thread noted one just now
        found = [(retry.operation, retry.since_ns) for retry in retries if retry.is_due]
        return [(operation, since_ns) for operation, since_ns in found if since_ns is not None]

    # After an interrupt.

    def repair(self) -> list[tuple[Hashable, int]]:
        """Put the lists right, and return the values that waiters may have missed."""
        with self.lock:
            self.watchers.repair()
            return self._values_waited_for()

    def _values_waited_for(self) -> list[tuple[Hashable, int]]:
        keys = self.watchers.keys_with_numbers()
        with suppress(Exception):  # a key that can't be compared
            return [(key, self.values[key]) for key in keys if key in self.values]
        return []

    def check(self) -> None:
        """Assert all invariants; exact while no thread is inside. O(entries)."""
        with self.lock:
            pending = self.pending_operations()
            assert not any(operation.is_completed for operation in pending)
            assert not self.completing_operations()
            self.watchers.check(pending)
