"""The last errors of a purgatory's callbacks, as text: what a debug page shows beside their number.

Ground rules
------------
* A note is one ``append`` of a deque, which any thread may do at any time; a reader copies the
  deque, and begins anew if it changed meanwhile. No exception is kept: it would keep its frames.
"""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from timer.safe_log import safe_repr

KEPT = 20
LONGEST_TEXT = 500


class RecentFault(NamedTuple):
    """What a callback, an observer or a key raised."""

    time_s: float
    """When, as Unix time."""
    event: str
    """Under which name it was logged: "callback_failed"."""
    stage: str | None
    """Which callback raised, if it was one of the operation's: "try_complete"."""
    operation: str
    error: str


class RecentFaults:
    """The last of them."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: deque[RecentFault] = deque(maxlen=KEPT)

    def note(self, event: str, stage: str | None, operation: object, error: BaseException) -> None:
        """Keep what ``operation`` raised as text. O(1)."""
        texts = (cut_repr(operation), cut_repr(error))
        self._kept.append(RecentFault(time.time(), event, stage, *texts))

    def latest(self) -> list[RecentFault]:
        """Return what is kept, the last one first."""
        while True:
            try:
                return list(self._kept)[::-1]
            except RuntimeError:
                continue  # another one came just now


def cut_repr(value: object) -> str:
    """Return ``repr(value)``, which may raise, and may be long, in at most LONGEST_TEXT letters."""
    text = safe_repr(value)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 3]}..."
