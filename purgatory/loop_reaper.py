"""What moves a purgatory's timer on an event loop: the loop's own timer, set to the next bucket.

Ground rules
------------
* Everything happens on the loop's thread, but for ``on_earlier``: any thread may call that, under
  the timer's lock, and another thread's call is passed on to the loop.
* No thread, and no wake-up without something due: with nothing on the wheel, nothing is set.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from threading import get_ident

from timer import SystemTimer, TimerClosedError

_NS_PER_MS = 1_000_000


class LoopReaper:
    """Calls ``timer.advance_clock`` whenever a bucket is due.

    Args:
        timer: what it moves; its ``on_earlier`` is set.
        loop: the running loop.
    """

    def __init__(self, timer: SystemTimer, loop: asyncio.AbstractEventLoop) -> None:
        self.restarts = 0
        self._timer = timer
        self._loop = loop
        self._thread_id = get_ident()
        self._handle: asyncio.TimerHandle | None = None
        self._due_ms = 0
        self._last_advance_ns = timer.clock.now_ns()
        timer.on_earlier = self.on_earlier

    @property
    def last_advance_ns(self) -> int:
        """Its heartbeat: now, or, if a bucket is overdue, when it last came round."""
        now_ns = self._timer.clock.now_ns()
        if self._handle is None or self._due_ms * _NS_PER_MS > now_ns:
            return now_ns
        return self._last_advance_ns

    @property
    def is_alive(self) -> bool:
        """Whether the loop runs, or may yet."""
        return not self._loop.is_closed()

    def on_earlier(self) -> None:
        """A bucket came that is due before all others."""
        if get_ident() == self._thread_id:
            self._set()
        else:
            with suppress(RuntimeError):  # the loop was closed, and with it all who wait
                self._loop.call_soon_threadsafe(self._set)

    def stop_soon(self) -> None:
        """Let go of the loop's timer."""
        self._timer.on_earlier = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def restart_if_dead(self) -> bool:
        """Return False: it lives as long as the loop does."""
        return False

    def join(self, timeout_s: float | None = None) -> None:
        """Return at once: there is no thread."""

    def _after_fork(self) -> None:
        self._handle = None

    def _set(self) -> None:
        """Set the loop's timer to the first bucket, if that is due before what it is set to."""
        first_ms = self._timer.next_expiration_ms()
        if first_ms is None or self._loop.is_closed():
            return
        if self._handle is not None:
            if self._due_ms <= first_ms:
                return
            self._handle.cancel()
        missing_ms = first_ms - self._timer.clock.now_ns() / _NS_PER_MS
        self._due_ms = first_ms
        # Rounded up: some loops count whole milliseconds, and would come round early, for nothing.
        self._handle = self._loop.call_later(max(0, math.ceil(missing_ms)) / 1_000, self._come)

    def _come(self) -> None:
        self._handle = None
        try:
            self._timer.advance_clock(0)
        except TimerClosedError:
            return
        finally:
            self._last_advance_ns = self._timer.clock.now_ns()
            self._set()
