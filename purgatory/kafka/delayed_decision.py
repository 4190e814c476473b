"""What the controller decided, and who asked for it waits until the brokers go by it.

The controller decides at once; the brokers may be some time in coming to know. Each thing that was
asked for starts out as decided, and has an answer of its own when the time is up.

Ground rules
------------
* One thread, that of the controller.
* ``respond`` is called once, but by whoever was cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from purgatory.core.operation import DelayedOperation
from purgatory.kafka.errors import ErrorCode

Asked = TypeVar("Asked", bound=Hashable)


class DelayedDecision(DelayedOperation, Generic[Asked]):
    """Waits until what was decided is in force.

    Args:
        timeout_ms: the longest wait.
        results: what was decided of each thing so far: those with NONE are waited for.
        is_in_force: whether the decision on a thing is.
        respond: takes the results; REQUEST_TIMED_OUT where it isn't in force in time.
    """

    __slots__ = ("_answered", "_is_in_force", "_respond", "_results", "waiting")

    def __init__(
        self,
        timeout_ms: int,
        results: Mapping[Asked, ErrorCode],
        is_in_force: Callable[[Asked], bool],
        respond: Callable[[Mapping[Asked, ErrorCode]], object],
    ) -> None:
        super().__init__(timeout_ms)
        self._results = dict(results)
        self.waiting = {key for key, code in results.items() if code is ErrorCode.NONE}
        """What it still waits for."""
        self._is_in_force = is_in_force
        self._respond = respond
        self._answered = False

    def try_complete(self) -> bool:
        self.waiting = {key for key in self.waiting if not self._is_in_force(key)}
        return not self.waiting and self.force_complete()

    def on_complete(self) -> None:
        self._answer(ErrorCode.REQUEST_TIMED_OUT)

    def on_failure(self, error: BaseException) -> None:
        if not self._answered:
            self._answer(ErrorCode.UNKNOWN_SERVER_ERROR)

    def _answer(self, to_waiting: ErrorCode) -> None:
        self._answered = True
        self._respond(self._results | dict.fromkeys(self.waiting, to_waiting))
