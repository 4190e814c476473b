"""The background thread that moves a purgatory's timer.

Ground rules
------------
* One thread per reaper; ``start`` and ``shutdown`` are called by the purgatory, under no lock.
* Nothing that a task or the timer raises ends the thread: it logs and goes on.
* While the interpreter ends no thread is started: it would not run, and be waited for in vain.
* ``_starting`` is reentrant: a finalizer that runs while a thread is made may submit operations.
"""

from __future__ import annotations

import sys
import threading

from purgatory.core.fault_log import log_safely
from timer import Timer, TimerClosedError, Wake

ADVANCE_TIMEOUT_MS = 200
"""How long the reaper waits for a due bucket before it looks whether it shall stop."""


class ExpiredOperationReaper:
    """Calls ``timer.advance_clock(200)`` over and over, on a daemon thread.

    Args:
        name: the thread's name.
        timer: what it moves.
    """

    def __init__(self, name: str, timer: Timer) -> None:
        self.name = name
        self._timer = timer
        self._thread: threading.Thread
        self.after_fork()

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
        if not sys.is_finalizing():
            self._thread.start()

    def restart_if_dead(self) -> bool:
        """Start a new thread if the old one ended by itself; say whether it did. O(1)."""
        if self._thread.is_alive() or self._stopping or sys.is_finalizing():
            return False
        with self._starting:
            dead, thread = self._thread, self._new_thread()
            if dead.is_alive() or self._thread is not dead:
                return False
            started_before = dead.ident is not None
            self._thread = thread
            thread.start()
            self.restarts += started_before
        return started_before

    def stop_soon(self) -> None:
        """Have the thread end after this round; don't wait for it."""
        self._stopping = True
        self._wake.set()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the thread's end, at most ``timeout_s``, unless this is that thread."""
        thread = self._thread
        if thread is not threading.current_thread() and thread.ident is not None:
            thread.join(timeout_s)
            if thread.is_alive():
                log_safely("error", "reaper_still_runs", reaper=self.name)

    def after_fork(self) -> None:
        """In the child: forget the parent's thread; one starts with the first operation."""
        self.restarts = 0
        self._stopping = False
        self._wake = Wake()
        self._starting = threading.RLock()
        self._last_advance_ns = self._timer.clock.now_ns()
        self._thread = self._new_thread()

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._work, name=self.name, daemon=True)

    def _work(self) -> None:
        while not self._stopping:
            try:
                self._timer.advance_clock(ADVANCE_TIMEOUT_MS)
            except TimerClosedError:
                return
            except BaseException as error:
                # A SystemExit in one callback, run by an inline executor, must not end expiry.
                log_safely("error", "reaper_failed", reaper=self.name, exc_info=error)
                # Not a tight loop, should the fault be here to stay.
                self._wake.wait(ADVANCE_TIMEOUT_MS / 1_000)
            self._last_advance_ns = self._timer.clock.now_ns()
