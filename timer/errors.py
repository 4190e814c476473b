"""The errors of a timer, and the check of numbers that timer and purgatory share."""

from __future__ import annotations

import operator

from timer.log import safe_repr


class TimerClosedError(RuntimeError):
    """The timer is closed and accepts no tasks."""


def not_a_task(task: object) -> TypeError:
    """Return the error of ``add`` for an object that is not a task."""
    return TypeError(f"task must be a TimerTask, not {safe_repr(task)} ({type(task).__name__})")


def not_a_whole_task(task: object) -> TypeError:
    """Return the error of ``add`` for a task whose ``__init__`` did not call its base's."""
    return TypeError(
        f"a {type(task).__name__} can't be added: its __init__ must call super().__init__(delay_ms)"
    )


def no_init(one: object) -> AttributeError:
    """Return the error for an object whose ``__init__`` did not call its base's."""
    return AttributeError(
        f"a {type(one).__name__} can't be used: its __init__ must call super().__init__"
    )


def clock_below_0(now_ns: int) -> ValueError:
    """Return the error for a clock whose time is negative."""
    return ValueError(f"the clock's time must be at least 0, not {now_ns!r}")


def checked_delay_ms(delay_ms: object) -> int:
    """Return ``delay_ms`` as a plain int, or raise TypeError."""
    return checked_ms("delay_ms", delay_ms)


def checked_ms(name: str, value: object) -> int:
    """Return ``value`` as a plain int.

    Integers of other libraries pass; a float, even a whole one, does not: it may have been meant
    as seconds. Neither does a bool.

    Raises:
        TypeError: it is not an integer; the message names the value.
    """
    if not isinstance(value, bool):
        try:
            return int(operator.index(value))  # type: ignore[arg-type]
        except TypeError:
            pass
    raise TypeError(
        f"{name} must be a whole number of milliseconds, an int, "
        f"not {value!r} ({type(value).__name__})"
    )
