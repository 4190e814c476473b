"""Operations that do nothing but let somebody wait: for a condition, or for the value of a key."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from purgatory.delayed_operation import FOREVER_MS, DelayedOperation
from purgatory.errors import PurgatoryClosedError, WaitCancelledError
from purgatory.outcome import Outcome

T = TypeVar("T")


class Waiting(DelayedOperation, Generic[T]):
    """Completes with a value, which is what whoever waits for it gets."""

    __slots__ = ("value",)

    value: T

    @abstractmethod
    def awaited(self) -> str:
        """Say what is waited for, for an error's text."""

    def result(self, purgatory_name: str) -> T:
        """Return the value, or raise what kept it from coming, once the operation is settled."""
        outcome = self.outcome
        if outcome is Outcome.COMPLETED and hasattr(self, "value"):
            return self.value
        if outcome is Outcome.EXPIRED:
            raise TimeoutError(f"not within {self.delay_ms / 1_000} s: {self.awaited()}")
        if self.error is not None:
            raise self.error
        if outcome is Outcome.PENDING:
            raise PurgatoryClosedError(
                f"purgatory {purgatory_name!r} was closed before: {self.awaited()}"
            )
        raise WaitCancelledError(
            f"purgatory {purgatory_name!r} was told to stop waiting for: {self.awaited()}"
        )


class ConditionWaiting(Waiting[T]):
    """Completes once ``until()`` is true, with what it returned."""

    __slots__ = ("until",)

    def __init__(self, until: Callable[[], T], delay_ms: int) -> None:
        super().__init__(delay_ms)
        self.until = until

    def try_complete(self) -> bool:
        value = self.until()
        if not value:
            return False
        self.value = value
        return self.force_complete()

    def awaited(self) -> str:
        return f"{getattr(self.until, '__qualname__', self.until)} on {list(self._op_keys)}"


class ThresholdWaiting(Waiting[int]):
    """Completes once ``values[key]`` is ``number`` or more, with what it is."""

    __slots__ = ("key", "number", "values")

    def __init__(
        self, values: Mapping[Hashable, int], key: Hashable, number: int, delay_ms: int
    ) -> None:
        super().__init__(delay_ms)
        self.values = values
        self.key = key
        self.number = number

    def try_complete(self) -> bool:
        value = self.values.get(self.key)
        if value is None or value < self.number:
            return False
        self.value = value
        return self.force_complete()

    def awaited(self) -> str:
        return f"{self.key!r} to reach {self.number} (it is {self.values.get(self.key)})"


def delay_of(timeout: float | None) -> int:
    """Return a timeout in seconds as a delay in milliseconds, rounded up; None is for ever."""
    if timeout is None or timeout == math.inf:
        return FOREVER_MS
    if math.isnan(timeout):
        raise ValueError("timeout must be a number of seconds, or None for ever, not nan")
    return min(math.ceil(timeout * 1_000), FOREVER_MS)
