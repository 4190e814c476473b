"""A ``concurrent.futures`` future of an operation's outcome."""

from __future__ import annotations

from concurrent.futures import Future

from purgatory.core.delayed_operation import DelayedOperation
from purgatory.core.errors import PurgatoryClosedError
from purgatory.core.outcome import Outcome


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

    operation.call_when_settled(tell)
    future.add_done_callback(cancel)
    return future


def left_pending(operation: DelayedOperation, purgatory_name: str) -> PurgatoryClosedError:
    """Return what to raise to who waits for an operation that a closed purgatory let go of."""
    return PurgatoryClosedError(f"purgatory {purgatory_name!r} was closed, and left {operation!r}")
