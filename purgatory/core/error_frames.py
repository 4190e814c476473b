"""Errors that are kept: without the frames they came through, which hold what is long done.

A traceback holds its frames, those hold their callers' frames, and all of them their variables:
the operation that failed, and the list of its neighbours that were being checked.

A callback may be called while somebody up the stack handles an error of his own: to that, Python
links what the callback raises. It is his, so it keeps its traceback, and the link is cut.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator


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
