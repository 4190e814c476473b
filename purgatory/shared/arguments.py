"""Checks of what relays and shared purgatories are given: what can't work is refused at once."""

from __future__ import annotations

import inspect
from contextlib import suppress
from datetime import timedelta

from timer.durations import checked_interval_s

_SHORTEST_HEARTBEAT_S = 0.01


def check_key(key: object) -> None:
    """Raise TypeError if a relay can't send ``key``."""
    if not isinstance(key, str):
        raise TypeError(f"a key that processes share is a str, not {key!r}")


def checked_text(name: str, value: object) -> str:
    """Return ``value``, a text that a server, or the file system, can be given.

    Raises:
        TypeError: it is no text.
        ValueError: it has a NUL, or half of a surrogate pair.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {value!r}")
    if "\0" in value:
        raise ValueError(f"{name} must have no NUL: {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must have no half of a surrogate pair: {value!r}") from None
    return value


def check_read(read: object) -> None:
    """Raise TypeError if ``read`` can't be called with a list of keys."""
    if not callable(read):
        raise TypeError(f"read must be a function of a list of keys, not {read!r}")
    with suppress(ValueError):  # some that C has tell no signature
        try:
            inspect.signature(read).bind([])
        except TypeError as error:
            raise TypeError(f"read must take a list of keys, alone: {error}") from None


def checked_batch(batch: object) -> int:
    """Return ``batch``, a number of keys.

    Raises:
        TypeError: it is no integer.
        ValueError: it is below 1.
    """
    if not isinstance(batch, int) or isinstance(batch, bool):
        raise TypeError(f"batch must be an int, not {batch!r}")
    if batch < 1:
        raise ValueError(f"batch must be 1 or more keys, not {batch}")
    return batch


def checked_heartbeat_s(heartbeat: float | timedelta) -> float:
    """Return ``heartbeat`` in seconds.

    Raises:
        TypeError: it is neither a number nor a timedelta.
        ValueError: no server could respond so soon.
    """
    heartbeat_s = checked_interval_s("heartbeat", heartbeat)
    if heartbeat_s < _SHORTEST_HEARTBEAT_S:
        raise ValueError(
            f"heartbeat must be at least {_SHORTEST_HEARTBEAT_S} seconds, not {heartbeat_s!r}: "
            "no server would respond in time"
        )
    return heartbeat_s
