"""What a timer refuses, and the check of a number that the timer and the purgatory share."""

from __future__ import annotations

import operator


class TimerClosedError(RuntimeError):
    """The timer was closed: it takes no more tasks."""


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
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise TypeError(
        f"{name} must be a whole number of milliseconds, an int, "
        f"not {value!r} ({type(value).__name__})"
    )
