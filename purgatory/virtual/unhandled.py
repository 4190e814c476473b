"""Exceptions that nothing in a world handled, which fail its test.

asyncio only logs an exception that ends a background task, a callback or the handler of a
connection. They reach the loop's default exception handler, at the latest when the task or future
is deleted. A task that is still referred to at the end of a test would never be reported: tasks are
kept, weakly, to find it.

Ground rules: a loop's handler that a program sets has handled what it was called with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from weakref import WeakSet

from purgatory.settings.problems import known_names
from purgatory.virtual.errors import WorldError

RAISE: Final = "raise"
RECORD: Final = "record"
_POLICIES: Final = (RAISE, RECORD)


def check_policy(policy: str) -> str:
    """Return the policy for unhandled exceptions.

    Raises:
        WorldError: it is neither "raise" nor "record".
    """
    if policy not in _POLICIES:
        known = known_names(str(policy), _POLICIES)
        raise WorldError(f"on_unhandled: there is no {policy!r}; {known}")
    return policy


class UnhandledErrors:
    """The unhandled exceptions of a world."""

    def __init__(self) -> None:
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        """The tasks that are no host's."""
        self.contexts: list[Mapping[str, Any]] = []
        """The context that the loop's exception handler was called with."""
        self.is_over = False
        """Whether the test is: ending a world may break connections that programs use."""
        self._raised = 0

    def add(self, context: Mapping[str, Any]) -> None:
        """Add the context of a call of the exception handler, if it has an exception."""
        if not self.is_over and isinstance(context.get("exception"), BaseException):
            self.contexts.append(context)

    def check(self) -> None:
        """Raise the first exception that was not raised yet, if any."""
        contexts, self._raised = self.contexts[self._raised :], len(self.contexts)
        if contexts:
            error: BaseException = contexts[0]["exception"]
            error.add_note(_text(contexts[0]))
            if more := len(contexts) - 1:
                error.add_note(f"and {more} more unhandled exception{'s' * (more > 1)}")
            raise error

    def add_notes(self, error: BaseException, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Add to an exception those that were unhandled before it, which may have caused it."""
        contexts = [*self.contexts[self._raised :], *map(_failed, never_retrieved(tasks))]
        for context in contexts:
            cause = context["exception"]
            if cause is not error:
                error.add_note(f"{_text(context)}: {type(cause).__name__}: {cause}")


def never_retrieved(tasks: Iterable[asyncio.Task[Any]]) -> Iterator[asyncio.Task[Any]]:
    """Yield the tasks whose exceptions nothing has retrieved so far, the oldest first."""
    for task in sorted(tasks, key=hash):
        if getattr(task, "_log_traceback", False):
            yield task


def report_never_retrieved(
    loop: asyncio.AbstractEventLoop, tasks: Iterable[asyncio.Task[Any]]
) -> None:
    """Report exceptions of tasks as their deletion would."""
    found: Sequence[Any] = [*never_retrieved(tasks)]
    for task in found:
        context = _failed(task)
        task._log_traceback = False
        loop.call_exception_handler(context)


def _failed(task: Any) -> dict[str, Any]:
    error = task._exception  # `exception()` would retrieve it
    return {"message": "Task exception was never retrieved", "exception": error, "task": task}


def _text(context: Mapping[str, Any]) -> str:
    task = context.get("task") or context.get("future")
    name = f" ({task.get_name()})" if isinstance(task, asyncio.Task) else ""
    message = str(context.get("message", "exception")).replace("Numbered", "", 1)
    return f"unhandled: {message}{name}"
