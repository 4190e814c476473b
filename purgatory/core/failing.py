"""An operation that fails, and what is logged of one.

Nothing here is done for an operation that goes well: so it is there once, over either core.

Ground rules
------------
* As in ``settling``: only its settler changes an outcome that is not PENDING any more.
"""

from __future__ import annotations

from purgatory.core.errors import FAULTS
from purgatory.core.fault_log import log_safely
from purgatory.core.life import MOVES
from purgatory.core.operation_core import OperationCore
from purgatory.core.outcome import FAILED, Outcome
from timer.safe_log import safe_repr


class Failing(OperationCore):
    """What fails by what its callbacks raise."""

    __slots__ = ()

    _op_raises_to_waiter = False
    """Whether what `try_complete` raises is raised by the wait for it, and so is not logged."""

    def _op_become(self, outcome: Outcome) -> None:
        """Change an outcome that is not PENDING any more."""
        if (self._op_stage, outcome) not in MOVES[self._op_stage, self._op_outcome]:
            raise RuntimeError(f"{self!r} can't become {outcome.name}")
        self._op_outcome = outcome

    def _op_become_failed(self, error: BaseException) -> None:
        if self._op_outcome is not FAILED:
            self._op_become(FAILED)
            self._op_error = error

    def _op_call_on_failure(self) -> None:
        assert self._op_error is not None, "a failed operation says why"
        try:
            self.on_failure(self._op_error)
        except FAULTS as error:
            self._op_report("on_failure", error)

    def _op_report(self, stage: str, error: BaseException) -> None:
        if self._op_books is not None:
            self._op_books.count_callback_error(stage)
        self._op_log("error", "callback_failed", stage=stage, exc_info=error)

    def _op_log(self, level: str, event: str, **values: object) -> None:
        books = self._op_books
        name = None if books is None else books.name
        error = values.get("exc_info")
        if books is not None and isinstance(error, BaseException):
            stage = values.get("stage")
            books.faults.note(event, None if stage is None else str(stage), self, error)
        if not (self._op_raises_to_waiter and values.get("stage") == "try_complete"):
            log_safely(level, event, purgatory=name, operation=safe_repr(self), **values)
