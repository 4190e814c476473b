"""Durations as callers give them: a number whose unit the name tells, or a timedelta.

``..._ms`` is a whole number of milliseconds; ``..._s`` and ``timeout`` are seconds, as in asyncio
and threading. A value that is more likely meant in the other unit is logged once per call site, at
the level "debug".
"""

from __future__ import annotations

import math
import operator
import sys
from datetime import timedelta

from timer.log import log_safely, safe_repr

_NUMBERS = (float, int)

_LONG_TIMEOUT_S = 1_000
"""From here on, seconds may have been meant as milliseconds: most waits are below 17 minutes."""

_MAX_LOGGED_SITES = 1_000
_logged_sites: set[tuple[str, int]] = set()


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
    if type(timeout) in _NUMBERS and 0 <= timeout < _LONG_TIMEOUT_S:  # type: ignore[operator]
        return timeout  # type: ignore[return-value]
    if isinstance(timeout, timedelta):
        return timeout.total_seconds()
    _check_seconds(name, timeout, ", a timedelta, or None for ever")
    if name == "timeout":  # or the name tells the unit
        if timeout == -1:
            _log_suspicious(timeout, "-1 does not wait at all; None waits for ever")
        elif _LONG_TIMEOUT_S <= timeout < math.inf:
            ms = f"{timeout:g} ms would be timeout={timeout / 1_000:g}"
            _log_suspicious(timeout, f"these are seconds, {timeout / 60:,.0f} minutes; {ms}")
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


def _log_suspicious(timeout: float, advice: str) -> None:
    """Log ``timeout`` once for the line that called timer or purgatory with it."""
    frame = sys._getframe(2)
    package = "timer"
    while frame.f_back is not None:
        caller = str(frame.f_globals.get("__name__")).partition(".")[0]
        if caller not in ("timer", "purgatory"):
            break
        package = caller
        frame = frame.f_back
    site = frame.f_code.co_filename, frame.f_lineno
    if site in _logged_sites or len(_logged_sites) >= _MAX_LOGGED_SITES:
        return
    _logged_sites.add(site)
    at = f"{site[0]}:{site[1]}"
    log_safely(package, "debug", "suspicious_timeout", timeout=timeout, at=at, advice=advice)
