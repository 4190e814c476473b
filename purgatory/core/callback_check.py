"""What a class of operations may not define, told when it is defined: what never would run."""

from __future__ import annotations

import inspect
from typing import Any

CALLBACKS = ("try_complete", "on_complete", "on_expiration", "on_failure")


def check_callbacks(operation_class: type[Any], base: type[Any]) -> None:
    """Raise TypeError if the library can't call what ``operation_class`` defines.

    Args:
        operation_class: a class of operations.
        base: the one that all of them derive from.
    """
    for name in CALLBACKS:
        kind = _kind_of_promise(getattr(operation_class, name))
        if kind is not None:
            raise TypeError(
                f"{operation_class.__qualname__}.{name} is {kind}: the library calls it, and "
                "nobody would run what it returns; make it a plain function, which may start a task"
            )
    if operation_class.run is not base.run:
        raise TypeError(
            f"{operation_class.__qualname__} defines run, by which the timer expires an operation: "
            "name it otherwise; on_expiration is called when the time is up"
        )


def _kind_of_promise(function: object) -> str | None:
    """Say what ``function`` is, if calling it only promises to do what it says."""
    if inspect.iscoroutinefunction(function):
        return "a coroutine function"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return "a generator function"
    return None
