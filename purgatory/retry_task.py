"""The retry of an operation whose user's lock was taken.

Ground rules
------------
* A task is added to the timer by whoever finds the lock taken while it holds the operation's
  ``_op_busy``, so by one thread at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timer import TimerTask

if TYPE_CHECKING:
    from purgatory.delayed_operation import DelayedOperation

FIRST_RETRY_MS = 1
LONGEST_RETRY_MS = 32


class RetryTask(TimerTask):
    """Serves an operation again; each time after twice as long."""

    __slots__ = ("operation",)

    def __init__(self, operation: DelayedOperation) -> None:
        super().__init__(FIRST_RETRY_MS)
        self.operation = operation

    def run(self) -> None:
        self.delay_ms = min(2 * self.delay_ms, LONGEST_RETRY_MS)
        operation = self.operation
        operation._op_serve()
        if operation.is_completed:
            operation._op_retry = None  # no cycle keeps the two alive
