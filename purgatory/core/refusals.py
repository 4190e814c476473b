"""Why an operation is not taken, as the error that says so. None is made in a turn: each asks for a
repr."""

from __future__ import annotations

from purgatory.core.errors import OperationReusedError, PurgatoryClosedError, PurgatoryFullError
from timer.safe_log import safe_repr


def is_no_operation(operation: object) -> TypeError:
    """Say that it is something else."""
    return TypeError(f"operation must be a DelayedOperation, not {safe_repr(operation)}")


def is_unfinished(operation: object) -> TypeError:
    """Say that its own ``__init__`` did not call ours."""
    return TypeError(
        f"a {type(operation).__name__} can't wait: its __init__ must call "
        "super().__init__(delay_ms)"
    )


def was_submitted(operation: object, taken_by: str) -> OperationReusedError:
    """Say that it waits only once; ``taken_by`` is the name of the purgatory where it did."""
    return OperationReusedError(
        f"{safe_repr(operation)} was submitted before, to purgatory {taken_by!r}: make a new one"
    )


def is_closed(operation: object, name: str) -> PurgatoryClosedError:
    """Say that the purgatory of this ``name`` takes nothing any more."""
    return PurgatoryClosedError(
        f"purgatory {name!r} was closed: it does not take {safe_repr(operation)}"
    )


def is_full(operation: object, name: str, max_pending: int | None) -> PurgatoryFullError:
    """Say that as many wait as may."""
    return PurgatoryFullError(
        f"purgatory {name!r} is full: max_pending={max_pending} operations wait, and it does not "
        f"take {safe_repr(operation)}"
    )
