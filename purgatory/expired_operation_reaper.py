"""The background thread that moves a purgatory's timer.

Ground rules
------------
* One thread per reaper; ``start`` and ``shutdown`` are called by the purgatory, under no lock.
* Nothing that a task or the timer raises ends the thread: it logs and goes on.
"""

from __future__ import annotations

import threading

from purgatory.safe_log import log_safely
from timer import Timer, TimerClosedError

ADVANCE_TIMEOUT_MS = 200
"""How long the reaper waits for a due bucket before it looks whether it shall stop."""


class ExpiredOperationReaper:
    """Calls ``timer.advance_clock(200)`` over and over, on a daemon thread.

    Args:
        name: the thread's name.
        timer: what it moves.
    """

    def __init__(self, name: str, timer: Timer) -> None:
        self._timer = timer
        self._stopping = threading.Event()
        self._last_advance_ns = timer.clock.now_ns()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    @property
    def last_advance_ns(self) -> int:
        """When it last came round, by the timer's clock: its heartbeat."""
        return self._last_advance_ns

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop_soon(self) -> None:
        """Have the thread end after this round; don't wait for it."""
        self._stopping.set()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the thread's end, at most ``timeout_s``, unless this is that thread."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                log_safely("error", "reaper_still_runs", reaper=self._thread.name)

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                self._timer.advance_clock(ADVANCE_TIMEOUT_MS)
            except TimerClosedError:
                return
            except BaseException as error:
                # A SystemExit in one callback, run by an inline executor, must not end expiry.
                log_safely("error", "reaper_failed", reaper=self._thread.name, exc_info=error)
                # Not a tight loop, should the fault be here to stay.
                self._stopping.wait(ADVANCE_TIMEOUT_MS / 1_000)
            self._last_advance_ns = self._timer.clock.now_ns()
