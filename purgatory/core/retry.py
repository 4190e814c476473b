"""The retry of an operation whose user's lock was taken: a task on the purgatory's timer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timer import TimerTask

_FIRST_RETRY_MS = 1
_LONGEST_RETRY_MS = 32


class RetryTask(TimerTask):
    """Processes an operation again whose user's lock was taken; each time after twice as long, up
    to 32 ms, until it finds the lock free."""

    __slots__ = ("has_run", "process", "since_ns")

    _timer_may_run_again = True

    def __init__(self, process: Callable[[], object]) -> None:
        super().__init__(_FIRST_RETRY_MS)
        self.process = process
        self.has_run = True
        """Whether it came since it was last put on a timer: one of a user's own does not say
        whether a task still waits there."""
        self.since_ns: int | None = None
        """Since when the lock was found taken each time, by the timer's clock."""

    @property
    def operation(self) -> Any:
        """Whose it is."""
        return self.process.__self__  # type: ignore[attr-defined]

    @property
    def is_due(self) -> bool:
        """Whether it is on the timer, and has yet to look at what was noted."""
        return self._timer_waits

    def run(self) -> None:
        self.has_run = True
        self.delay_ms = min(2 * self.delay_ms, _LONGEST_RETRY_MS)
        self.process()
        if not self.is_due:
            self.delay_ms = _FIRST_RETRY_MS  # the lock was free: the next time begins anew
            self.since_ns = None
