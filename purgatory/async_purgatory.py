"""A purgatory on an event loop: coroutines wait in it, and no thread is needed.

The lists, the operations and the wheel are those of ``DelayedOperationPurgatory``; the loop's own
timer moves the wheel.

Ground rules
------------
* Conditions and callbacks run on the loop's thread, if events are told by ``notify`` and
  ``advance`` there, or by ``notify_threadsafe`` and ``advance_threadsafe`` from other threads.
* The core's locks are taken, for some microseconds each, and by the loop's thread only; except
  while a scrape of metrics on another thread copies the counters.
* ``_notes`` is appended to by any thread and emptied by the loop's. A note comes first, then the
  look at ``_note_told``; the loop clears that first, then looks at the notes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from threading import get_ident
from types import TracebackType
from typing import Any, Self, TypeVar

from purgatory.closing import ClosePolicy
from purgatory.counters import CountersSnapshot
from purgatory.delayed_operation import DelayedOperation
from purgatory.delayed_operation_purgatory import DelayedOperationPurgatory, SettledObserver
from purgatory.errors import PurgatoryClosedError
from purgatory.loop_reaper import LoopReaper
from purgatory.operation_future import left_pending
from purgatory.outcome import Outcome
from purgatory.safe_log import log_safely
from purgatory.waiting import ConditionWaiting, ThresholdWaiting, Waiting, delay_of
from purgatory.watch_keys import check_hashable
from timer import Clock, InlineExecutor, SystemTimer
from timer.safe_log import safe_repr

T = TypeVar("T")


class AsyncPurgatory:
    """Holds what coroutines of one event loop wait for.

    Make it inside a coroutine, on the loop that will use it. ``async with`` closes it.

    Args:
        name: names it in logs and metrics: "Fetch".
        broker_id: tells purgatories of one name apart.
        max_pending: how many operations may wait at the same time; None for any number.
        on_settled: an observer of every outcome; what it raises is logged.
        clock: the time; the machine's monotonic clock by default. A loop in virtual time brings
            its own.

    Raises:
        RuntimeError: no event loop is running.
        ValueError: max_pending is below 1.
    """

    def __init__(
        self,
        name: str,
        broker_id: int = 0,
        max_pending: int | None = None,
        on_settled: SettledObserver | None = None,
        clock: Clock | None = None,
    ) -> None:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                f"AsyncPurgatory({name!r}) needs a running event loop: make it in a coroutine"
            ) from None
        self._thread_id = get_ident()
        self._timer = SystemTimer(name, clock=clock, executor=InlineExecutor())
        self.core = DelayedOperationPurgatory(
            name,
            timer=self._timer,
            broker_id=broker_id,
            reaper_enabled=False,
            on_settled=on_settled,
            max_pending=max_pending,
        )
        self._reaper = LoopReaper(self._timer, self._loop)
        self.core.reaper = self._reaper
        self._notes: deque[tuple[Hashable, int | None]] = deque()
        self._note_told = False

    # Waiting.

    async def wait(
        self, keys: Iterable[Hashable], until: Callable[[], T], timeout: float | None = None
    ) -> T:
        """Wait until an event on one of ``keys`` finds ``until()`` true, and return its value.

        Args:
            keys: the events to wait for. At least one.
            until: checked at once, at each event, and once more when the time is up.
            timeout: seconds; None waits for ever.

        Raises:
            TimeoutError: it did not become true in time.
            PurgatoryClosedError: the purgatory was closed, before or meanwhile.
            PurgatoryFullError: ``max_pending`` operations wait already.
            WaitCancelledError: somebody called ``cancel_for_key``.
            Exception: what ``until`` raised.
        """
        return await self._result(ConditionWaiting(until, delay_of(timeout)), keys, None)

    async def wait_for_threshold(
        self, key: Hashable, number: int, timeout: float | None = None
    ) -> int:
        """Wait until the value of ``key``, as ``advance`` tells it, is ``number``; return it.

        Raises:
            As ``wait`` does.
        """
        waiting = ThresholdWaiting(self.core._values, key, number, delay_of(timeout))
        return await self._result(waiting, (), {key: number})

    async def submit(
        self,
        operation: DelayedOperation,
        keys: Iterable[Hashable] = (),
        thresholds: Mapping[Any, int] | None = None,
    ) -> Outcome:
        """Submit ``operation`` and return its outcome, once its callbacks have run.

        If the task that waits is cancelled, so is the operation.

        Raises:
            As ``DelayedOperationPurgatory.try_complete_else_watch`` does;
            PurgatoryClosedError: the purgatory was closed, and left the operation pending.
        """
        await self._settled(operation, keys, thresholds)
        if operation.outcome is Outcome.PENDING:
            raise left_pending(operation, self.name)
        return operation.outcome

    # Waking.

    def notify(self, key: Hashable) -> int:
        """Check all who wait on ``key``; return how many completed. On the loop's thread.

        Raises:
            RuntimeError: this is another thread.
            TypeError: the key is not hashable.
        """
        self._check_thread("notify")
        return self.core.check_and_complete(key)

    def advance(self, key: Hashable, value: int) -> int:
        """Say that the value of ``key`` is ``value``; return how many completed. On the loop's
        thread. Otherwise as ``DelayedOperationPurgatory.advance``."""
        self._check_thread("advance")
        return self.core.advance(key, value)

    def notify_threadsafe(self, key: Hashable) -> None:
        """Have the loop check all who wait on ``key``, soon. From any thread.

        Raises:
            PurgatoryClosedError: the loop was closed.
            TypeError: the key is not hashable.
        """
        check_hashable(key)
        self._note(key, None)

    def advance_threadsafe(self, key: Hashable, value: int) -> None:
        """As ``notify_threadsafe``, for ``advance``."""
        check_hashable(key)
        self._note(key, value)

    def cancel_for_key(self, key: Hashable) -> list[DelayedOperation]:
        """Cancel all who wait on ``key``, and return them; ``wait`` raises WaitCancelledError."""
        self._check_thread("cancel_for_key")
        return self.core.cancel_for_key(key)

    def complete_all(self, key: Hashable) -> int:
        """Complete all operations that wait on ``key``, whatever their condition says."""
        self._check_thread("complete_all")
        return self.core.complete_all(key)

    def fail_all(self, key: Hashable, error: BaseException) -> int:
        """Fail all who wait on ``key``; ``wait`` raises ``error``."""
        self._check_thread("fail_all")
        return self.core.fail_all(key, error)

    def value(self, key: Hashable) -> int | None:
        """Return the highest value that ``advance`` was told of ``key``, or None."""
        return self.core.value(key)

    def forget(self, key: Hashable) -> None:
        """Forget the value of ``key``."""
        self.core.forget(key)

    # What it holds.

    @property
    def name(self) -> str:
        """What it was named."""
        return self.core.name

    @property
    def watched(self) -> int:
        """Entries on all watch lists. O(1), exact."""
        return self.core.watched

    @property
    def watched_keys(self) -> int:
        """Keys that somebody waits on. O(1), exact."""
        return self.core.watched_keys

    @property
    def num_delayed(self) -> int:
        """Operations that are pending. O(1), exact."""
        return self.core.num_delayed

    @property
    def counters(self) -> CountersSnapshot:
        """Exact counts of what became of the operations."""
        return self.core.counters

    # Closing.

    async def aclose(self, pending: ClosePolicy = "fail", timeout: float = 10.0) -> int:
        """Take nothing more, settle what is pending, and let go of the loop's timer.

        Args:
            pending: "fail" and "leave" have those who wait raise PurgatoryClosedError; "expire"
                has them time out now. "leave" runs no callback of theirs.
            timeout: seconds to wait for locks of yours that are taken, and for callbacks that run
                on other threads.

        Returns:
            How many operations were pending. Closing again returns 0.
        """
        first = not self.core.is_closed
        settled = await self.core._stop_intake(pending).close_on_loop(timeout)
        if first:
            log_safely("info", "purgatory_closed", purgatory=self.name, pending=settled)
        self._reaper.stop_soon()
        self._timer.close()
        return settled if first else 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    # The parts of waiting and waking.

    async def _result(
        self,
        waiting: Waiting[T],
        keys: Iterable[Hashable],
        thresholds: Mapping[Any, int] | None,
    ) -> T:
        await self._settled(waiting, keys, thresholds)
        return waiting.result(self.name)

    async def _settled(
        self,
        operation: DelayedOperation,
        keys: Iterable[Hashable],
        thresholds: Mapping[Any, int] | None,
    ) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                f"purgatory {self.name!r} belongs to another event loop: "
                "make one on the loop that waits in it"
            )
        self.core.try_complete_else_watch(operation, keys, thresholds)
        if operation._op_is_over():
            return
        told = self._loop.create_future()
        operation.call_when_settled(lambda: self._tell(operation, told))
        try:
            await told
        finally:
            # The task was cancelled, or thrown away with its loop: nobody waits any more.
            if not operation._op_is_over():
                operation.cancel()

    def _tell(self, operation: DelayedOperation, told: asyncio.Future[None]) -> None:
        if get_ident() == self._thread_id:
            _set_told(told)
            return
        try:
            self._loop.call_soon_threadsafe(_set_told, told)
        except RuntimeError:
            # and with it the task that waits
            log_safely(
                "warning", "loop_closed", purgatory=self.name, operation=safe_repr(operation)
            )

    def _note(self, key: Hashable, value: int | None) -> None:
        self._notes.append((key, value))
        if self._note_told:
            return
        self._note_told = True
        try:
            self._loop.call_soon_threadsafe(self._serve_notes)
        except RuntimeError:
            raise PurgatoryClosedError(
                f"purgatory {self.name!r} can't be notified: its event loop was closed"
            ) from None

    def _serve_notes(self) -> None:
        self._note_told = False
        noted: dict[Hashable, None] = {}
        while self._notes:
            key, value = self._notes.popleft()
            if value is None:
                noted[key] = None  # told twice, checked once
            else:
                self.core.advance(key, value)
        for key in noted:
            self.core.check_and_complete(key)

    def _check_thread(self, called: str) -> None:
        if get_ident() != self._thread_id:
            raise RuntimeError(
                f"{called} was called on another thread than that of purgatory {self.name!r}'s "
                "event loop: use notify_threadsafe or advance_threadsafe, or "
                "loop.call_soon_threadsafe"
            )


def _set_told(told: asyncio.Future[None]) -> None:
    if not told.done():
        told.set_result(None)
