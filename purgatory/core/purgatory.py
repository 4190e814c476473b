"""The purgatory: where operations wait, under their keys and on the timer.

All data about them is in its ``state``, which has the ground rules.
"""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from purgatory.core.backend import NATIVE
from purgatory.core.closing import ClosePolicy, Closing, check_policy, join_s
from purgatory.core.counters import CountersSnapshot
from purgatory.core.interrupts import NEEDS_REPAIR, resume_interrupted
from purgatory.core.keys import (
    GREATEST_NUMBER,
    LEAST_NUMBER,
    Keys,
    check_hashable,
    checked_keys,
    checked_number,
    checked_thresholds,
)
from purgatory.core.operation import (
    DelayedOperation,
    check_each,
    force_each,
    is_new,
    submitted_ns,
)
from purgatory.core.outcome import COMPLETED, FAILED, Outcome
from purgatory.core.reaper import ExpiredOperationReaper, Reaper
from purgatory.core.recent_errors import RecentFault, log_safely
from purgatory.core.state import PurgatoryState
from purgatory.core.waiting import (
    ConditionWaiting,
    ThresholdWaiting,
    Waiting,
    delay_of,
    future_of,
)
from timer import SystemTimer, Timer, forking
from timer.backend import describe_as
from timer.durations import checked_timeout_s
from timer.errors import not_copied_error
from timer.former_names import FormerName, former_argument

T = TypeVar("T")

CompletionObserver = Callable[[DelayedOperation, str, int], object]
"""Called once for each completed operation: with what it was counted as, and its wait in ns."""

_NO_KEYS: tuple[Hashable, ...] = ()


class _PurePurgatory:
    """The calls of every request and every event; ``NativePurgatory`` does the same."""

    _state: PurgatoryState[DelayedOperation]

    def try_complete_else_watch(
        self,
        operation: DelayedOperation,
        keys: Keys = _NO_KEYS,
        thresholds: Mapping[Any, int] | None = None,
    ) -> bool:
        """Complete ``operation`` at once if its condition holds; else let it wait. O(keys).

        The condition is checked, the operation is put on the list of every key, and the condition
        is checked again: an event in between is not missed. Then its timeout starts. Never blocks.

        Args:
            operation: one that was never submitted before.
            keys: the keys of the events to wait for. A key given twice counts once.
            thresholds: keys with the number that each must reach: ``advance`` checks the operation
                only when one of them has reached its number. At least one key or threshold is
                needed.

        Returns:
            True if this call completed it.

        Raises:
            ValueError: there are no keys, or a threshold has more than 64 bits.
            TypeError: a key is not hashable, or ``operation`` is no DelayedOperation.
            OperationReusedError: the operation was submitted before.
            PurgatoryClosedError: the purgatory was closed.
            PurgatoryFullError: ``max_pending`` operations wait already.
        """
        if thresholds is not None:
            thresholds = checked_thresholds(thresholds)
        keys = checked_keys(keys, thresholds)
        state = self._state
        if state.interrupted:
            self._resume_interrupted()
        return DelayedOperation._op_submit(operation, state, keys, thresholds)

    def check_and_complete(self, key: Hashable) -> int:
        """Check every operation that waits on ``key``, in arrival order. O(watchers). Never blocks.

        If a condition holds when this returns, its operation completes without another event: here,
        or, where a lock was taken, on the thread that held it or by a retry.

        Returns:
            How many operations this call completed.

        Raises:
            TypeError: the key is not hashable.
        """
        state = self._state
        if state.interrupted:
            self._resume_interrupted()
        operations: list[DelayedOperation] = []
        try:
            with state.lock:
                # WatcherList.operations_on(key), written out.
                watchers = state.watchers.by_key.get(key)
                if watchers is not None:
                    operations += watchers.values()
                    state.counters.checks += len(operations)
            return check_each(operations, [threading.get_ident()])
        except BaseException as error:
            state.interrupted += zip(operations)
            if isinstance(error, TypeError):
                check_hashable(key)
            raise

    def advance(self, key: Hashable, value: int) -> int:
        """Report that ``key`` has this ``value`` now; check the operations that it reaches.

        A value below an earlier one changes nothing: values only rise, until ``forget``. An
        operation that waits on ``key`` for any event, not for a number, is not checked. O(k log n)
        if the value reaches k of n, amortized; O(1) if it reaches none. Never blocks.

        Returns:
            How many operations this call completed.

        Raises:
            TypeError: the key is not hashable, or the value is not an integer.
            ValueError: the value has more than 64 bits.
        """
        if type(value) is not int or not LEAST_NUMBER <= value <= GREATEST_NUMBER:
            value = checked_number("value", key, value)
        state = self._state
        if state.interrupted:
            self._resume_interrupted()
        values = state.values
        operations: list[DelayedOperation] = []
        try:
            with state.lock:
                known = values.get(key)
                if known is None or value > known:
                    values[key] = value
                if key in state.watchers.numbers_by_key:
                    state.watchers.pop_reached(key, value, operations)
                    state.counters.checks += len(operations)
            return check_each(operations, [threading.get_ident()]) if operations else 0
        except BaseException as error:
            state.interrupted += NEEDS_REPAIR
            state.interrupted += zip(operations)  # the next event passes over these
            if isinstance(error, TypeError):
                check_hashable(key)
            raise

    if TYPE_CHECKING:

        def _resume_interrupted(self) -> None: ...


if NATIVE and not TYPE_CHECKING:
    from purgatory.core.native.purgatory import NativePurgatory as PurgatoryBase

    describe_as(PurgatoryBase, _PurePurgatory)
else:  # last, and as an import: the reference shows it
    from purgatory.core.purgatory import _PurePurgatory as PurgatoryBase


class DelayedOperationPurgatory(PurgatoryBase):
    """Holds operations until an event on one of their keys completes them, or their time is up.

    Use it as a context manager, or close it: it may own a timer and threads.

    Args:
        name: names it in logs, metrics and its threads: "Produce", "Fetch".
        timer: expires the operations; by default a ``SystemTimer`` of its own. A timer that is
            passed in is not closed with the purgatory.
        broker_id: distinguishes purgatories of one name, in their threads' names.
        reaper_enabled: whether a thread of its own moves the timer. If not, call
            ``purgatory.timer.advance_clock`` yourself.
        timer_enabled: whether operations expire at all.
        on_completed: an observer of every outcome; what it raises is logged.
        max_pending: how many operations may wait at the same time; None for any number. One more is
            refused, unless it completes at once.

    Raises:
        TypeError: max_pending is not an integer.
        ValueError: max_pending is below 1.
        RuntimeError: the reaper's thread can't be started; as in an isolated sub-interpreter, where
            there are no daemon threads. With ``reaper_enabled=False`` it works there.

    After a fork the child's purgatory is empty and works: the parent answers what was
    pending. A timer or executor of yours must survive the fork itself.
    """

    complete_all = FormerName("complete_for_key")
    fail_all = FormerName("fail_for_key")
    on_settled = FormerName("on_completed")

    @former_argument("on_settled", "on_completed")
    def __init__(
        self,
        name: str,
        timer: Timer | None = None,
        broker_id: int = 0,
        reaper_enabled: bool = True,
        timer_enabled: bool = True,
        on_completed: CompletionObserver | None = None,
        max_pending: int | None = None,
    ) -> None:
        if max_pending is not None:
            max_pending = _checked_count("max_pending", max_pending, 1, ", or None for no limit")
        self.name = name
        self.broker_id = broker_id
        self._own_timer = SystemTimer(name) if timer is None else None
        self.timer: Timer = self._own_timer if timer is None else timer  # type: ignore[assignment]
        self._state: PurgatoryState[DelayedOperation] = PurgatoryState(
            name, self.timer, timer_enabled, on_completed, max_pending
        )
        self._closing: Closing | None = None
        forking.register(self)
        if reaper_enabled:
            try:
                reaper = ExpiredOperationReaper(f"ExpirationReaper-{broker_id}-{name}", self.timer)
                reaper.start()
            except RuntimeError as error:
                raise RuntimeError(
                    f"purgatory {name!r} can't start its reaper's thread ({error}): pass "
                    "reaper_enabled=False, and call purgatory.timer.advance_clock yourself"
                ) from error
            self.reaper = reaper

    # Waiting and waking.

    def future(
        self,
        operation: DelayedOperation,
        keys: Keys = _NO_KEYS,
        thresholds: Mapping[Any, int] | None = None,
    ) -> Future[Outcome]:
        """Submit ``operation`` and return a future of its outcome: ``try_complete_else_watch``'s
        bridge to ``concurrent.futures``.

        The result is there once the callbacks have run. Cancelling the future cancels the
        operation. If the purgatory is closed and leaves the operation pending, the future raises
        PurgatoryClosedError.

        Raises what ``try_complete_else_watch`` does.
        """
        is_ours = is_new(operation)
        try:
            self.try_complete_else_watch(operation, keys, thresholds)
            return future_of(operation, self.name)
        except BaseException:
            if is_ours and not is_new(operation):
                operation.cancel()  # interrupted: no one has its future
            raise

    def value(self, key: Hashable) -> int | None:
        """Return the highest value of ``key`` that ``advance`` reported, or None. O(1).

        Raises:
            TypeError: the key is not hashable.
        """
        try:
            return self._state.values.get(key)
        except TypeError:
            check_hashable(key)
            raise

    def forget(self, key: Hashable) -> None:
        """Forget the value of ``key``, because the key goes away or its values start again.

        Operations that still wait for a number that was reached wait for it again. O(watchers),
        amortized.

        Raises:
            TypeError: the key is not hashable.
        """
        check_hashable(key)
        state = self._repaired_state()

        try:
            with state.lock:
                state.values.pop(key, None)
                state.watchers.rearm(key)
        except BaseException:
            state.interrupted += NEEDS_REPAIR
            raise

    def wait(
        self, keys: Keys, until: Callable[[], T], timeout: float | timedelta | None = None
    ) -> T:
        """Block this thread until an event on one of ``keys`` finds ``until()`` true; return that.

        Args:
            keys: the events to wait for. At least one.
            until: checked at once, at each event by the thread that reports it, and once more when
                the time is up.
            timeout: seconds, or a timedelta; None waits for ever.

        Raises:
            TimeoutError: it did not become true in time.
            PurgatoryClosedError: the purgatory was closed, before or meanwhile.
            PurgatoryFullError: ``max_pending`` operations wait already.
            WaitCancelledError: ``cancel_for_key`` or ``complete_for_key`` was called.
            Exception: what ``until`` raised.
        """
        return self._wait_for(ConditionWaiting(until, delay_of(timeout)), keys, None)

    def wait_for_threshold(
        self, key: Hashable, number: int, timeout: float | timedelta | None = None
    ) -> int:
        """Block this thread until ``advance`` has reported ``number`` or more for ``key``.

        Args:
            key: any hashable.
            number: the value to wait for. If it was reached before, this returns at once.
            timeout: seconds, or a timedelta; None waits for ever.

        Returns:
            The value.

        Raises:
            TimeoutError: it was not reached in time.
            PurgatoryClosedError: the purgatory was closed, before or meanwhile.
            PurgatoryFullError: ``max_pending`` operations wait already.
        """
        waiting = ThresholdWaiting(self.value, key, number, delay_of(timeout))
        return self._wait_for(waiting, _NO_KEYS, {key: number})

    def _wait_for(self, waiting: Waiting[T], keys: Keys, thresholds: Mapping[Any, int] | None) -> T:
        try:
            self.try_complete_else_watch(waiting, keys, thresholds)
            waiting.wait()
        except BaseException:
            # A signal interrupted it: no thread waits any more.
            if not waiting.cancel() and isinstance(waiting, ConditionWaiting):
                waiting.log_unraised()
            raise
        return waiting.result(self.name)

    def check_all(self) -> int:
        """Check every operation that waits, after events may have been missed. O(watchers).

        Returns:
            How many operations this call completed.
        """
        return sum(self.check_and_complete(key) for key in self.keys())

    def complete_for_key(self, key: Hashable) -> int:
        """Complete every operation that waits on ``key``, whether its condition holds or not.

        Meant for a key that goes away. Callbacks run as for a check: where a lock is taken, its
        holder or a retry completes the operation. O(watchers).

        Returns:
            How many operations waited on the key.

        Raises:
            TypeError: the key is not hashable.
        """
        return self._force_on(key, COMPLETED, None)

    def fail_for_key(self, key: Hashable, error: BaseException) -> int:
        """Fail every operation that waits on ``key`` with ``error``: ``on_failure`` is called.

        Meant for a key that goes away; otherwise as ``complete_for_key``.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"error must be an exception, not {error!r}")
        return self._force_on(key, FAILED, error)

    def _force_on(self, key: Hashable, outcome: Outcome, error: BaseException | None) -> int:
        operations = self._waiting_on(key)
        try:
            force_each(operations, (outcome, error))
        except BaseException:
            self._state.interrupted += zip(operations)
            raise
        return len(operations)

    def _waiting_on(self, key: Hashable) -> list[DelayedOperation]:
        check_hashable(key)
        state = self._repaired_state()
        with state.lock:
            return state.watchers.operations_on(key)

    def cancel_for_key(self, key: Hashable) -> list[DelayedOperation]:
        """Cancel every operation that waits on ``key``, and return those, in arrival order.

        The operations leave their other keys and the timer too. No callback runs: answering is up
        to you. O(watchers).

        Raises:
            TypeError: the key is not hashable.
        """
        return [operation for operation in self._waiting_on(key) if operation.cancel()]

    # Sizes. Reading runs no user code except the clock, and the hash of a key that is given: work
    # that was interrupted waits for a call that changes something.

    @property
    def watched(self) -> int:
        """Entries on all watch lists: each pending operation counts once per key. O(1), exact."""
        return self._state.watchers.entries

    def __repr__(self) -> str:
        closed = " closed" if self.is_closed else ""
        return f"<{type(self).__name__} {self.name!r}{closed}: {self.num_delayed} pending>"

    @property
    def watched_keys(self) -> int:
        """Keys with at least one pending operation. O(1), exact."""
        return self._state.watchers.key_count

    def keys(self) -> list[Hashable]:
        """Return the keys with a pending operation, in no order. O(keys)."""
        state = self._repaired_state()
        with state.lock:
            return state.watchers.keys()

    @property
    def num_delayed(self) -> int:
        """Operations that are pending. O(1), exact."""
        return self._state.pending_count

    @property
    def max_pending(self) -> int | None:
        """The number of operations that may wait at the same time, or None."""
        return self._state.max_pending

    @property
    def oldest_pending_ns(self) -> int:
        """The wait of the oldest pending operation so far, in nanoseconds, or 0. Exact.

        O(1), except that it skips the operations that ended since the last call.
        """
        state = self._state
        with state.lock:
            oldest = state.oldest()
        return 0 if oldest is None else max(0, state.now_ns() - submitted_ns(oldest))

    def pending_ends(self, limit: int) -> tuple[list[DelayedOperation], list[DelayedOperation]]:
        """Return the first and the last pending operations, in order of arrival.

        O(limit), amortized, however many wait.

        Args:
            limit: the length of each list at most. No operation is in both.

        Raises:
            TypeError: ``limit`` is not an integer.
            ValueError: ``limit`` is negative.
        """
        limit = _checked_limit(limit)
        state = self._state
        with state.lock:
            return state.pending_ends(limit)

    def waiting_on(self, key: Hashable, limit: int) -> int:
        """Return how many operations wait on ``key``, at most ``limit``. O(limit).

        Raises:
            TypeError: the key is not hashable, or ``limit`` is not an integer.
            ValueError: ``limit`` is negative.
        """
        check_hashable(key)
        limit = _checked_limit(limit)
        state = self._state
        with state.lock:
            return state.watchers.count_on(key, limit)

    def waiting_for_locks(self) -> list[tuple[DelayedOperation, int]]:
        """Return the operations whose lock was taken at each try, with the time of the first one,
        by the timer's clock in ns. O(operations whose lock was ever taken)."""
        return self._state.waiting_for_locks()

    def recent_faults(self) -> list[RecentFault]:
        """Return the last errors of callbacks, observers and keys, the latest first. O(1)."""
        return self._state.faults.latest()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, and accepts no operations."""
        return self._state.is_closed

    @property
    def reaper(self) -> Reaper | None:
        """The driver of the timer, or None if you drive it."""
        return self._state.reaper

    @reaper.setter
    def reaper(self, reaper: Reaper | None) -> None:
        self._state.reaper = reaper

    @property
    def on_completed(self) -> CompletionObserver | None:
        """The observer of every outcome."""
        return self._state.on_completed

    @on_completed.setter
    def on_completed(self, observer: CompletionObserver | None) -> None:
        self._state.on_completed = observer

    @property
    def owns_timer(self) -> bool:
        """Whether the purgatory created its timer, and closes it."""
        return self._own_timer is not None

    @property
    def counters(self) -> CountersSnapshot:
        """Exact counts of outcomes with their waits, checks, callback errors, missed wake-ups."""
        state = self._state
        with state.lock:
            return state.counters.snapshot()

    def __reduce__(self) -> NoReturn:
        raise not_copied_error(self)

    # Closing.

    @former_argument("pending", "policy")
    def close(self, policy: ClosePolicy = "fail", timeout: float | timedelta | None = 10.0) -> int:
        """Refuse new operations, end the pending ones, and end the threads.

        When it returns, nothing of this purgatory runs on any thread, except callbacks that
        outlast ``timeout``, which are logged.

        Args:
            policy: "fail" runs ``on_failure`` with a PurgatoryClosedError; "expire" runs
                ``on_complete`` and ``on_expiration`` now, though their time is not up; "leave"
                takes them off the lists and the timer, and calls nothing.
            timeout: seconds, or a timedelta, to wait for callbacks and for locks of yours that are
                taken; None waits for ever. After that, an operation whose lock is still taken is
                failed without it.

        Returns:
            How many operations were pending. Closing again returns 0.

        Raises:
            ValueError: ``policy`` is none of the three, or ``timeout`` is nan.
            TypeError: ``timeout`` is neither a number nor a timedelta.
        """
        timeout_s = checked_timeout_s(timeout)
        first = not self.is_closed
        pending = stop_intake(self, policy).close(timeout_s, self._end_threads)
        if first:
            log_safely("info", "purgatory_closed", purgatory=self.name, pending=pending)
        return pending if first else 0

    def _end_threads(self, deadline_s: float) -> None:
        reaper = self.reaper
        if reaper is not None:
            reaper.stop_soon()
        try:
            if self._own_timer is not None:
                self._own_timer.close(join_s(deadline_s))
        finally:
            if reaper is not None:
                reaper.join(join_s(deadline_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # After an interrupt, and a fork.

    def _repaired_state(self) -> PurgatoryState[DelayedOperation]:
        if self._state.interrupted:
            self._resume_interrupted()
        return self._state

    def _resume_interrupted(self) -> None:
        resume_interrupted(self._state, self.advance)

    def _after_fork(self) -> None:
        """In the child: forget the parent's operations, and locks that its threads may hold."""
        self._state.reset()
        reaper = self.reaper
        if reaper is not None:
            reaper.after_fork()

    def _check(self) -> None:
        """Assert all invariants; exact while no thread is inside. O(entries)."""
        self._repaired_state().check()


def _checked_count(name: str, count: object, least: int, else_what: str = "") -> int:
    """Return a whole number that is ``least`` or more, as a plain int."""
    try:
        if isinstance(count, bool):
            raise TypeError
        checked = int(operator.index(count))  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"{name} must be an int{else_what}, not {count!r} ({type(count).__name__})"
        ) from None
    if checked < least:
        raise ValueError(f"{name} must be at least {least}{else_what}: {checked}")
    return checked


def _checked_limit(limit: object) -> int:
    return min(_checked_count("limit", limit, 0), sys.maxsize)


def stop_intake(purgatory: DelayedOperationPurgatory, policy: ClosePolicy) -> Closing:
    """Take nothing more, and return how the purgatory closes: the first policy counts."""
    check_policy(policy)
    state = purgatory._state
    closing = Closing(state, policy)

    with state.lock:
        state.is_closed = True
        if purgatory._closing is None:
            state.closing_error = closing.error
            purgatory._closing = closing
        return purgatory._closing
