"""Operations that only let a thread or task wait, and futures of any operation's outcome."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from datetime import timedelta
from inspect import iscoroutine
from types import TracebackType
from typing import Generic, TypeVar

from purgatory.core.errors import FAULTS, PurgatoryClosedError, WaitCancelledError
from purgatory.core.operation import DelayedOperation
from purgatory.core.outcome import FOREVER_MS, Outcome
from purgatory.core.recent_errors import log_safely
from timer.durations import checked_timeout_s
from timer.log import safe_repr

T = TypeVar("T")

_FOREVER_S = FOREVER_MS / 1_000


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


def future_of(operation: DelayedOperation, purgatory_name: str) -> Future[Outcome]:
    """Return a future of the outcome of ``operation``, which was submitted."""
    future: Future[Outcome] = Future()

    def tell() -> None:
        if not future.set_running_or_notify_cancel():
            return  # the future was cancelled, and the operation by it
        if operation.outcome is Outcome.PENDING:
            future.set_exception(left_pending(operation, purgatory_name))
        else:
            future.set_result(operation.outcome)

    def cancel(future: Future[Outcome]) -> None:
        if future.cancelled():
            operation.cancel()

    operation.call_when_completed(tell)
    future.add_done_callback(cancel)
    return future


def left_pending(operation: DelayedOperation, purgatory_name: str) -> PurgatoryClosedError:
    """Return the error of a wait for an operation that a closed purgatory abandoned."""
    return PurgatoryClosedError(f"purgatory {purgatory_name!r} was closed, and left {operation!r}")
