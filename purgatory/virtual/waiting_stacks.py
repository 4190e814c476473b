"""Where the tasks of a loop wait, in words: each with the stack of what it awaits."""

from __future__ import annotations

import asyncio
import linecache
from collections.abc import Iterator
from types import FrameType
from typing import Any


def waiting_stacks(loop: asyncio.AbstractEventLoop) -> str:
    """Return the stack of each task that is not done, the oldest task first."""
    tasks = sorted(asyncio.all_tasks(loop), key=hash)
    return "\n".join(line for task in tasks for line in _lines(task))


def _lines(task: asyncio.Task[Any]) -> Iterator[str]:
    yield f"{task.get_name()}:"
    for frame, number in _frames(task.get_coro()):
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        yield f'  File "{path}", line {number}, in {name}'
        if source := linecache.getline(path, number).strip():
            yield f"    {source}"


def _frames(awaited: Any) -> Iterator[tuple[FrameType, int]]:
    """The frames of a coroutine and of all that it awaits, the outermost first."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        frame = frame or getattr(awaited, "ag_frame", None)
        if frame is not None:
            yield frame, frame.f_lineno
        inner = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None)
        awaited = inner or getattr(awaited, "gi_yieldfrom", None)
