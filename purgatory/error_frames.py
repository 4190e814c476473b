"""Errors that are kept: without the frames they came through, which hold what is long done.

A traceback holds its frames, those hold their callers' frames, and all of them their variables:
the operation that failed, and the list of its neighbours that were being checked.
"""

from __future__ import annotations


def drop_tracebacks(error: BaseException) -> None:
    """Take the tracebacks off ``error`` and off all errors that it was caused by or groups."""
    seen: set[int] = set()
    found: list[BaseException] = [error]
    while found:
        error = found.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        error.__traceback__ = None
        found += [linked for linked in (error.__cause__, error.__context__) if linked is not None]
        if isinstance(error, BaseExceptionGroup):
            found += error.exceptions
