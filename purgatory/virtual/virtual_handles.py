"""What an event loop of a world hands out for a call, and how it makes such calls.

A client's request takes some twenty of them. So a function fills each at once here, where asyncio
goes through a constructor of every class. Where its debug mode is on, which notes where a handle
was made, asyncio's own do it.

Ground rules: only the world's own thread touches them.
"""

from __future__ import annotations

import asyncio
from asyncio import format_helpers
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, TypeVar


class ReadyHandle(asyncio.Handle):
    """A call in the next turn."""

    __slots__ = ()

    # What the base class has, and does not tell type checkers.
    _context: Context
    _callback: Any
    _args: Any
    _loop: Any
    _repr: str | None
    _source_traceback: Any


class DueHandle(asyncio.TimerHandle):
    """A call at a time, with its number among all of them, and its place on the wheel.

    The place refers to the handle. So it goes when the time has come, or the handle is cancelled:
    who waits for the garbage collector is looked at by it.
    """

    __slots__ = ("due_us", "number", "on_wheel")

    due_us: int
    number: int
    on_wheel: Any

    _context: Context
    _callback: Any
    _args: Any
    _loop: Any
    _repr: str | None
    _scheduled: bool
    _source_traceback: Any
    _when: float

    def cancel(self) -> None:
        if not self._cancelled:
            on_wheel, self.on_wheel = self.on_wheel, None
            if on_wheel is not None:
                on_wheel.cancel()
            super(asyncio.TimerHandle, self).cancel()


_Kind = TypeVar("_Kind", ReadyHandle, DueHandle)
_new = object.__new__


def new_handle(
    kind: type[_Kind],
    callback: Callable[..., object],
    args: tuple[Any, ...],
    loop: asyncio.AbstractEventLoop,
    context: Context | None,
) -> _Kind:
    """Return a handle with all but what only a `DueHandle` has."""
    handle = _new(kind)
    handle._context = copy_context() if context is None else context
    handle._loop = loop
    handle._callback = callback
    handle._args = args
    handle._cancelled = False
    handle._repr = None
    handle._source_traceback = None
    return handle


def due_handle(
    when: float,
    callback: Callable[..., object],
    args: tuple[Any, ...],
    loop: asyncio.AbstractEventLoop,
    context: Context | None,
) -> DueHandle:
    """Return the handle of a call at a time; its place on the wheel is to be filled in."""
    if loop.get_debug():
        return DueHandle(when, callback, args, loop, context)
    handle = new_handle(DueHandle, callback, args, loop, context)
    handle._when = when
    handle._scheduled = False
    return handle


def tell_failure(handle: Any, error: BaseException) -> None:
    """Tell the loop's handler of exceptions what a call has raised, as asyncio's handles do."""
    what = format_helpers._format_callback_source(handle._callback, handle._args)
    told = {"message": f"Exception in callback {what}", "exception": error, "handle": handle}
    if handle._source_traceback:
        told["source_traceback"] = handle._source_traceback
    handle._loop.call_exception_handler(told)
