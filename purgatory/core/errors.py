"""What the purgatory raises, what it takes for an error of a callback, and errors that are kept."""

from __future__ import annotations

import sys
from asyncio import CancelledError
from collections.abc import Collection, Iterator

from timer.log import safe_repr

FAULTS = (Exception, CancelledError)
"""What a callback raises of its own; all else is an interrupt, and goes on to the caller.

A CancelledError can't be one: tasks are interrupted by it where they wait, which no callback does.
It comes of a condition that asks a cancelled future for its result, and let through it would cancel
the task that only told an event.
"""


class PurgatoryClosedError(RuntimeError):
    """The purgatory was closed: it accepts no operations, and its waits have ended."""


class OperationReusedError(RuntimeError):
    """An operation was submitted a second time: each waits once, in one purgatory."""


class PurgatoryFullError(RuntimeError):
    """As many operations wait as the purgatory's ``max_pending`` allows."""


class WaitCancelledError(RuntimeError):
    """The wait was ended by ``cancel_for_key``."""


# The errors of a refused operation. None is made under the state's lock: each asks for a repr.


def wrong_type_error(operation: object) -> TypeError:
    """Return the error for an object that is no operation."""
    return TypeError(f"operation must be a DelayedOperation, not {safe_repr(operation)}")


def uninitialized_error(operation: object) -> TypeError:
    """Return the error for an operation whose ``__init__`` did not call its base's."""
    return TypeError(
        f"a {type(operation).__name__} can't wait: its __init__ must call "
        "super().__init__(delay_ms)"
    )


def reused_error(operation: object, submitted_to: str) -> OperationReusedError:
    """Return the error for an operation that was submitted to the purgatory of that name before."""
    return OperationReusedError(
        f"{safe_repr(operation)} was submitted before, to purgatory {submitted_to!r}: "
        "make a new one"
    )


def closed_error(operation: object, name: str) -> PurgatoryClosedError:
    """Return the error of purgatory ``name``, which was closed, for an operation."""
    return PurgatoryClosedError(
        f"purgatory {name!r} was closed: it does not take {safe_repr(operation)}"
    )


def full_error(operation: object, name: str, max_pending: int | None) -> PurgatoryFullError:
    """Return the error of purgatory ``name``, which is full, for an operation."""
    return PurgatoryFullError(
        f"purgatory {name!r} is full: max_pending={max_pending} operations wait, and it does not "
        f"take {safe_repr(operation)}"
    )


# Errors that are kept, without the frames they came through, which hold what is long done: the
# operation that failed, and the list of its neighbours that were being checked.
#
# A callback may be called while somebody up the stack handles an error of his own: to that, Python
# links what the callback raises. It is his, so it keeps its traceback, and the link is cut.


def drop_tracebacks(error: BaseException) -> None:
    """Take the tracebacks off ``error`` and off all errors that it was caused by or groups; but for
    what is being handled: so call it after the ``except`` block that caught ``error``."""
    handled = {id(one) for one in _with_linked(sys.exception(), ())}
    for one in _with_linked(error, handled):
        one.__traceback__ = None
        if id(one.__context__) in handled:
            one.__context__ = None
        if id(one.__cause__) in handled:
            one.__cause__ = None


def _with_linked(error: BaseException | None, but: Collection[int]) -> Iterator[BaseException]:
    """Yield ``error`` and all errors that it leads to, each once, but for some identities."""
    seen = set(but)
    found = [error]
    while found:
        error = found.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        found += [error.__cause__, error.__context__]
        if isinstance(error, BaseExceptionGroup):
            found += error.exceptions
        yield error
