"""A purgatory on an event loop: coroutines wait in it, and no thread is needed.

The lists, the operations and the wheel are those of ``DelayedOperationPurgatory``; the loop's own
timer moves the wheel.

Ground rules
------------
* Conditions and callbacks run on the loop's thread, if events are reported by ``notify`` and
  ``advance`` there, or by ``notify_threadsafe`` and ``advance_threadsafe`` from other threads.
* The core's locks are taken, for some microseconds each, and by the loop's thread only; except
  while a scrape of metrics on another thread copies the counters.
* ``_notifications`` is appended to by any thread and emptied by the loop's. A notification comes
  first, then the look at ``_is_scheduled``; the loop clears that first, then looks at the
  notifications.
* ``_unbegun`` are the youngest events, and the youngest values, by key: under ``_notes_lock``, one
  more of the same key is merged with it, until the loop begins with it. An event that came after a
  value is checked after it, so a new value ends the merging of events.
* Each callback is scheduled twice, and one that wakes a task is called again if it raises: an
  interrupt may meet the first call before its first step. A call too many does no harm. A
  notification is removed only after it has been handled.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import get_running_loop
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from contextvars import Context
from datetime import timedelta
from threading import get_ident
from typing import Any, NoReturn, Self, TypeVar

from purgatory.core.closing import ClosePolicy
from purgatory.core.counters import CountersSnapshot
from purgatory.core.errors import PurgatoryClosedError
from purgatory.core.keys import Keys, check_hashable, checked_number
from purgatory.core.loop_reaper import LoopReaper
from purgatory.core.operation import DelayedOperation, WakeUp, is_new
from purgatory.core.outcome import Outcome
from purgatory.core.purgatory import CompletionObserver, DelayedOperationPurgatory, stop_intake
from purgatory.core.recent_errors import log_safely
from purgatory.core.waiting import (
    ConditionWaiting,
    ThresholdWaiting,
    delay_of,
    left_pending,
)
from timer import Clock, InlineExecutor, SystemTimer
from timer.durations import checked_timeout_s
from timer.errors import not_copied_error
from timer.former_names import FormerName, former_argument
from timer.locks import ScopedLock
from timer.log import safe_repr

T = TypeVar("T")


def _advice() -> str:
    trio: Any = sys.modules.get("trio")
    try:
        trio.lowlevel.current_task()
    except (AttributeError, RuntimeError):
        return "make it in a coroutine"
    return (
        "this one is trio's. Run the program on asyncio (by anyio, with backend='asyncio'), or use "
        "DelayedOperationPurgatory and wait in a thread: "
        "await trio.to_thread.run_sync(operation.wait)"
    )


MOST_IN_A_TURN = 100
"""Notifications that a turn of the loop handles; the others come in the next."""


class _Notification:
    """A report of another thread: an event on a key, or the key's value."""

    __slots__ = ("failed_before", "key", "value")

    def __init__(self, key: Hashable, value: int | None) -> None:
        self.key = key
        self.value = value
        self.failed_before = False


class AsyncPurgatory:
    """Holds the waits of the coroutines of one event loop.

    Create it inside a coroutine, on the loop that will use it. ``async with`` closes it.

    Args:
        name: names it in logs and metrics: "Fetch".
        broker_id: distinguishes purgatories of one name.
        max_pending: how many operations may wait at the same time; None for any number.
        on_completed: an observer of every outcome; what it raises is logged.
        clock: the time; by default the loop's own ``clock``, which loops in virtual time have, and
            otherwise the machine's monotonic clock.

    Raises:
        RuntimeError: no event loop is running.
        ValueError: max_pending is below 1.
    """

    complete_all = FormerName("complete_for_key")
    fail_all = FormerName("fail_for_key")

    @former_argument("on_settled", "on_completed")
    def __init__(
        self,
        name: str,
        broker_id: int = 0,
        max_pending: int | None = None,
        on_completed: CompletionObserver | None = None,
        clock: Clock | None = None,
    ) -> None:
        try:
            self._loop = get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                f"AsyncPurgatory({name!r}) needs a running event loop of asyncio: {_advice()}"
            ) from None
        self._thread_id = get_ident()
        if clock is None:
            clock = getattr(self._loop, "clock", None)
        self._timer = SystemTimer(name, clock=clock, executor=InlineExecutor())
        self.core = DelayedOperationPurgatory(
            name,
            timer=self._timer,
            broker_id=broker_id,
            reaper_enabled=False,
            on_completed=on_completed,
            max_pending=max_pending,
        )
        self._reaper = LoopReaper(self._timer, self._loop)
        self.core.reaper = self._reaper
        self._notifications: deque[_Notification] = deque()
        self._notes_lock = ScopedLock()
        self._unbegun: tuple[dict[Hashable, _Notification], ...] = ({}, {})
        self._is_scheduled = False

    # Waiting.

    async def wait(
        self,
        keys: Keys,
        until: Callable[[], T],
        timeout: float | timedelta | None = None,
    ) -> T:
        """Wait until an event on one of ``keys`` finds ``until()`` true, and return its value.

        Args:
            keys: the events to wait for. At least one.
            until: checked at once, at each event, and once more when the time is up.
            timeout: seconds, or a timedelta; None waits for ever.

        Raises:
            TimeoutError: it did not become true in time.
            PurgatoryClosedError: the purgatory was closed, before or meanwhile.
            PurgatoryFullError: ``max_pending`` operations wait already.
            WaitCancelledError: ``cancel_for_key`` or ``complete_for_key`` was called.
            Exception: what ``until`` raised.
        """
        waiting = ConditionWaiting(until, delay_of(timeout))
        await self._until_done(waiting, keys, None)
        return waiting.result(self.name)

    async def wait_for_threshold(
        self, key: Hashable, number: int, timeout: float | timedelta | None = None
    ) -> int:
        """Wait until ``advance`` has reported ``number`` or more for ``key``; return the value.

        Raises what ``wait`` does.
        """
        waiting = ThresholdWaiting(self.core.value, key, number, delay_of(timeout))
        await self._until_done(waiting, (), {key: number})
        return waiting.result(self.name)

    async def submit(
        self,
        operation: DelayedOperation,
        keys: Keys = (),
        thresholds: Mapping[Any, int] | None = None,
    ) -> Outcome:
        """Submit ``operation`` and return its outcome, once its callbacks have run.

        If the task that waits is cancelled, so is the operation.

        Raises what ``DelayedOperationPurgatory.try_complete_else_watch`` does, and:

        Raises:
            PurgatoryClosedError: the purgatory was closed, and left the operation pending.
        """
        await self._until_done(operation, keys, thresholds)
        if operation.outcome is Outcome.PENDING:
            raise left_pending(operation, self.name)
        return operation.outcome

    # Waking.

    def notify(self, key: Hashable) -> int:
        """Check all operations on ``key``; return how many completed. On the loop's thread.

        Raises:
            RuntimeError: this is another thread.
            TypeError: the key is not hashable.
        """
        self._check_thread("notify")
        return self.core.check_and_complete(key)

    def advance(self, key: Hashable, value: int) -> int:
        """Report that ``key`` has this ``value``; return how many completed. On the loop's
        thread. Otherwise as ``DelayedOperationPurgatory.advance``."""
        self._check_thread("advance")
        return self.core.advance(key, value)

    def notify_threadsafe(self, key: Hashable) -> None:
        """Have the loop check all operations on ``key``, soon. From any thread.

        Raises:
            PurgatoryClosedError: the loop was closed.
            TypeError: the key is not hashable.
        """
        check_hashable(key)
        self._enqueue(key, None)

    def advance_threadsafe(self, key: Hashable, value: int) -> None:
        """As ``notify_threadsafe``, for ``advance``.

        Raises:
            PurgatoryClosedError: the loop was closed.
            TypeError: the key is not hashable, or the value is no integer.
            ValueError: the value has more than 64 bits.
        """
        check_hashable(key)
        self._enqueue(key, checked_number("value", key, value))

    def cancel_for_key(self, key: Hashable) -> list[DelayedOperation]:
        """Cancel all operations on ``key``, and return them: ``wait`` raises WaitCancelledError."""
        self._check_thread("cancel_for_key")
        return self.core.cancel_for_key(key)

    def check_all(self) -> int:
        """Check all operations, after events may have been missed. On the loop's thread."""
        self._check_thread("check_all")
        return self.core.check_all()

    def complete_for_key(self, key: Hashable) -> int:
        """Complete all operations on ``key``, whether their conditions hold or not: ``wait`` raises
        WaitCancelledError."""
        self._check_thread("complete_for_key")
        return self.core.complete_for_key(key)

    def fail_for_key(self, key: Hashable, error: BaseException) -> int:
        """Fail all operations on ``key``: ``wait`` raises ``error``."""
        self._check_thread("fail_for_key")
        return self.core.fail_for_key(key, error)

    def value(self, key: Hashable) -> int | None:
        """Return the highest value of ``key`` that ``advance`` reported, or None."""
        return self.core.value(key)

    def forget(self, key: Hashable) -> None:
        """Forget the value of ``key``."""
        self.core.forget(key)

    # Sizes.

    def __repr__(self) -> str:
        closed = " closed" if self.core.is_closed else ""
        return f"<{type(self).__name__} {self.name!r}{closed}: {self.num_delayed} pending>"

    def __reduce__(self) -> NoReturn:
        raise not_copied_error(self)

    @property
    def name(self) -> str:
        """Its name."""
        return self.core.name

    @property
    def watched(self) -> int:
        """Entries on all watch lists. O(1), exact."""
        return self.core.watched

    @property
    def watched_keys(self) -> int:
        """Keys with at least one pending operation. O(1), exact."""
        return self.core.watched_keys

    def keys(self) -> list[Hashable]:
        """Return the keys with a pending operation, in no order. O(keys)."""
        return self.core.keys()

    @property
    def num_delayed(self) -> int:
        """Operations that are pending. O(1), exact."""
        return self.core.num_delayed

    @property
    def counters(self) -> CountersSnapshot:
        """Exact counts of outcomes, checks and errors."""
        return self.core.counters

    # Closing.

    @former_argument("pending", "policy")
    async def aclose(
        self, policy: ClosePolicy = "fail", timeout: float | timedelta | None = 10.0
    ) -> int:
        """Refuse new operations, end the pending ones, and cancel the loop's timer.

        Args:
            policy: with "fail" and "leave" all waits raise PurgatoryClosedError; with "expire"
                they time out now. "leave" runs no callback.
            timeout: seconds, or a timedelta, to wait for locks of yours that are taken, and for
                callbacks that run on other threads; None waits for ever.

        Returns:
            How many operations were pending. Closing again returns 0.

        Raises:
            ValueError: ``policy`` is none of the three, or ``timeout`` is nan.
            TypeError: ``timeout`` is neither a number nor a timedelta.
            RuntimeError: this is another event loop than its own.
        """
        timeout_s = checked_timeout_s(timeout)
        if get_running_loop() is not self._loop:
            raise self._of_another_loop(
                "close it there, or by core.close() once that loop is closed"
            )
        first = not self.core.is_closed
        pending = await stop_intake(self.core, policy).close_on_loop(timeout_s)
        if first:
            log_safely("info", "purgatory_closed", purgatory=self.name, pending=pending)
        self._reaper.stop_soon()
        self._timer.close()
        return pending if first else 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    # The parts of waiting and waking.

    async def _until_done(
        self,
        operation: DelayedOperation,
        keys: Keys,
        thresholds: Mapping[Any, int] | None,
    ) -> None:
        if get_running_loop() is not self._loop:
            raise self._of_another_loop("make one on the loop that waits in it")
        if self._notifications:
            self._handle_notifications_soon()  # interrupts may have met both calls
        # An operation that was submitted before is not ours to cancel; nor is another object.
        is_ours = is_new(operation)
        try:
            self.core.try_complete_else_watch(operation, keys, thresholds)
            if not operation._op_is_done():
                done = self._loop.create_future()
                operation.call_when_completed(WakeUp(self._wake, done, operation))
                await done
        except BaseException:
            # The task was cancelled, interrupted, or dropped with its loop: no one waits.
            if is_ours and not operation.cancel() and isinstance(operation, ConditionWaiting):
                operation.log_unraised()
            self._reaper.on_earlier()  # an interrupt may have kept the timer from saying so
            raise

    def _wake(self, done: asyncio.Future[None], operation: DelayedOperation) -> None:
        """Wake the task that waits for ``done``."""
        if done.done():
            return
        try:
            if get_ident() == self._thread_id:
                done.set_result(None)
            else:
                self._have_loop_call(_set_done, done)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            # The task that waits is gone with the loop.
            log_safely(
                "warning", "loop_closed", purgatory=self.name, operation=safe_repr(operation)
            )

    def _enqueue(self, key: Hashable, value: int | None) -> None:
        if self._loop.is_closed():
            raise self._loop_closed()
        try:
            self._note(key, value)
            if not self._is_scheduled:
                self._is_scheduled = True
                self._have_loop_call(self._handle_notifications)
        except BaseException:
            self._is_scheduled = False
            if self._loop.is_closed():
                self._notifications.clear()
                raise self._loop_closed() from None
            # Interrupted: another thread may rely on this one to schedule the handler.
            self._have_loop_call(self._handle_notifications)
            raise

    def _note(self, key: Hashable, value: int | None) -> None:
        events, values = self._unbegun
        with self._notes_lock:
            same = None
            with suppress(Exception):  # the key's __eq__ raises: the loop says so
                same = (events if value is None else values).get(key)
            if same is None:
                same = _Notification(key, value)
                self._notifications.append(same)
                with suppress(Exception):
                    if value is None:
                        events[key] = same
                    else:
                        events.clear()
                        values[key] = same
            elif value is not None and same.value is not None and value > same.value:
                same.value = value

    def _begin(self, notification: _Notification) -> None:
        """Let nothing be merged with it any more."""
        unbegun = self._unbegun[notification.value is not None]
        with self._notes_lock:
            try:
                if unbegun.get(notification.key) is notification:
                    del unbegun[notification.key]
            except Exception:  # the key's __eq__ raises
                unbegun.clear()

    def _have_loop_call(self, function: Callable[..., object], *args: object) -> None:
        context = Context()  # not that of whoever says so
        self._loop.call_soon_threadsafe(function, *args, context=context)
        self._loop.call_soon_threadsafe(function, *args, context=context)

    def _handle_notifications_soon(self) -> None:
        self._loop.call_soon(self._handle_notifications, context=Context())

    def _handle_notifications(self) -> None:
        self._is_scheduled = False
        notifications = self._notifications
        checked: set[Hashable] = set()
        try:
            # No more than there are now: later ones are scheduled anew, and others have their turn.
            for _ in range(min(len(notifications), MOST_IN_A_TURN)):
                self._begin(notifications[0])
                self._handle(notifications[0], checked)
                notifications.popleft()
            if notifications:
                self._handle_notifications_soon()
        except BaseException:
            self._handle_notifications_soon()  # the others
            raise

    def _handle(self, notification: _Notification, checked: set[Hashable]) -> None:
        try:
            if notification.value is not None:
                self.core.advance(notification.key, notification.value)
                checked.clear()  # notified before and after an advance, a key is checked twice
            elif notification.key not in checked:
                self.core.check_and_complete(notification.key)
                checked.add(notification.key)
        except Exception as error:
            # Either the key's __eq__ raised, or an interrupt did: one more try tells.
            if not notification.failed_before:
                notification.failed_before = True
                self._notifications.append(notification)
                self._handle_notifications_soon()
                return
            log_safely(
                "error",
                "note_failed",
                purgatory=self.name,
                key=safe_repr(notification.key),
                exc_info=error,
            )

    def _loop_closed(self) -> PurgatoryClosedError:
        return PurgatoryClosedError(
            f"purgatory {self.name!r} can't be notified: its event loop was closed"
        )

    def _of_another_loop(self, advice: str) -> RuntimeError:
        return RuntimeError(f"purgatory {self.name!r} belongs to another event loop: {advice}")

    def _check_thread(self, called: str) -> None:
        if get_ident() != self._thread_id:
            raise RuntimeError(
                f"{called} was called on another thread than that of purgatory {self.name!r}'s "
                "event loop: use notify_threadsafe or advance_threadsafe, or "
                "loop.call_soon_threadsafe"
            )


def core_of(purgatory: DelayedOperationPurgatory | AsyncPurgatory) -> DelayedOperationPurgatory:
    """Return the purgatory that holds the operations.

    Raises:
        TypeError: it is neither; a purgatory shared by workers has one of them as ``local``.
    """
    core: object = purgatory.core if isinstance(purgatory, AsyncPurgatory) else purgatory
    if not isinstance(core, DelayedOperationPurgatory):
        hint = ": give its .local" if hasattr(core, "local") else ""
        raise TypeError(
            "this takes an AsyncPurgatory or a DelayedOperationPurgatory, and no "
            f"{type(core).__name__}{hint}"
        )
    return core


def _set_done(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def close_soon(purgatory: AsyncPurgatory) -> Callable[[], None]:
    """Return a function that has the loop of ``purgatory`` close it, from any thread.

    The function raises RuntimeError if the loop is closed.
    """
    loop = purgatory._loop
    tasks: list[asyncio.Task[int]] = []  # a loop keeps none of its tasks alive

    def begin() -> None:
        tasks.append(loop.create_task(purgatory.aclose()))

    def close_soon() -> None:
        loop.call_soon_threadsafe(begin)

    return close_soon
