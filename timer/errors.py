"""What a timer refuses, and the check of a delay that the timer and the purgatory share."""

from __future__ import annotations

import operator


class TimerClosedError(RuntimeError):
    """The timer was closed: it takes no more tasks."""


def checked_delay_ms(delay_ms: object) -> int:
    """Return ``delay_ms`` as a plain int.

    Integers of other libraries pass; a float, even a whole one, does not: it may have been meant
    as seconds. Neither does a bool.

    Raises:
        TypeError: it is not an integer; the message names the value.
    """
    if not isinstance(delay_ms, bool):
        try:
            return operator.index(delay_ms)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise TypeError(
        f"delay_ms must be a whole number of milliseconds, an int, "
        f"not {delay_ms!r} ({type(delay_ms).__name__})"
    )
