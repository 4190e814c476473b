"""The purgatory: where operations wait, under their keys and on the timer.

Ground rules
------------
* One lock, ``_lock``, guards the watch lists, what is pending, the counters and whether the
  purgatory is closed. It is never held while user code runs, nor while another lock is waited for.
* An operation is in ``_pending`` from before its first check until its callbacks are done;
  ``_settling`` counts those among them that are claimed. Closing waits for ``_pending`` to be
  empty, and lets nothing in after that.
* What an operation and its purgatory promise each other about lists and outcomes stands in
  ``delayed_operation`` and ``watchers``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from threading import get_ident
from types import TracebackType
from typing import Self, get_args

import structlog

from purgatory.closing import ClosePolicy, Closing
from purgatory.counters import Counters, CountersSnapshot
from purgatory.delayed_operation import DelayedOperation
from purgatory.errors import OperationReusedError, PurgatoryClosedError
from purgatory.expired_operation_reaper import ExpiredOperationReaper
from purgatory.outcome import Outcome
from purgatory.retry_task import RetryTask
from purgatory.safe_log import log_safely
from purgatory.watchers import WatcherList
from timer import SystemTimer, Timer, TimerClosedError, TimerTask

SettledObserver = Callable[[DelayedOperation, str, int], object]
"""Called once for each settled operation: with what it was counted as, and its wait in ns."""

_PENDING = Outcome.PENDING

_log = structlog.get_logger("purgatory")


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
    """

    def __init__(
        self,
        name: str,
        timer: Timer | None = None,
        broker_id: int = 0,
        reaper_enabled: bool = True,
        timer_enabled: bool = True,
        on_settled: SettledObserver | None = None,
    ) -> None:
        self.name = name
        self.broker_id = broker_id
        self._own_timer = SystemTimer(name) if timer is None else None
        self.timer: Timer = self._own_timer if timer is None else timer  # type: ignore[assignment]
        self._timer_enabled = timer_enabled
        self._on_settled = on_settled
        self._now_ns = self.timer.clock.now_ns
        self._watchers = WatcherList()
        self._lock = self._watchers.lock
        self._pending: dict[int, DelayedOperation] = {}
        self._settling = 0
        self._counters = Counters()
        self._closed = False
        self._closing: Closing | None = None
        self.reaper: ExpiredOperationReaper | None = None
        if reaper_enabled:
            self.reaper = ExpiredOperationReaper(f"ExpirationReaper-{broker_id}-{name}", self.timer)
            self.reaper.start()

    # Waiting and waking.

    def try_complete_else_watch(
        self, operation: DelayedOperation, keys: Iterable[Hashable]
    ) -> bool:
        """Complete ``operation`` at once if its condition holds; else let it wait. O(keys).

        The condition is checked, the operation is put on the list of every key, and the condition
        is checked again: an event in between is not missed. Then its timeout starts. Never blocks.

        Args:
            operation: one that was never submitted before.
            keys: what events it waits for; at least one. A key given twice counts once.

        Returns:
            True if this call completed it.

        Raises:
            ValueError: there are no keys.
            TypeError: a key is not hashable, or ``operation`` is no DelayedOperation.
            OperationReusedError: the operation was submitted before.
            PurgatoryClosedError: the purgatory was closed.
        """
        watch_keys = self._checked_keys(keys)
        self._register(operation, watch_keys)
        try:
            if operation.safe_try_complete_or_else(lambda: self._watchers.watch(operation)):
                return True
            if self._timer_enabled and operation._op_outcome is _PENDING:
                self._start_timeout(operation)
        except BaseException:
            operation.cancel()  # a key that can't be compared, an interrupt: leave nothing behind
            raise
        finally:
            operation._op_submitter = 0
        return False

    def check_and_complete(self, key: Hashable) -> int:
        """Check every operation that waits on ``key``, in arrival order. O(watchers). Never blocks.

        If a condition holds when this returns, its operation completes without another event: here,
        or, where a lock was taken, on the thread that held it or by a retry.

        Returns:
            How many operations this call completed.

        Raises:
            TypeError: the key is not hashable.
        """
        lock = self._lock
        lock.acquire()
        try:
            operations = self._watchers.operations_on(key)
            self._counters.checks += len(operations)
        except TypeError:
            _check_hashable(key)
            raise
        finally:
            lock.release()
        completed = 0
        for operation in operations:
            if operation.maybe_try_complete():
                completed += 1
        return completed

    def cancel_for_key(self, key: Hashable) -> list[DelayedOperation]:
        """Cancel every operation that waits on ``key``, and return those, in arrival order.

        They leave their other keys and the timer too. No callback runs: answering is up to you.
        O(watchers).

        Raises:
            TypeError: the key is not hashable.
        """
        _check_hashable(key)
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
    def oldest_pending_ns(self) -> int:
        """How long the oldest pending operation has waited, or 0."""
        with self._lock:
            oldest = next(iter(self._pending.values()), None)
            return 0 if oldest is None else max(0, self._now_ns() - oldest._op_start_ns)

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

    def close(self, pending: ClosePolicy = "expire", timeout: float = 10.0) -> int:
        """Take no more operations, settle the pending ones, end the threads.

        When it returns nothing of this purgatory runs any more, on any thread; except what was
        still in a callback when ``timeout`` was over, which is logged.

        Args:
            pending: "expire" runs ``on_complete`` and ``on_expiration`` now; "fail" runs
                ``on_failure`` with a PurgatoryClosedError; "leave" takes them off and never calls
                them.
            timeout: seconds to wait for callbacks and for locks of yours that are taken. After
                that, an operation whose lock is still taken is failed without it.

        Returns:
            How many operations were pending. Closing again returns 0.

        Raises:
            ValueError: ``pending`` is none of the three.
        """
        if pending not in get_args(ClosePolicy):
            raise ValueError(
                f"pending must be one of {', '.join(get_args(ClosePolicy))}, not {pending!r}"
            )
        with self._lock:
            first = not self._closed
            self._closed = True
            if self._closing is None:
                self._closing = Closing(self, pending)
            closing = self._closing
        settled = closing.close(timeout)
        if first:
            _log.info("purgatory_closed", purgatory=self.name, pending=settled)
        return settled if first else 0

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

    def _checked_keys(self, keys: Iterable[Hashable]) -> tuple[Hashable, ...]:
        if isinstance(keys, (str, bytes)):
            raise TypeError(f"keys must be a list of keys, not the single {keys!r}: use [{keys!r}]")
        keys = tuple(keys)
        try:
            unique = len(set(keys))
        except TypeError:
            for key in keys:
                _check_hashable(key)
            raise
        if not unique:
            raise ValueError("keys is empty: an operation on no key could only expire")
        return keys if unique == len(keys) else tuple(dict.fromkeys(keys))

    def _register(self, operation: DelayedOperation, keys: tuple[Hashable, ...]) -> None:
        lock = self._lock
        lock.acquire()
        try:
            # No isinstance: of an abstract class, it costs a thirtieth of all the rest.
            if operation._op_purgatory is not None:
                raise OperationReusedError(
                    f"{operation!r} was submitted before, to purgatory "
                    f"{operation._op_purgatory.name!r}: make a new one"
                )
            if self._closed:
                self._counters.rejected += 1
                raise PurgatoryClosedError(
                    f"purgatory {self.name!r} was closed: it does not take {operation!r}"
                )
            operation._op_start_ns = self._now_ns()
            operation._op_submitter = get_ident()
            operation._op_keys = keys
            operation._op_purgatory = self
            if operation._op_outcome is _PENDING:
                self._pending[id(operation)] = operation
        except AttributeError:
            if isinstance(operation, DelayedOperation):
                raise
            raise TypeError(f"operation must be a DelayedOperation, not {operation!r}") from None
        finally:
            lock.release()

    def _start_timeout(self, operation: DelayedOperation) -> None:
        try:
            self.timer.add(operation)
        except TimerClosedError:
            if not self._closed:
                raise
        # Put on the timer first, then looked: settled meanwhile, or let go of.
        if operation._op_outcome is not _PENDING or not operation._op_keys:
            TimerTask.cancel(operation)

    # What an operation asks of its purgatory.

    def _unwatch(self, operation: DelayedOperation) -> None:
        """Take a claimed operation off all lists, and note how long it waited. O(keys)."""
        lock = self._lock
        lock.acquire()
        try:
            if id(operation) in self._pending:
                self._settling += 1
            self._watchers.unwatch(operation, operation._op_keys)
        finally:
            lock.release()
        operation._op_wait_ns = self._now_ns() - operation._op_start_ns

    def _count_settled(self, operation: DelayedOperation) -> None:
        """Book a settled operation, whose callbacks are done, and forget it."""
        counted_as: str = operation._op_outcome._value_
        if counted_as == "completed" and operation._op_submitter == operation._op_settler:
            counted_as = "immediate"
        wait_ns = operation._op_wait_ns
        try:
            if self._on_settled is not None:
                self._on_settled(operation, counted_as, wait_ns)
        except Exception as error:
            log_safely("error", "on_settled_failed", purgatory=self.name, exc_info=error)
        finally:
            lock = self._lock
            lock.acquire()
            try:
                if self._pending.pop(id(operation), None) is not None:
                    self._settling -= 1
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

    def _check(self) -> None:
        """Assert all invariants; exact while no thread is inside. O(entries)."""
        with self._lock:
            expected: dict[Hashable, set[int]] = {}
            for operation in self._pending.values():
                assert operation._op_outcome is Outcome.PENDING, operation
                for key in operation._op_keys:
                    expected.setdefault(key, set()).add(id(operation))
            found = {key: set(watchers) for key, watchers in self._watchers.by_key.items()}
            assert found == expected, "the lists hold what is pending, under all its keys"
            assert self._settling == 0
            self._watchers._check()


def _check_hashable(key: Hashable) -> None:
    try:
        hash(key)
    except TypeError:
        raise TypeError(
            f"a key must be hashable, and {key!r} ({type(key).__name__}) is not; "
            "use a tuple or a frozen dataclass"
        ) from None
