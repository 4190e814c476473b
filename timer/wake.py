"""A wake-up: one thread waits for it, and any other thread sets it.

``queue.SimpleQueue`` and ``threading.Event`` would be at hand, and neither will do. In CPython 3.11
to 3.13, ``SimpleQueue.get`` with a timeout waits for ever if its thread does not run between two of
its steps until the timeout is over. An event has a lock inside which an exception may leave taken.
``Lock.acquire`` with a timeout is one step, and looks at its deadline after whatever came between.

Ground rules
------------
* One thread waits; any thread wakes it, before it waits or while it does, also from a finalizer or
  a signal's handler.
* A wake-up counts to one: two before a wait spare one wait.
* An exception that comes between any two steps leaves nothing taken that anybody else waits for: at
  most a wake-up is lost, to the one that the exception ends.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import timedelta

from timer.durations import checked_timeout_s


class Wake:
    """A lock that is held from the start: the waiting side takes it, the waking one releases it."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        # The class is looked up now, not at import: gevent may have replaced it since, in a worker
        # of a parent that had imported this, and there the old lock would stop all greenlets.
        self._lock = threading.Lock()
        self._lock.acquire()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{'' if self._lock.locked() else ' set'}>"

    def set(self) -> None:
        """Wake the waiting thread, or let the next wait return at once. O(1)."""
        with suppress(RuntimeError):  # it was set already
            self._lock.release()

    def wait(self, timeout_s: float | timedelta | None = None) -> bool:
        """Wait until it is set, and say whether it was.

        Args:
            timeout_s: the longest wait, in seconds or as a timedelta; below 0 there is none, and
                None, or more than a thread can wait, is for ever.
        """
        limit_s = checked_timeout_s(timeout_s, "timeout_s")
        if limit_s > threading.TIMEOUT_MAX:
            return self._lock.acquire()
        return self._lock.acquire(timeout=max(0.0, limit_s))
