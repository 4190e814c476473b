"""A timeout as users give it: seconds, or None for ever."""

from __future__ import annotations

import math
import threading


def checked_timeout_s(timeout: float | None) -> float:
    """Return ``timeout``, infinite for None.

    Raises:
        TypeError: it is no number.
        ValueError: it is not a number of seconds, but nan.
    """
    if timeout is None:
        return math.inf
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds, or None for ever, not {timeout!r}")
    if math.isnan(timeout):
        raise ValueError("timeout must be a number of seconds, or None for ever, not nan")
    return timeout


def blocking_s(timeout_s: float) -> float | None:
    """Return ``timeout_s`` as threads can wait for it: more than 292 years is for ever."""
    return None if timeout_s > threading.TIMEOUT_MAX else max(0.0, timeout_s)
