"""A change of the access control lists that waits until every broker decides by it.

Until then a broker that was asked might still allow what is forbidden now. Who is gone needs no
waiting for: it takes the entries of the day when it comes back.

Ground rules: `respond` is called once, whatever the outcome but a cancellation.
"""

from __future__ import annotations

from collections.abc import Callable

from purgatory.core.operation import DelayedOperation
from purgatory.kafka.errors import ErrorCode

ALTER_ACLS_KEY = "acls"
"""What these operations are watched under: there is one list for the cluster."""


class DelayedAlterAcls(DelayedOperation):
    """Waits for the brokers.

    Args:
        timeout_ms: the longest wait.
        everywhere: tells whether all brokers that live have the change.
        respond: takes NONE, or REQUEST_TIMED_OUT: the change is made, and some don't have it yet.
    """

    __slots__ = ("_answered", "_everywhere", "_respond")

    def __init__(
        self,
        timeout_ms: int,
        everywhere: Callable[[], bool],
        respond: Callable[[ErrorCode], object],
    ) -> None:
        super().__init__(timeout_ms)
        self._everywhere = everywhere
        self._respond = respond
        self._answered = False

    def try_complete(self) -> bool:
        return self._everywhere() and self.force_complete()

    def on_complete(self) -> None:
        self._answered = True
        there = self._everywhere()
        self._respond(ErrorCode.NONE if there else ErrorCode.REQUEST_TIMED_OUT)

    def on_failure(self, error: BaseException) -> None:
        if not self._answered:
            self._answered = True
            self._respond(ErrorCode.UNKNOWN_SERVER_ERROR)
