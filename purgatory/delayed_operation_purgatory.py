"""The purgatory: where operations wait, under their keys and on the timer.

Ground rules
------------
* One lock, ``_lock``, guards the watch lists, what is pending, the counters and whether the
  purgatory is closed. It is never held while user code runs, nor while another lock is waited for.
* An operation is in ``_pending`` from before its first check until its callbacks are done;
  ``_settling`` counts those among them that are claimed. Closing waits for ``_pending`` to be
  empty, and lets nothing in after that.
* Where ``max_pending`` is set, ``_placed`` are the identities of those that may wait: from after
  their first check until they are settled.
* What an operation and its purgatory promise each other about lists and outcomes stands in
  ``delayed_operation`` and ``watchers``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future
from threading import get_ident
from types import TracebackType
from typing import Any, Self

from purgatory.closing import ClosePolicy, Closing, check_policy
from purgatory.counters import Counters, CountersSnapshot
from purgatory.delayed_operation import FOREVER_MS, DelayedOperation
from purgatory.errors import (
    FAULTS,
    OperationReusedError,
    PurgatoryClosedError,
    PurgatoryFullError,
)
from purgatory.expired_operation_reaper import ExpiredOperationReaper
from purgatory.operation_future import future_of
from purgatory.outcome import Outcome
from purgatory.reaper import Reaper
from purgatory.retry_task import RetryTask
from purgatory.safe_log import log_safely
from purgatory.timeout import checked_timeout_s
from purgatory.waiting import ThresholdWaiting, delay_of
from purgatory.watch_keys import (
    check_hashable,
    checked_keys,
    checked_number,
    checked_thresholds,
)
from purgatory.watchers import WatcherList
from timer import SystemTimer, Timer, TimerClosedError, TimerTask, forking
from timer.safe_log import safe_repr

SettledObserver = Callable[[DelayedOperation, str, int], object]
"""Called once for each settled operation: with what it was counted as, and its wait in ns."""

_PENDING = Outcome.PENDING
_REJECTED = -1
_NS_PER_S = 1_000_000_000
_NO_KEYS: tuple[Hashable, ...] = ()


class DelayedOperationPurgatory:
    """Holds operations until an event on one of their keys completes them, or their time is up.

    Use it as a context manager, or close it: it may own a timer and threads.

    Args:
        name: names it in logs, metrics and its threads: "Produce", "Fetch".
        timer: expires the operations; by default a ``SystemTimer`` of its own. A timer that is
            passed in is not closed with the purgatory.
        broker_id: tells purgatories of one name apart in the threads' names.
        reaper_enabled: whether a thread of its own moves the timer. If not, call
            ``purgatory.timer.advance_clock`` yourself.
        timer_enabled: whether operations expire at all.
        on_settled: an observer of every outcome; what it raises is logged.
        max_pending: how many operations may wait at the same time; None for any number. One more is
            refused, unless it completes at once.

    Raises:
        ValueError: max_pending is below 1.

    After a fork the child's purgatory is empty and works: what was pending is the parent's to
    answer. A timer or executor of yours has to survive the fork itself.
    """

    def __init__(
        self,
        name: str,
        timer: Timer | None = None,
        broker_id: int = 0,
        reaper_enabled: bool = True,
        timer_enabled: bool = True,
        on_settled: SettledObserver | None = None,
        max_pending: int | None = None,
    ) -> None:
        if max_pending is not None and max_pending < 1:
            raise ValueError(f"max_pending must be at least 1, or None for no limit: {max_pending}")
        self.name = name
        self.broker_id = broker_id
        self._own_timer = SystemTimer(name) if timer is None else None
        self.timer: Timer = self._own_timer if timer is None else timer  # type: ignore[assignment]
        self._timer_enabled = timer_enabled
        self._on_settled = on_settled
        self._max_pending = max_pending
        self._now_ns = self.timer.clock.now_ns
        self._closed = False
        self._closing: Closing | None = None
        self._start_empty()
        forking.protect(self)
        self.reaper: Reaper | None = None
        if reaper_enabled:
            reaper = ExpiredOperationReaper(f"ExpirationReaper-{broker_id}-{name}", self.timer)
            reaper.start()
            self.reaper = reaper

    def _start_empty(self) -> None:
        self._watchers = WatcherList()
        self._lock = self._watchers.lock
        self._pending: dict[int, DelayedOperation] = {}
        self._settling = 0
        self._placed: set[int] = set()
        self._values: dict[Hashable, int] = {}
        self._counters = Counters()
        self._reaper_look_ns = 0
        self._full_log_ns = 0

    # Waiting and waking.

    def try_complete_else_watch(
        self,
        operation: DelayedOperation,
        keys: Iterable[Hashable] = _NO_KEYS,
        thresholds: Mapping[Any, int] | None = None,
    ) -> bool:
        """Complete ``operation`` at once if its condition holds; else let it wait. O(keys).

        The condition is checked, the operation is put on the list of every key, and the condition
        is checked again: an event in between is not missed. Then its timeout starts. Never blocks.

        Args:
            operation: one that was never submitted before.
            keys: what events it waits for. A key given twice counts once.
            thresholds: keys whose value it waits for, and the value: the condition cannot become
                true by ``advance`` before one of them has reached its number. At least one key or
                threshold is needed.

        Returns:
            True if this call completed it.

        Raises:
            ValueError: there are no keys.
            TypeError: a key is not hashable, or ``operation`` is no DelayedOperation.
            OperationReusedError: the operation was submitted before.
            PurgatoryClosedError: the purgatory was closed.
            PurgatoryFullError: ``max_pending`` operations wait already.
        """
        if thresholds is not None:
            thresholds = checked_thresholds(thresholds)
        self._register(operation, checked_keys(keys, bool(thresholds)), thresholds)
        watch = self._watchers.watch if self._max_pending is None else self._watch_if_not_full
        try:
            if operation._op_check_else(watch):
                return True
            if operation._op_outcome is _PENDING:
                self._start_timeout(operation)
        except BaseException:
            operation.cancel()  # a key that can't be compared, an interrupt: leave nothing behind
            raise
        finally:
            if operation._op_outcome is _PENDING:
                operation._op_submitter = 0  # settled by now, it may have yet to be counted
        return False

    def future(
        self,
        operation: DelayedOperation,
        keys: Iterable[Hashable] = _NO_KEYS,
        thresholds: Mapping[Any, int] | None = None,
    ) -> Future[Outcome]:
        """Submit ``operation`` and return a future of its outcome: ``try_complete_else_watch``'s
        bridge to ``concurrent.futures``.

        The result is there once the callbacks have run. Cancelling the future cancels the
        operation. If the purgatory is closed and leaves the operation pending, the future raises
        PurgatoryClosedError.

        Raises:
            As ``try_complete_else_watch`` does.
        """
        self.try_complete_else_watch(operation, keys, thresholds)
        return future_of(operation, self.name)

    def check_and_complete(self, key: Hashable) -> int:
        """Check every operation that waits on ``key``, in arrival order. O(watchers). Never blocks.

        If a condition holds when this returns, its operation completes without another event: here,
        or, where a lock was taken, on the thread that held it or by a retry.

        Returns:
            How many operations this call completed.

        Raises:
            TypeError: the key is not hashable.
        """
        try:
            with self._lock:
                operations = self._watchers.operations_on(key)
                self._counters.checks += len(operations)
        except TypeError:
            check_hashable(key)
            raise
        return _check_each(operations)

    def advance(self, key: Hashable, value: int) -> int:
        """Say that the value of ``key`` is ``value`` now; check who waits for it or less.

        A value below an earlier one changes nothing: values only rise, until ``forget``. Who waits
        on ``key`` for any event, rather than for a number, is not checked. O(k log n) where k of n
        have their number reached, amortized; O(1) where none has. Never blocks.

        Returns:
            How many operations this call completed.

        Raises:
            TypeError: the key is not hashable, or the value is not an integer.
        """
        if type(value) is not int:
            value = checked_number("value", key, value)
        values = self._values
        try:
            with self._lock:
                known = values.get(key)
                if known is None or value > known:
                    values[key] = value
                operations = self._watchers.take_reached(key, value)
                self._counters.checks += len(operations)
        except TypeError:
            check_hashable(key)
            raise
        return _check_each(operations) if operations else 0

    def value(self, key: Hashable) -> int | None:
        """Return the highest value that ``advance`` was told of ``key``, or None. O(1).

        Raises:
            TypeError: the key is not hashable.
        """
        try:
            return self._values.get(key)
        except TypeError:
            check_hashable(key)
            raise

    def forget(self, key: Hashable) -> None:
        """Forget the value of ``key``: it went away, or starts anew.

        Who still waits for a number that was reached waits for it again. O(watchers), amortized.

        Raises:
            TypeError: the key is not hashable.
        """
        check_hashable(key)
        with self._lock:
            self._values.pop(key, None)
            self._watchers.wait_anew(key)

    def wait_for_threshold(self, key: Hashable, number: int, timeout: float | None = None) -> int:
        """Block this thread until the value of ``key``, as ``advance`` tells it, is ``number``.

        Args:
            key: any hashable.
            number: what the value shall reach; at once, if it has.
            timeout: seconds; None waits for ever.

        Returns:
            The value.

        Raises:
            TimeoutError: it was not reached in time.
            PurgatoryClosedError: the purgatory was closed, before or meanwhile.
            PurgatoryFullError: ``max_pending`` operations wait already.
        """
        waiting = ThresholdWaiting(self._values, key, number, delay_of(timeout))
        try:
            self.try_complete_else_watch(waiting, thresholds={key: number})
            waiting.wait()
        except BaseException:
            waiting.cancel()  # interrupted by a signal: nobody waits any more
            raise
        return waiting.result(self.name)

    def complete_all(self, key: Hashable) -> int:
        """Complete every operation that waits on ``key``, whether its condition holds or not.

        For a key that goes away. Callbacks run as for a check: where a lock is taken, its holder or
        a retry completes the operation. O(watchers).

        Returns:
            How many waited on the key.

        Raises:
            TypeError: the key is not hashable.
        """
        return self._settle_on(key, Outcome.COMPLETED, None)

    def fail_all(self, key: Hashable, error: BaseException) -> int:
        """Fail every operation that waits on ``key`` with ``error``: ``on_failure`` is called.

        For a key that goes away; otherwise as ``complete_all``.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"error must be an exception, not {error!r}")
        return self._settle_on(key, Outcome.FAILED, error)

    def _settle_on(self, key: Hashable, outcome: Outcome, error: BaseException | None) -> int:
        check_hashable(key)
        with self._lock:
            operations = self._watchers.operations_on(key)
        for operation in operations:
            operation._op_verdict = (outcome, error)
            operation._op_serve()
        return len(operations)

    def cancel_for_key(self, key: Hashable) -> list[DelayedOperation]:
        """Cancel every operation that waits on ``key``, and return those, in arrival order.

        They leave their other keys and the timer too. No callback runs: answering is up to you.
        O(watchers).

        Raises:
            TypeError: the key is not hashable.
        """
        check_hashable(key)
        with self._lock:
            operations = self._watchers.operations_on(key)
        return [operation for operation in operations if operation.cancel()]

    # What it holds.

    @property
    def watched(self) -> int:
        """Entries on all watch lists: each pending operation counts once per key. O(1), exact."""
        return self._watchers.entries

    @property
    def watched_keys(self) -> int:
        """Keys that somebody waits on. O(1), exact."""
        return len(self._watchers.by_key)

    @property
    def num_delayed(self) -> int:
        """Operations that are pending. O(1), exact."""
        with self._lock:
            return len(self._pending) - self._settling

    @property
    def max_pending(self) -> int | None:
        """How many operations may wait at the same time, or None."""
        return self._max_pending

    @property
    def oldest_pending_ns(self) -> int:
        """How long the pending operation that was taken first has waited, or 0. Exact.

        O(1), but for those before it whose callbacks run, or that left since another one came.
        """
        oldest = self._oldest()
        return 0 if oldest is None else max(0, self._now_ns() - oldest._op_start_ns)

    def _oldest(self) -> DelayedOperation | None:
        with self._lock:
            while True:
                try:
                    for operation in self._pending.values():
                        if operation._op_outcome is _PENDING:
                            return operation
                    return None
                except RuntimeError:
                    continue  # a finalizer came in between and changed it

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, and takes nothing any more."""
        return self._closed

    @property
    def owns_timer(self) -> bool:
        """Whether the timer was made by this purgatory, and ends with it."""
        return self._own_timer is not None

    @property
    def counters(self) -> CountersSnapshot:
        """Exact counts of outcomes with their waits, checks, callback errors, missed wake-ups."""
        with self._lock:
            return self._counters.snapshot()

    # Closing.

    def close(self, pending: ClosePolicy = "expire", timeout: float | None = 10.0) -> int:
        """Take no more operations, settle the pending ones, end the threads.

        When it returns nothing of this purgatory runs any more, on any thread; except what was
        still in a callback when ``timeout`` was over, which is logged.

        Args:
            pending: "expire" runs ``on_complete`` and ``on_expiration`` now; "fail" runs
                ``on_failure`` with a PurgatoryClosedError; "leave" takes them off and never calls
                them.
            timeout: seconds to wait for callbacks and for locks of yours that are taken; None
                waits for ever. After that, an operation whose lock is still taken is failed without
                it.

        Returns:
            How many operations were pending. Closing again returns 0.

        Raises:
            ValueError: ``pending`` is none of the three, or ``timeout`` is nan.
            TypeError: ``timeout`` is no number.
        """
        timeout_s = checked_timeout_s(timeout)
        first = not self.is_closed
        settled = self._stop_intake(pending).close(timeout_s)
        if first:
            log_safely("info", "purgatory_closed", purgatory=self.name, pending=settled)
        return settled if first else 0

    def _stop_intake(self, policy: ClosePolicy) -> Closing:
        """Take nothing more, and return how this purgatory closes: the first policy counts."""
        check_policy(policy)
        with self._lock:
            self._closed = True
            if self._closing is None:
                self._closing = Closing(self, policy)
            return self._closing

    def _closing_failed(self, error: BaseException | None) -> bool:
        """Whether ``error`` is the one that all get who are failed by closing."""
        return self._closing is not None and error is self._closing.error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # The parts of try_complete_else_watch.

    def _register(
        self,
        operation: DelayedOperation,
        keys: tuple[Hashable, ...],
        thresholds: Mapping[Any, int] | None,
    ) -> None:
        identity = id(operation)
        now_ns = self._now_ns()
        taken = False
        try:
            with self._lock:
                # No isinstance: of an abstract class, it costs a thirtieth of all the rest.
                if operation._op_purgatory is None:
                    if self._closed:
                        self._counters.rejected += 1
                    else:
                        taken = True
                        operation._op_start_ns = now_ns
                        operation._op_submitter = get_ident()
                        operation._op_keys = keys
                        operation._op_thresholds = thresholds
                        operation._op_purgatory = self
                        if operation._op_outcome is _PENDING:
                            self._pending[identity] = operation
        except AttributeError:
            raise self._refusal(operation) from None
        if not taken:
            raise self._refusal(operation)
        if now_ns > self._reaper_look_ns:
            self._look_after_reaper(now_ns)

    def _refusal(self, operation: object) -> Exception:
        """Return why ``operation`` was not taken. Not under the lock: it asks for its repr."""
        if not isinstance(operation, DelayedOperation):
            return TypeError(f"operation must be a DelayedOperation, not {safe_repr(operation)}")
        if not hasattr(operation, "_op_purgatory"):
            name = type(operation).__name__
            return TypeError(
                f"a {name} can't wait: its __init__ must call super().__init__(delay_ms)"
            )
        if operation._op_purgatory is not None:
            return OperationReusedError(
                f"{safe_repr(operation)} was submitted before, to purgatory "
                f"{operation._op_purgatory.name!r}: make a new one"
            )
        return PurgatoryClosedError(
            f"purgatory {self.name!r} was closed: it does not take {safe_repr(operation)}"
        )

    def _watch_if_not_full(self, operation: DelayedOperation) -> None:
        if not self._has_place_for(operation):
            operation._op_submitter = _REJECTED
            self._log_full(operation)
            raise PurgatoryFullError(
                f"purgatory {self.name!r} is full: max_pending={self._max_pending} operations "
                f"wait, and it does not take {safe_repr(operation)}"
            )
        self._watchers.watch(operation)

    def _has_place_for(self, operation: DelayedOperation) -> bool:
        """Give ``operation`` one of the places, until it is settled, if one is free."""
        assert self._max_pending is not None
        with self._lock:
            self._placed.add(id(operation))
            full = len(self._placed) > self._max_pending
            if full or operation._op_outcome is not _PENDING:
                self._placed.discard(id(operation))
        return not full or operation._op_outcome is not _PENDING

    def _log_full(self, operation: DelayedOperation) -> None:
        now_ns = self._now_ns()
        with self._lock:
            if now_ns < self._full_log_ns:  # once a second is enough
                return
            self._full_log_ns = now_ns + _NS_PER_S
        log_safely(
            "warning",
            "purgatory_full",
            purgatory=self.name,
            operation=safe_repr(operation),
            limit=self._max_pending,
        )

    def _look_after_reaper(self, now_ns: int) -> None:
        """Once a second, on a thread that submits: see that the reaper lives."""
        self._reaper_look_ns = now_ns + _NS_PER_S
        if self.reaper is not None and self.reaper.restart_if_dead():
            log_safely("error", "reaper_restarted", purgatory=self.name)

    def _start_timeout(self, operation: DelayedOperation) -> None:
        if not self._timer_enabled or operation.delay_ms >= FOREVER_MS:
            return
        try:
            self.timer.add(operation)
        except TimerClosedError:
            if not self._closed:
                raise
        # Put on the timer first, then looked: settled meanwhile, or let go of, without keys.
        if operation._op_outcome is not _PENDING or not (
            operation._op_keys or operation._op_thresholds
        ):
            TimerTask.cancel(operation)

    # What an operation asks of its purgatory.

    def _unwatch(self, operation: DelayedOperation) -> None:
        """Take a claimed operation off all lists, and note how long it waited. O(keys)."""
        lock = self._lock
        lock.acquire()
        try:
            if id(operation) in self._pending:
                self._settling += 1
            if self._max_pending is not None:
                self._placed.discard(id(operation))
            key_error = self._watchers.unwatch(operation)
        finally:
            lock.release()
        if key_error is not None:
            operation._op_log("error", "key_failed", exc_info=key_error)
        operation._op_wait_ns = self._now_ns() - operation._op_start_ns

    def _count_settled(self, operation: DelayedOperation) -> None:
        """Book a settled operation, whose callbacks are done, and forget it."""
        counted_as: str = operation._op_outcome._value_
        if counted_as == "completed" and operation._op_submitter == operation._op_settler:
            counted_as = "immediate"
        elif operation._op_submitter == _REJECTED:
            counted_as = "rejected"
        wait_ns = operation._op_wait_ns
        try:
            if self._on_settled is not None:
                self._on_settled(operation, counted_as, wait_ns)
        except FAULTS as error:
            log_safely(
                "error",
                "on_settled_failed",
                purgatory=self.name,
                operation=safe_repr(operation),
                exc_info=error,
            )
        finally:
            lock = self._lock
            lock.acquire()
            try:
                if self._pending.pop(id(operation), None) is not None:
                    self._settling -= 1
                    if counted_as == "rejected":
                        self._counters.rejected += 1
                    else:
                        self._counters.by_outcome[counted_as].add(wait_ns)
            finally:
                lock.release()

    def _count_callback_error(self, stage: str) -> None:
        with self._lock:
            self._counters.callback_errors[stage] += 1

    def _count_missed_wakeup(self) -> None:
        with self._lock:
            self._counters.missed_wakeups += 1

    def _retry_later(self, retry: RetryTask) -> None:
        try:
            self.timer.add(retry)
        except TimerClosedError:
            if not self._closed:  # who closes tries the operation himself
                raise

    def _after_fork(self) -> None:
        """In the child: forget what is the parent's, with all locks that its threads may hold."""
        self._start_empty()
        if self.reaper is not None:
            self.reaper._after_fork()

    def _check(self) -> None:
        """Assert all invariants; exact while no thread is inside. O(entries)."""
        with self._lock:
            expected: set[tuple[Hashable, int]] = set()
            for operation in self._pending.values():
                assert operation._op_outcome is Outcome.PENDING, operation
                keys = (*operation._op_keys, *(operation._op_thresholds or ()))
                expected.update((key, id(operation)) for key in keys)
            found = {(key, id(operation)) for key, operation in self._watchers._pairs()}
            assert found == expected, "the lists hold what is pending, under all its keys"
            assert self._settling == 0
            self._watchers._check()


def _check_each(operations: list[DelayedOperation]) -> int:
    completed = 0
    for operation in operations:
        if operation.maybe_try_complete():
            completed += 1
    return completed
