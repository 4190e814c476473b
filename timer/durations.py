"""Durations as callers give them: a number whose unit the name tells, or a timedelta.

``..._ms`` is a whole number of milliseconds; ``..._s`` and ``timeout`` are seconds, as in asyncio
and threading.
"""

from __future__ import annotations

import math
import operator
from datetime import timedelta

from timer.log import safe_repr

_NUMBERS = (float, int)


def checked_ms(name: str, value: object, least: int | None = None) -> int:
    """Return ``value`` in whole milliseconds; a timedelta is rounded up.

    Integers of other libraries pass; a float, even a whole one, does not: it may have been meant
    as seconds. Neither does a bool.

    Raises:
        TypeError: it is neither an integer nor a timedelta; the message names the value.
        ValueError: it is below ``least``.
    """
    if isinstance(value, timedelta):
        ms, rest = divmod(value, timedelta(milliseconds=1))
        ms += bool(rest)
    else:
        try:
            if isinstance(value, bool):
                raise TypeError
            ms = int(operator.index(value))  # type: ignore[arg-type]
        except TypeError:
            raise _not_ms(name, value) from None
    if least is not None and ms < least:
        raise ValueError(f"{name} must be at least {least}, not {safe_repr(value)}")
    return ms


def _not_ms(name: str, value: object) -> TypeError:
    example = f"; {value:g} s are timedelta(seconds={value:g})" if type(value) is float else ""
    return TypeError(
        f"{name} must be a whole number of milliseconds, an int, or a timedelta, "
        f"not {safe_repr(value)} ({type(value).__name__}){example}"
    )


def checked_delay_ms(delay_ms: object) -> int:
    """Return ``delay_ms`` as ``checked_ms`` does."""
    return checked_ms("delay_ms", delay_ms)


def checked_timeout_s(timeout: float | timedelta | None, name: str = "timeout") -> float:
    """Return ``timeout`` in seconds, infinite for None.

    Raises:
        TypeError: it is neither a number nor a timedelta.
        ValueError: it is not a number of seconds, but nan.
    """
    if timeout is None:
        return math.inf
    # The usual first: this is done for each wait. A bool is an int, but no time.
    if type(timeout) in _NUMBERS and timeout >= 0:  # type: ignore[operator]
        return timeout  # type: ignore[return-value]
    if isinstance(timeout, timedelta):
        return timeout.total_seconds()
    _check_seconds(name, timeout, ", a timedelta, or None for ever")
    return timeout


def checked_interval_s(name: str, value: float | timedelta) -> float:
    """Return ``value`` in seconds, which must be above 0.

    Raises:
        TypeError: it is neither a number nor a timedelta.
        ValueError: it is 0 or less, or nan.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    _check_seconds(name, value, " or a timedelta")
    if value <= 0:
        raise ValueError(f"{name} must be more than 0 seconds, not {value!r}")
    return value


def _check_seconds(name: str, value: object, or_else: str) -> None:
    """Raise what is wrong with ``value`` as a number of seconds."""
    expected = f"{name} must be a number of seconds{or_else}"
    if isinstance(value, bool) or not isinstance(value, _NUMBERS):
        raise TypeError(f"{expected}, not {safe_repr(value)} ({type(value).__name__})")
    if math.isnan(value):
        raise ValueError(f"{expected}, not nan")
