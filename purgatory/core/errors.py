"""Errors of the purgatory, errors that count as a callback's, and errors that are kept."""

from __future__ import annotations

import sys
from asyncio import CancelledError
from collections.abc import Collection, Iterator
from dis import opmap
from types import CodeType

from timer.log import safe_repr

FAULTS = (Exception, CancelledError)
"""Errors that count as the callback's own; all others are interrupts, and go on to the caller.

A CancelledError is no interrupt here: tasks are cancelled where they wait, and no callback waits. A
condition raises it that asks a cancelled future for its result; let through, it would cancel the
task that only reported an event.
"""


class PurgatoryClosedError(RuntimeError):
    """The purgatory was closed: it accepts no operations, and its waits have ended."""


class OperationReusedError(RuntimeError):
    """An operation was submitted a second time: each waits once, in one purgatory."""


class PurgatoryFullError(RuntimeError):
    """As many operations wait as the purgatory's ``max_pending`` allows."""


class WaitCancelledError(RuntimeError):
    """The wait was ended by ``cancel_for_key`` or ``complete_for_key``, and has no result."""


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


# Errors are kept without the frames they came through. Those hold objects that are long done with:
# the operation that failed, and the list of its neighbours that were being checked.
#
# A callback may be called while a caller up the stack handles an error of its own, and Python links
# the callback's error to that. The caller's error keeps its traceback, and the link is cut.


def drop_tracebacks(error: BaseException) -> None:
    """Take the tracebacks off ``error`` and off the errors that it was caused by or groups, if they
    came through its frames; but for what is being handled: so call it after the ``except`` block
    that caught ``error``. An error that its user keeps, and that came about elsewhere, stays."""
    handled = {id(one) for one in _with_linked(sys.exception(), ())}
    frames = set(_frames_of(error))
    for one in _with_linked(error, handled):
        if one is not error and frames.isdisjoint(_frames_of(one)):
            continue
        one.__traceback__ = None
        if id(one.__context__) in handled:
            one.__context__ = None
        if id(one.__cause__) in handled:
            one.__cause__ = None


def _frames_of(error: BaseException) -> Iterator[int]:
    """Yield the identities of the frames that ``error`` came through, which keeps them."""
    traceback = error.__traceback__
    while traceback is not None:
        yield id(traceback.tb_frame)
        traceback = traceback.tb_next


def is_interrupt(function: object, error: BaseException) -> bool:
    """Whether ``error``, caught where ``function`` was called, is an interrupt that came before its
    first step: it has done nothing, and may be called again. O(1)."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return False  # of a function in C that can't be told
    caller = error.__traceback__
    called = None if caller is None else caller.tb_next
    for one in (caller, called):
        if one is not None and one.tb_frame.f_code is code:
            # CPython looks for signals at this first instruction, in the frame of the function.
            return code.co_code[one.tb_lasti] == _RESUME and code.co_code[one.tb_lasti + 1] == 0
    # It has no frame: the stack is at its end, or the function has returned.
    return called is None and isinstance(error, RecursionError)


_RESUME = opmap["RESUME"]


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
