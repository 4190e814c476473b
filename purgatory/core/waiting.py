"""Operations that only let a thread or task wait, and futures of any operation's outcome."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, PENDING
from datetime import timedelta
from inspect import iscoroutine
from operator import call
from threading import Condition
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from purgatory.core.errors import (
    FAULTS,
    PurgatoryClosedError,
    WaitCancelledError,
    is_interrupt,
)
from purgatory.core.operation import DelayedOperation, WakeUp
from purgatory.core.outcome import FOREVER_MS, Outcome
from purgatory.core.recent_errors import log_safely
from timer.durations import checked_timeout_s
from timer.log import safe_repr

T = TypeVar("T")

_FOREVER_S = FOREVER_MS / 1_000
_FIRST = (0,)


class Waiting(DelayedOperation, Generic[T]):
    """Completes with a value, which the waiter gets."""

    __slots__ = ("value",)

    value: T

    @abstractmethod
    def awaited(self) -> str:
        """Return the text for the wait in an error."""

    def result(self, purgatory_name: str) -> T:
        """Return the value, or raise the error that kept it from coming; after the completion."""
        outcome = self.outcome
        if outcome is Outcome.COMPLETED and hasattr(self, "value"):
            return self.value
        if outcome is Outcome.EXPIRED:
            seconds = self.delay_ms / 1_000
            raise TimeoutError(
                f"purgatory {purgatory_name!r}: not within {seconds} s: {self.awaited()}"
            )
        if outcome is Outcome.PENDING or self._was_closed():
            raise PurgatoryClosedError(
                f"purgatory {purgatory_name!r} was closed before: {self.awaited()}"
            )
        if self.error is not None:
            raise self._with_traceback(self.error)
        raise WaitCancelledError(
            f"purgatory {purgatory_name!r} was told to stop waiting for: {self.awaited()}"
        )

    def _was_closed(self) -> bool:
        """Whether it failed because its purgatory was closed."""
        state = self._op_state
        return state is not None and self.error is not None and self.error is state.closing_error

    def _with_traceback(self, error: BaseException) -> BaseException:
        """Return ``error`` without the frames of other waiters that raised it."""
        return error.with_traceback(None)


class ConditionWaiting(Waiting[T]):
    """Completes once ``until()`` is true, with what it returned."""

    __slots__ = ("raised_at", "until")

    _op_raises_to_waiter = True

    def __init__(self, until: Callable[[], T], delay_ms: int) -> None:
        if not callable(until):
            raise TypeError(f"until must be a function, as in lambda: ready, not {until!r}")
        super().__init__(delay_ms)
        self.until = until
        self.raised_at: TracebackType | None = None

    def try_complete(self) -> bool:
        try:
            value = self.until()
        except FAULTS as error:
            # An operation's error loses its traceback; here, a waiter is there to see it.
            self.raised_at = error.__traceback__
            raise
        if not value:
            return False
        if iscoroutine(value):
            value.close()
            raise TypeError(
                f"until is called without await, and {self._condition()} returned a coroutine: "
                "pass a plain function"
            )
        self.value = value
        return self.force_complete()

    def log_unraised(self) -> None:
        """Log the error of ``until``: its waiter went before the error could be raised there."""
        if self.error is not None and self.raised_at is not None:
            error = self._with_traceback(self.error)
            state = self._op_state
            log_safely(
                "error",
                "callback_failed",
                purgatory=None if state is None else state.name,
                operation=safe_repr(self),
                stage="try_complete",
                exc_info=error,
            )

    def awaited(self) -> str:
        return f"{self._condition()} on {list(self._op_keys)}"

    def _condition(self) -> str:
        name = str(getattr(self.until, "__qualname__", self.until))
        return "the condition" if name.endswith("<lambda>") else name

    def _with_traceback(self, error: BaseException) -> BaseException:
        # Dropped here, since the frames hold this operation, which would hold them.
        raised_at, self.raised_at = self.raised_at, None
        return error.with_traceback(raised_at)


class ThresholdWaiting(Waiting[int]):
    """Completes once ``value_of(key)`` is ``number`` or more, with what it is."""

    __slots__ = ("key", "number", "value_of")

    def __init__(
        self, value_of: Callable[[Hashable], int | None], key: Hashable, number: int, delay_ms: int
    ) -> None:
        super().__init__(delay_ms)
        self.value_of = value_of
        self.key = key
        self.number = number

    def try_complete(self) -> bool:
        value = self.value_of(self.key)
        if value is None or value < self.number:
            return False
        self.value = value
        return self.force_complete()

    def awaited(self) -> str:
        return f"{self.key!r} to reach {self.number} (it is {self.value_of(self.key)})"


def delay_of(timeout: float | timedelta | None) -> int:
    """Return a timeout in seconds as a delay in milliseconds, rounded up; None is for ever."""
    timeout_s = checked_timeout_s(timeout)
    if timeout_s >= _FOREVER_S:
        return FOREVER_MS
    return math.ceil(max(timeout_s, -_FOREVER_S) * 1_000)


class OutcomeFuture(Future[Outcome]):
    """The future of an operation's outcome, which may be told again where an interrupt came.

    A future of the standard library is left "running", or its condition taken, by an exception that
    comes between two of its steps. Here each step can be repeated: the outcome is noted, each that
    waits is told if it was not yet, each callback is taken off in the step that calls it.
    """

    def __init__(self, operation: DelayedOperation, purgatory_name: str) -> None:
        super().__init__()
        self._condition = _SafeCondition()
        self._operation = operation
        self._purgatory_name = purgatory_name

    def cancel(self) -> bool:
        """Cancel it, and the operation. False if it is done."""
        try:
            is_cancelled = super().cancel()
        except BaseException:
            if self.cancelled():
                self._operation.cancel()
            raise
        if is_cancelled:
            self._operation.cancel()
        return is_cancelled

    def tell(self) -> None:
        """Note the outcome, which is known or will never come; tell those that wait for it."""
        error = None
        if self._operation.outcome is Outcome.PENDING:
            error = left_pending(self._operation, self._purgatory_name)
        with self._condition:
            if self._state == CANCELLED:
                self._state = CANCELLED_AND_NOTIFIED
            elif self._state == PENDING:
                self._result, self._exception = self._operation.outcome, error
                self._state = FINISHED
            for waiter in self._waiters:
                if self in waiter.finished_futures:
                    continue
                if self._state == CANCELLED_AND_NOTIFIED:
                    waiter.add_cancelled(self)
                elif self._exception is None:
                    waiter.add_result(self)
                else:
                    waiter.add_exception(self)
            self._condition.notify_all()
        self._invoke_callbacks()

    def _invoke_callbacks(self) -> None:
        callbacks: list[Callable[[Future[Outcome]], object]]
        callbacks = self._done_callbacks  # type: ignore[attr-defined]
        while callbacks:
            popped: list[Callable[[Future[Outcome]], object]] = []
            called: list[object] = []
            # An interrupt comes before these two steps, or in the callback.
            pops, calls = map(callbacks.pop, _FIRST), map(call, popped, (self,))
            try:
                popped += pops
                called += calls
            except BaseException as error:
                if not popped and error.__class__ is IndexError:
                    return  # another thread was faster
                if called:
                    raise
                if not isinstance(error, FAULTS) or not popped or is_interrupt(popped[0], error):
                    callbacks[:0] = popped
                    raise
                log_safely("error", "callback_failed", future=safe_repr(self), exc_info=error)


class _SafeCondition(Condition):
    """A condition whose lock ``with`` takes and gives back without a step in Python."""

    __slots__ = ("__enter__", "__exit__")

    if not TYPE_CHECKING:

        def __init__(self) -> None:
            super().__init__()
            self.__enter__ = self._lock.__enter__
            self.__exit__ = self._lock.__exit__


def future_of(operation: DelayedOperation, purgatory_name: str) -> Future[Outcome]:
    """Return a future of the outcome of ``operation``, which was submitted."""
    future = OutcomeFuture(operation, purgatory_name)
    operation.call_when_completed(WakeUp(future.tell))
    return future


def left_pending(operation: DelayedOperation, purgatory_name: str) -> PurgatoryClosedError:
    """Return the error of a wait for an operation that a closed purgatory abandoned."""
    return PurgatoryClosedError(f"purgatory {purgatory_name!r} was closed, and left {operation!r}")
