"""The purgatory: where operations wait, under their keys and on the timer.

Ground rules
------------
* Two kinds of lock, neither held while user code runs, nor while the other or an operation's lock is
  waited for: ``_mutex`` guards what is pending, what is being settled, the counters and whether the
  purgatory is closed; each ``WatcherList`` has its own. Both are reentrant, for the sake of
  finalizers.
* An operation is in ``_pending`` from before its first check until it is claimed, and then in
  ``_settling``, with the thread that does it, until its callbacks are done. Closing waits for both
  to be empty, and lets nothing in after that.
* What an operation and its purgatory promise each other about lists and outcomes stands in
  ``delayed_operation`` and ``watchers``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable
from types import TracebackType
from typing import Literal, Self, get_args

import structlog

from purgatory.counters import Counters, CountersSnapshot
from purgatory.delayed_operation import DelayedOperation, RetryTask
from purgatory.errors import OperationReusedError, PurgatoryClosedError
from purgatory.expired_operation_reaper import ExpiredOperationReaper
from purgatory.outcome import Outcome
from purgatory.watchers import WatcherList
from timer import HistogramSnapshot, SystemTimer, Timer, TimerClosedError, TimerTask

SHARDS = 64
"""Shards of the watch lists' map; a power of two. Kafka has 512, for as many more threads."""

ClosePolicy = Literal["expire", "fail", "leave"]
"""What closing does to pending operations: expire them now, fail them, or let go of them."""

SettledObserver = Callable[[DelayedOperation, str, int], object]
"""Called once for each settled operation: with what it was counted as, and its wait in ns."""

_CLOSE_POLL_S = 0.002

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
        self._shards = [WatcherList() for _ in range(SHARDS)]
        self._mutex = threading.RLock()
        self._pending: dict[int, DelayedOperation] = {}
        self._settling: dict[int, int] = {}
        self._counters = Counters()
        self._closed = False
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
        if not isinstance(operation, DelayedOperation):
            raise TypeError(f"operation must be a DelayedOperation, not {operation!r}")
        watch_keys = self._checked_keys(keys)
        self._register(operation, watch_keys)
        try:
            if operation.safe_try_complete_or_else(lambda: self._watch(operation, watch_keys)):
                return True
            if self._timer_enabled and operation._op_outcome is Outcome.PENDING:
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
        operations = self._shard(key).operations_on(key)
        if not operations:
            return 0
        completed = 0
        for operation in operations:
            if operation.maybe_try_complete():
                completed += 1
        self._mutex.acquire()
        self._counters.checks += len(operations)
        self._mutex.release()
        return completed

    def cancel_for_key(self, key: Hashable) -> list[DelayedOperation]:
        """Cancel every operation that waits on ``key``, and return those, in arrival order.

        They leave their other keys and the timer too. No callback runs: answering is up to you.
        O(watchers).

        Raises:
            TypeError: the key is not hashable.
        """
        return [
            operation for operation in self._shard(key).operations_on(key) if operation.cancel()
        ]

    # What it holds.

    @property
    def watched(self) -> int:
        """Entries on all watch lists: each pending operation counts once per key. O(1), exact."""
        return sum(shard.entries for shard in self._shards)

    @property
    def watched_keys(self) -> int:
        """Keys that somebody waits on. O(1), exact."""
        return sum(len(shard.watchers_by_key) for shard in self._shards)

    @property
    def num_delayed(self) -> int:
        """Operations that are pending. O(1), exact."""
        return len(self._pending)

    @property
    def oldest_pending_ns(self) -> int:
        """How long the oldest pending operation has waited, or 0."""
        with self._mutex:
            oldest = next(iter(self._pending.values()), None)
            return 0 if oldest is None else max(0, self._now_ns() - oldest._op_start_ns)

    @property
    def counters(self) -> CountersSnapshot:
        """Exact counts of outcomes, checks, callback errors and missed wake-ups."""
        with self._mutex:
            return self._counters.snapshot()

    @property
    def waits(self) -> dict[str, HistogramSnapshot]:
        """The histogram of the waits, for each way to be settled."""
        return {outcome: waits.snapshot() for outcome, waits in self._counters.waits.items()}

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
        with self._mutex:
            operations = [] if self._closed else list(self._pending.values())
            first = not self._closed
            self._closed = True
        if first:
            self._settle_all(operations, pending)
            self._drain(time.monotonic() + timeout)
            _log.info("purgatory_closed", purgatory=self.name, pending=len(operations))
        self._end_threads()
        return len(operations)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _settle_all(self, operations: list[DelayedOperation], policy: ClosePolicy) -> None:
        error = PurgatoryClosedError(f"purgatory {self.name!r} was closed")
        for operation in operations:
            if policy == "leave":
                TimerTask.cancel(operation)
                self._unwatch(operation, operation._op_keys)
                self._settling.pop(id(operation), None)
            elif policy == "expire":
                operation.run()
            else:
                operation._op_failure_due = error
                operation._op_serve()

    def _drain(self, deadline_s: float) -> None:
        """Wait until nothing is pending or being settled by others, trying taken locks again."""
        while True:
            with self._mutex:
                operations = list(self._pending.values())
                me = threading.get_ident()
                others = sum(thread != me for thread in self._settling.values())
            if not operations and not others:
                return
            if time.monotonic() >= deadline_s:
                break
            for operation in operations:
                operation._op_serve()
            time.sleep(_CLOSE_POLL_S)
        _log.error(
            "close_timed_out", purgatory=self.name, locked=len(operations), in_callbacks=others
        )
        for operation in operations:
            operation._op_fail_without_lock(
                PurgatoryClosedError(
                    f"purgatory {self.name!r} was closed while the operation's lock was taken"
                )
            )

    def _end_threads(self) -> None:
        if self.reaper is not None:
            self.reaper.stop_soon()
        if self._own_timer is not None:
            self._own_timer.close()
        if self.reaper is not None:
            self.reaper.join()

    # The parts of try_complete_else_watch.

    def _checked_keys(self, keys: Iterable[Hashable]) -> tuple[Hashable, ...]:
        if isinstance(keys, (str, bytes)):
            raise TypeError(f"keys must be a list of keys, not the single {keys!r}: use [{keys!r}]")
        keys = tuple(keys)
        try:
            unique = tuple(dict.fromkeys(keys))
        except TypeError:
            for key in keys:
                _checked_hash(key)
            raise
        if not unique:
            raise ValueError("keys is empty: an operation on no key could only expire")
        return unique

    def _register(self, operation: DelayedOperation, keys: tuple[Hashable, ...]) -> None:
        mutex = self._mutex
        mutex.acquire()
        try:
            if operation._op_purgatory is not None:
                raise OperationReusedError(
                    f"{operation!r} was submitted before, to purgatory "
                    f"{operation._op_purgatory.name!r}: make a new one"
                )
            if self._closed:
                self._counters.outcomes["rejected"] += 1
                raise PurgatoryClosedError(
                    f"purgatory {self.name!r} was closed: it does not take {operation!r}"
                )
            operation._op_start_ns = self._now_ns()
            operation._op_submitter = threading.get_ident()
            operation._op_keys = keys
            operation._op_purgatory = self
            if operation._op_outcome is Outcome.PENDING:
                self._pending[id(operation)] = operation
        finally:
            mutex.release()

    def _watch(self, operation: DelayedOperation, keys: tuple[Hashable, ...]) -> None:
        for key in keys:
            if not self._shards[hash(key) % SHARDS].watch(key, operation):
                return  # settled by somebody else meanwhile: not put on the other keys

    def _start_timeout(self, operation: DelayedOperation) -> None:
        try:
            self.timer.add(operation)
        except TimerClosedError:
            if not self._closed:
                raise
        if operation._op_outcome is not Outcome.PENDING:
            TimerTask.cancel(operation)

    def _shard(self, key: Hashable) -> WatcherList:
        try:
            return self._shards[hash(key) % SHARDS]
        except TypeError:
            _checked_hash(key)
            raise

    # What an operation asks of its purgatory.

    def _unwatch(self, operation: DelayedOperation, keys: tuple[Hashable, ...]) -> None:
        """Take a claimed operation off everything, and note who settles it. O(keys)."""
        mutex = self._mutex
        mutex.acquire()
        try:
            self._pending.pop(id(operation), None)
            self._settling[id(operation)] = threading.get_ident()
        finally:
            mutex.release()
        operation._op_wait_ns = self._now_ns() - operation._op_start_ns
        for key in keys:
            self._shards[hash(key) % SHARDS].unwatch(key, operation)

    def _count_settled(self, operation: DelayedOperation) -> None:
        counted_as = operation._op_outcome.value
        if (
            operation._op_submitter == threading.get_ident()
            and operation._op_outcome is Outcome.COMPLETED
        ):
            counted_as = "immediate"
        wait_ns = operation._op_wait_ns
        counters = self._counters
        counters.waits[counted_as].observe(wait_ns)
        if self._on_settled is not None:
            try:
                self._on_settled(operation, counted_as, wait_ns)
            except Exception:
                _log.exception("on_settled_failed", purgatory=self.name)
        mutex = self._mutex
        mutex.acquire()
        counters.outcomes[counted_as] += 1
        self._settling.pop(id(operation), None)
        mutex.release()

    def _count_callback_error(self, stage: str) -> None:
        with self._mutex:
            self._counters.callback_errors[stage] += 1

    def _count_missed_wakeup(self) -> None:
        with self._mutex:
            self._counters.missed_wakeups += 1

    def _retry_later(self, retry: RetryTask) -> None:
        try:
            self.timer.add(retry)
        except TimerClosedError:
            if not self._closed:  # who closes tries the operation himself
                raise

    def _check(self) -> None:
        """Assert all invariants; exact while no thread is inside. O(entries)."""
        expected: dict[Hashable, list[int]] = {}
        with self._mutex:
            for operation in self._pending.values():
                assert operation._op_outcome is Outcome.PENDING, operation
                for key in operation._op_keys:
                    expected.setdefault(key, []).append(id(operation))
        found: dict[Hashable, list[int]] = {}
        for shard in self._shards:
            shard._check()
            for key, watchers in shard.watchers_by_key.items():
                found[key] = list(watchers.operations)
        assert found == expected, "the lists hold the pending operations, each under all its keys"
        assert self.watched == sum(map(len, expected.values()))
        assert not self._settling


def _checked_hash(key: Hashable) -> None:
    try:
        hash(key)
    except TypeError:
        raise TypeError(
            f"a key must be hashable, and {key!r} ({type(key).__name__}) is not; "
            "use a tuple or a frozen dataclass"
        ) from None
