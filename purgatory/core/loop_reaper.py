"""What moves a purgatory's timer on an event loop: the loop's own timer, set to the next bucket.

Ground rules
------------
* Everything happens on the loop's thread, but for ``on_earlier``: any thread may call that, under
  the timer's lock, and another thread's call is passed on to the loop.
* No thread, and no wake-up without something due: with nothing on the wheel, nothing is set.
* The loop's timer is always set twice, the second time a little later. An interrupt may meet
  ``_come`` anywhere, even before its first step; then the second one comes. Nothing that is set is
  cancelled before what replaces it is set. To come once too often does no harm.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from threading import get_ident

from timer import SystemTimer, TimerClosedError

_NS_PER_MS = 1_000_000

AGAIN_MS = 20
"""How long after an interrupt the timer is moved again."""


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
        self._handles: tuple[asyncio.TimerHandle, ...] = ()
        self._due_ms = 0
        self._last_advance_ns = timer.clock.now_ns()
        timer.on_earlier = self.on_earlier

    @property
    def last_advance_ns(self) -> int:
        """Its heartbeat: now, or, if a bucket is overdue, when it last came round."""
        now_ns = self._timer.clock.now_ns()
        if not self._handles or self._due_ms * _NS_PER_MS > now_ns:
            return now_ns
        return self._last_advance_ns

    @property
    def is_alive(self) -> bool:
        """Whether the loop runs, or may yet."""
        return not self._loop.is_closed()

    def on_earlier(self) -> None:
        """A bucket came that is due before all others."""
        if get_ident() == self._thread_id:
            self.set()
        else:
            with suppress(RuntimeError):  # the loop was closed, and with it all who wait
                self._loop.call_soon_threadsafe(self.set)

    def set(self) -> None:
        """Set the loop's timer to the first bucket, unless it comes in time as it is. O(1).

        On the loop's thread. Who waits and is interrupted calls this as well, in case it was kept
        from it; and, once a second, whoever submits.
        """
        first_ms = self._timer.next_expiration_ms()
        if first_ms is None:
            return
        if self._handles and self._due_ms <= first_ms:
            if not self._is_missing():
                return
            self._handles = ()  # not cancelled: on a slow loop they are about to come
        self._set_to(first_ms)

    def stop_soon(self) -> None:
        """Let go of the loop's timer."""
        self._timer.on_earlier = None
        for handle in self._handles:
            handle.cancel()
        self._handles = ()

    def restart_if_dead(self) -> bool:
        """Return False: it lives as long as the loop does. But see that it will come."""
        if get_ident() == self._thread_id:
            self.set()
        return False

    def join(self, timeout_s: float | None = None) -> None:
        """Return at once: there is no thread."""

    def after_fork(self) -> None:
        """In the child: forget what was set on the parent's loop."""
        self._handles = ()

    def _is_missing(self) -> bool:
        """Whether it should have come long ago: the loop is slow, or both were interrupted."""
        late_ns = self._timer.clock.now_ns() - self._due_ms * _NS_PER_MS
        return late_ns > 2 * AGAIN_MS * _NS_PER_MS

    def _set_to(self, due_ms: int | None) -> None:
        before = self._handles
        handles: tuple[asyncio.TimerHandle, ...] = ()
        if due_ms is not None and not self._loop.is_closed():
            missing_ms = due_ms - self._timer.clock.now_ns() / _NS_PER_MS
            # Rounded up: some loops count whole milliseconds, and would come early, for nothing.
            delay_ms = max(0, math.ceil(missing_ms))
            call_later = self._loop.call_later
            handles = (
                call_later(delay_ms / 1_000, self._come),
                call_later((delay_ms + AGAIN_MS) / 1_000, self._come),
            )
            self._due_ms = due_ms
        self._handles = handles
        for handle in before:
            handle.cancel()

    def _come(self) -> None:
        try:
            self._timer.advance_clock(0)
        except TimerClosedError:
            self.stop_soon()
        except BaseException:
            # What is left is due, whatever the timer's buckets say; but not at once, should this
            # be a fault that is here to stay.
            self._set_to(self._timer.clock.now_ms() + AGAIN_MS)
            raise
        else:
            self._set_to(self._timer.next_expiration_ms())
        finally:
            self._last_advance_ns = self._timer.clock.now_ns()
