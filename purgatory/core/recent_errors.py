"""Errors of callbacks, observers and keys: written to the log, and the last ones kept as text.

Ground rules
------------
* An exception in the log stops no operation half way, and in a program that configured no log
  nothing is printed to standard output.
* A note is one ``append`` of a deque, which any thread may do at any time; a reader copies the
  deque, and begins anew if it changed meanwhile. No exception is kept: it would keep its frames.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from timer import log
from timer.log import safe_repr
from timer.machine_time import time


def log_safely(level: str, event: str, **values: Any) -> None:
    """Write ``event`` to the logger "purgatory", unless the log can't be written."""
    log.log_safely("purgatory", level, event, **values)


class Logger:
    """Writes events to the logger of this name, as ``timer.log`` says."""

    def __init__(self, name: str) -> None:
        self._name = name

    def info(self, event: str, **values: Any) -> None:
        """Write an event at the level "info"."""
        log.log_safely(self._name, "info", event, **values)

    def warning(self, event: str, **values: Any) -> None:
        """Write an event at the level "warning"."""
        log.log_safely(self._name, "warning", event, **values)

    def error(self, event: str, **values: Any) -> None:
        """Write an event at the level "error"."""
        log.log_safely(self._name, "error", event, **values)


KEPT = 20
LONGEST_TEXT = 500


class RecentFault(NamedTuple):
    """An error of a callback, an observer or a key."""

    time_s: float
    """Unix time."""
    event: str
    """The name in the log: "callback_failed"."""
    stage: str | None
    """The callback of the operation that raised, if one did: "try_complete"."""
    operation: str
    error: str


class RecentFaults:
    """The last faults."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: deque[RecentFault] = deque(maxlen=KEPT)

    def note(self, event: str, stage: str | None, operation: object, error: BaseException) -> None:
        """Keep an error of ``operation`` as text. O(1)."""
        texts = (cut_repr(operation), cut_repr(error))
        self._kept.append(RecentFault(time.time(), event, stage, *texts))

    def latest(self) -> list[RecentFault]:
        """Return the faults, the last one first."""
        while True:
            try:
                return list(self._kept)[::-1]
            except RuntimeError:
                continue  # another one came just now


def cut_repr(value: object) -> str:
    """Return ``repr(value)``, which may raise, and may be long, in at most LONGEST_TEXT letters."""
    text = safe_repr(value)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 3]}..."
