"""The retry of an operation whose user's lock was taken: a task on the purgatory's timer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timer import TimerTask

_FIRST_RETRY_MS = 1
_LONGEST_RETRY_MS = 32


class RetryTask(TimerTask):
    """Processes an operation again after its user's lock was taken: each time after twice as long,
    up to 32 ms, until the lock is free."""

    __slots__ = ("has_run", "process", "since_ns")

    _timer_may_run_again = True

    def __init__(self, process: Callable[[], object]) -> None:
        super().__init__(_FIRST_RETRY_MS)
        self.process = process
        self.has_run = True
        """Whether it ran since it was last put on a timer: a timer of the user's own does not say
        whether a task still waits there."""
        self.since_ns: int | None = None
        """The time from which the lock was taken at each try, by the timer's clock."""

    @property
    def operation(self) -> Any:
        """The operation."""
        return self.process.__self__  # type: ignore[attr-defined]

    @property
    def is_due(self) -> bool:
        """Whether it is on the timer, and has yet to look at the notes."""
        return self._timer_waits

    def run(self) -> None:
        self.has_run = True
        self.delay_ms = min(2 * self.delay_ms, _LONGEST_RETRY_MS)
        self.process()
        if not self.is_due:
            self.delay_ms = _FIRST_RETRY_MS  # the lock was free: the next time begins anew
            self.since_ns = None
