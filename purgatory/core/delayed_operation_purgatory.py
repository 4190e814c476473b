"""The purgatory: where operations wait, under their keys and on the timer.

Ground rules
------------
* The watch lists, what is pending, the counters and whether the purgatory is closed change in a
  turn (see ``turn``), in which no user code runs, and no lock is waited for.
* An operation is in ``_pending`` from before its first check until it is claimed, then in
  ``_settling`` until its callbacks are done. Closing waits for both to be empty, and lets nothing
  in after that.
* What an interrupt broke off stands in ``_broken_off`` until it is finished: by whoever comes next.
  It is noted without a call, since a call is where the next interrupt could come.
* Where ``max_pending`` is set, ``_placed`` are the identities of those that may wait: from after
  their first check until they are settled.
* What an operation and its purgatory promise each other about lists and outcomes stands in
  ``delayed_operation`` and ``watchers``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from threading import get_ident
from types import TracebackType
from typing import Any, Self

from purgatory.core.callback_chain import this_thread
from purgatory.core.closing import LISTS, ClosePolicy, Closing, check_policy
from purgatory.core.counters import WAIT_BOUNDS_NS, Counters, CountersSnapshot
from purgatory.core.delayed_operation import FOREVER_MS, REFUSED, DelayedOperation
from purgatory.core.errors import (
    FAULTS,
    OperationReusedError,
    PurgatoryClosedError,
    PurgatoryFullError,
)
from purgatory.core.expired_operation_reaper import ExpiredOperationReaper
from purgatory.core.fault_log import log_safely
from purgatory.core.operation_future import future_of
from purgatory.core.outcome import Outcome
from purgatory.core.reaper import Reaper
from purgatory.core.retry_task import RetryTask
from purgatory.core.timeout import checked_timeout_s
from purgatory.core.turn import Me
from purgatory.core.waiting import ThresholdWaiting, delay_of
from purgatory.core.watch_keys import (
    check_hashable,
    checked_keys,
    checked_number,
    checked_thresholds,
)
from purgatory.core.watchers import WatcherList
from timer import SystemTimer, Timer, TimerClosedError, TimerTask, forking
from timer.safe_log import safe_repr

SettledObserver = Callable[[DelayedOperation, str, int], object]
"""Called once for each settled operation: with what it was counted as, and its wait in ns."""

_PENDING = Outcome.PENDING
_CANCEL = (Outcome.CANCELLED, None)
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
        self._turn = self._watchers.turn
        self._pending: dict[int, DelayedOperation] = {}
        self._settling: dict[int, DelayedOperation] = {}
        self._broken_off: list[tuple[DelayedOperation | None]] = []
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
        keys = checked_keys(keys, thresholds)
        if self._broken_off:
            self._finish_broken_off()
        watch = self._watchers.watch if self._max_pending is None else self._watch_if_not_full
        me = [get_ident()]
        try:
            self._register(operation, keys, thresholds, me)
            completed = operation._op_check_else(watch)
            refused = operation._op_submitter is REFUSED
            if refused:
                operation.cancel()
            elif not completed and operation._op_outcome is _PENDING:
                self._start_timeout(operation)
            if operation._op_outcome is _PENDING:
                operation._op_submitter = None  # settled by now, it may have yet to be counted
        except BaseException:
            try:
                is_ours = operation._op_submitter is me or operation._op_submitter is REFUSED
            except AttributeError:
                is_ours = False  # it is no operation
            if is_ours:  # a key that can't be compared, an interrupt: leave nothing behind
                operation._op_verdict = _CANCEL
                self._broken_off += ((operation,),)
                operation.cancel()
            raise
        if refused:
            raise self._full(operation)
        return completed

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
        if self._broken_off:
            self._finish_broken_off()
        operations: list[DelayedOperation] = []
        me = [get_ident()]
        turn = self._turn
        try:
            if turn.setdefault("holder", me) is not me:
                turn = turn.wait(me)
            # WatcherList.operations_on(key), written out.
            watchers = self._watchers.by_key.get(key)
            if watchers is not None:
                operations += watchers.values()
                self._counters.checks += len(operations)
            del turn["holder"]
            return _check_each(operations)
        except BaseException as error:
            if "holder" in turn and turn["holder"] is me:
                del turn["holder"]
            self._broken_off += zip(operations)
            if isinstance(error, TypeError):
                check_hashable(key)
            raise

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
        if self._broken_off:
            self._finish_broken_off()
        values = self._values
        operations: list[DelayedOperation] = []
        me = [get_ident()]
        turn = self._turn
        try:
            if turn.setdefault("holder", me) is not me:
                turn = turn.wait(me)
            known = values.get(key)
            if known is None or value > known:
                values[key] = value
            if key in self._watchers.numbers_by_key:
                self._watchers.take_reached(key, value, operations)
                self._counters.checks += len(operations)
            del turn["holder"]
            return _check_each(operations) if operations else 0
        except BaseException as error:
            if "holder" in turn and turn["holder"] is me:
                del turn["holder"]
            self._broken_off += LISTS
            self._broken_off += zip(operations)  # the next event passes over them
            if isinstance(error, TypeError):
                check_hashable(key)
            raise

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
        if self._broken_off:
            self._finish_broken_off()

        def forget() -> None:
            self._values.pop(key, None)
            self._watchers.wait_anew(key)

        try:
            self._turn.run(forget)
        except BaseException:
            self._broken_off += LISTS
            raise

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
        operations = self._waiting_on(key)
        verdict = (outcome, error)
        try:
            for operation in operations:
                operation._op_verdict = verdict
                operation._op_serve()
        except BaseException:
            for operation in operations:
                operation._op_verdict = verdict
            self._broken_off += zip(operations)
            raise
        return len(operations)

    def _waiting_on(self, key: Hashable) -> list[DelayedOperation]:
        check_hashable(key)
        if self._broken_off:
            self._finish_broken_off()
        return self._turn.run(lambda: self._watchers.operations_on(key))

    def cancel_for_key(self, key: Hashable) -> list[DelayedOperation]:
        """Cancel every operation that waits on ``key``, and return those, in arrival order.

        They leave their other keys and the timer too. No callback runs: answering is up to you.
        O(watchers).

        Raises:
            TypeError: the key is not hashable.
        """
        return [operation for operation in self._waiting_on(key) if operation.cancel()]

    # What it holds.

    @property
    def watched(self) -> int:
        """Entries on all watch lists: each pending operation counts once per key. O(1), exact."""
        if self._broken_off:
            self._finish_broken_off()
        return self._watchers.entries

    @property
    def watched_keys(self) -> int:
        """Keys that somebody waits on. O(1), exact."""
        if self._broken_off:
            self._finish_broken_off()
        return len(self._watchers.by_key)

    @property
    def num_delayed(self) -> int:
        """Operations that are pending. O(1), exact."""
        if self._broken_off:
            self._finish_broken_off()
        return len(self._pending)

    @property
    def max_pending(self) -> int | None:
        """How many operations may wait at the same time, or None."""
        return self._max_pending

    @property
    def oldest_pending_ns(self) -> int:
        """How long the pending operation that was taken first has waited, or 0. Exact.

        O(1), but for those before it that left since another one came.
        """
        if self._broken_off:
            self._finish_broken_off()
        oldest = self._turn.run(self._oldest)
        return 0 if oldest is None else max(0, self._now_ns() - oldest._op_start_ns)

    def _oldest(self) -> DelayedOperation | None:
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
        if self._broken_off:
            self._finish_broken_off()
        return self._turn.run(self._counters.snapshot)

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
        closing = Closing(self, policy)

        def stop_intake() -> Closing:
            self._closed = True
            if self._closing is None:
                self._closing = closing
            return self._closing

        return self._turn.run(stop_intake)

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
        me: Me,
    ) -> None:
        identity = id(operation)
        now_ns = self._now_ns()
        taken = False
        turn = self._turn
        try:
            if turn.setdefault("holder", me) is not me:
                turn = turn.wait(me)
            # No isinstance: of an abstract class, it costs a thirtieth of all the rest.
            if operation._op_purgatory is None:
                if self._closed:
                    self._counters.rejected += 1
                else:
                    taken = True
                    operation._op_start_ns = now_ns
                    operation._op_submitter = me
                    operation._op_keys = keys
                    operation._op_thresholds = thresholds
                    operation._op_purgatory = self
                    if operation._op_outcome is _PENDING:
                        self._pending[identity] = operation
            del turn["holder"]
        except BaseException as error:
            if "holder" in turn and turn["holder"] is me:
                del turn["holder"]
            if isinstance(error, AttributeError):
                raise self._refusal(operation) from None
            raise
        if not taken:
            raise self._refusal(operation)
        if now_ns > self._reaper_look_ns:
            self._look_after_reaper(now_ns)

    def _refusal(self, operation: object) -> Exception:
        """Return why ``operation`` was not taken. Not in a turn: it asks for its repr."""
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

    def _watch_if_not_full(self, operation: DelayedOperation) -> Me | None:
        if not self._has_place_for(operation):
            operation._op_submitter = REFUSED
            return REFUSED
        self._watchers.watch(operation)
        return None

    def _full(self, operation: DelayedOperation) -> PurgatoryFullError:
        self._log_full(operation)
        return PurgatoryFullError(
            f"purgatory {self.name!r} is full: max_pending={self._max_pending} operations "
            f"wait, and it does not take {safe_repr(operation)}"
        )

    def _has_place_for(self, operation: DelayedOperation) -> bool:
        """Give ``operation`` one of the places, until it is settled, if one is free."""
        assert self._max_pending is not None
        limit = self._max_pending

        def place() -> bool:
            self._placed.add(id(operation))
            full = len(self._placed) > limit
            if full or operation._op_outcome is not _PENDING:
                self._placed.discard(id(operation))
            return full

        return not self._turn.run(place) or operation._op_outcome is not _PENDING

    def _log_full(self, operation: DelayedOperation) -> None:
        now_ns = self._now_ns()
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
        if operation._op_outcome is not _PENDING or not operation._op_keys:
            TimerTask.cancel(operation)

    # What an operation asks of its purgatory.

    def _unwatch(self, operation: DelayedOperation, me: Me) -> None:
        """Take a claimed operation off all lists, and note how long it waited. O(keys)."""
        identity = id(operation)
        turn = self._turn
        try:
            if turn.setdefault("holder", me) is not me:
                turn = turn.wait(me)
            if identity in self._pending:
                self._settling[identity] = operation
                self._pending.pop(identity, None)
            if self._max_pending is not None:
                self._placed.discard(identity)
            key_error = self._watchers.unwatch(operation)
            del turn["holder"]
        except BaseException:
            if "holder" in turn and turn["holder"] is me:
                del turn["holder"]
            raise
        if key_error is not None:
            self._broken_off += LISTS
            operation._op_log("error", "key_failed", exc_info=key_error)
        operation._op_wait_ns = self._now_ns() - operation._op_start_ns

    def _observe(
        self, operation: DelayedOperation, counted_as: str, on_settled: SettledObserver
    ) -> None:
        """Tell the observer."""
        try:
            on_settled(operation, counted_as, operation._op_wait_ns)
        except FAULTS as error:
            log_safely(
                "error",
                "on_settled_failed",
                purgatory=self.name,
                operation=safe_repr(operation),
                exc_info=error,
            )

    def _count_settled(self, operation: DelayedOperation, counted_as: str, me: Me) -> None:
        """Book a settled operation, whose callbacks are done, and forget it."""
        identity = id(operation)
        wait_ns = operation._op_wait_ns
        counters = self._counters
        counter = counters.by_outcome.get(counted_as)
        bucket = bisect_left(WAIT_BOUNDS_NS, wait_ns)
        turn = self._turn
        try:
            if turn.setdefault("holder", me) is not me:
                turn = turn.wait(me)
            if identity in self._settling:
                # Counted and forgotten without a call, hence without an interrupt in between.
                del self._settling[identity]
                if counter is None:
                    counters.rejected += 1
                else:
                    counter.total += 1
                    counter.bucket_counts[bucket] += 1
                    counter.wait_sum_ns += wait_ns
            del turn["holder"]
        except BaseException:
            if "holder" in turn and turn["holder"] is me:
                del turn["holder"]
            raise

    def _count_callback_error(self, stage: str) -> None:
        def count() -> None:
            self._counters.callback_errors[stage] += 1

        self._turn.run(count)

    def _count_missed_wakeup(self) -> None:
        def count() -> None:
            self._counters.missed_wakeups += 1

        self._turn.run(count)

    def _finish_broken_off(self) -> None:
        """Finish what an interrupt broke off. O(entries), and what the operations' callbacks cost.

        What is finished is taken off ``_broken_off`` only after that: an interrupt that comes here
        leaves it to the next.
        """
        chain = this_thread.chain
        if self._turn.is_ours or chain.is_going_on:
            return  # it is only just being broken off, or finished: further down the stack
        try:
            chain.is_going_on = True
            notes = self._broken_off[:]
            _go_on_with(notes)
            for key, value in self._turn.run(self._mend_in_turn):
                self.advance(key, value)  # which finds that this is going on

            def tidy_up() -> None:
                finished = set(map(id, notes))
                self._broken_off[:] = [
                    note for note in self._broken_off if id(note) not in finished
                ]

            self._turn.run(tidy_up)
            chain.is_going_on = False
        except BaseException:
            chain.is_going_on = False
            raise

    def _mend_in_turn(self) -> list[tuple[Hashable, int]]:
        """Put the lists right, and return the values that may have been told to nobody."""
        self._watchers.mend()
        keys = self._watchers.numbers_by_key
        with suppress(Exception):  # a key that can't be compared
            return [(key, self._values[key]) for key in keys if key in self._values]
        return []

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
        if self._broken_off:
            self._finish_broken_off()
        self._turn.run(self._check_in_turn)

    def _check_in_turn(self) -> None:
        expected: set[tuple[Hashable, int]] = set()
        for operation in self._pending.values():
            assert operation._op_outcome is Outcome.PENDING, operation
            expected.update((key, id(operation)) for key in operation._op_keys)
        found = {(key, id(operation)) for key, operation in self._watchers._pairs()}
        assert found == expected, "the lists hold what is pending, under all its keys"
        assert not self._settling
        self._watchers._check()


def _go_on_with(notes: list[tuple[DelayedOperation | None]]) -> None:
    for (operation,) in notes:
        if operation is not None:
            operation._op_go_on()


def _check_each(operations: list[DelayedOperation]) -> int:
    completed = 0
    for operation in operations:
        # operation.maybe_try_complete(), written out.
        operation._op_check_due = True
        if operation._op_serve():
            completed += 1
    return completed
