"""The errors of a timer."""

from __future__ import annotations

from timer.log import safe_repr


def not_copied_error(thing: object) -> TypeError:
    """Return the error for an attempt to copy or pickle ``thing``, whose state can't be shared."""
    return TypeError(f"a {type(thing).__name__} can't be copied or pickled: make a new one")


class TimerClosedError(RuntimeError):
    """The timer is closed and accepts no tasks."""


def wrong_type_error(task: object) -> TypeError:
    """Return the error of ``add`` for an object that is not a task."""
    return TypeError(f"task must be a TimerTask, not {safe_repr(task)} ({type(task).__name__})")


def uninitialized_task_error(task: object) -> TypeError:
    """Return the error of ``add`` for a task whose ``__init__`` did not call its base's."""
    return TypeError(
        f"a {type(task).__name__} can't be added: its __init__ must call super().__init__(delay_ms)"
    )


def uninitialized_error(one: object) -> AttributeError:
    """Return the error for an object whose ``__init__`` did not call its base's."""
    return AttributeError(
        f"a {type(one).__name__} can't be used: its __init__ must call super().__init__"
    )


def negative_time_error(now_ns: int) -> ValueError:
    """Return the error for a clock whose time is negative."""
    return ValueError(f"the clock's time must be at least 0, not {now_ns!r}")
