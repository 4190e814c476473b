"""Clocks, the sources of time: the machine's monotonic clock, or one that is moved by hand.

A clock answers one question, what time it is, and does one other thing that only it can do:
it lets a thread wait until something is due. Waiting belongs here because a manual clock does not
move while one waits for it.

Ground rules
------------
* ``now_ns`` takes no lock and may be called from anywhere.
* ``wait`` is called with no lock held. A thread that waits brings a ``Wake`` of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta

from timer.durations import checked_ms
from timer.locks import module_lock
from timer.machine_time import time
from timer.wake import Wake

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_lock = module_lock()


class Clock(ABC):
    """The source of time of a timer. The origin is the clock's own, and no time is below 0."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.now_ms()} ms>"

    @abstractmethod
    def now_ns(self) -> int:
        """Return the time in nanoseconds, which never goes backwards."""

    @abstractmethod
    def wait(self, wake: Wake, until_ns: int) -> bool:
        """Wait until ``wake`` is set, or until the time is ``until_ns``.

        Returns:
            Whether to look again: False says that the wait was given up.
        """

    def now_ms(self) -> int:
        """Return the time in whole milliseconds, rounded down: the last one that has begun."""
        return self.now_ns() // NS_PER_MS


class SystemClock(Clock):
    """The machine's monotonic clock: it is not set back, and knows nothing of the date."""

    # The built-in function itself: a call of now_ns costs no Python frame.
    now_ns = staticmethod(time.monotonic_ns)

    def wait(self, wake: Wake, until_ns: int) -> bool:
        wake.wait((until_ns - time.monotonic_ns()) / NS_PER_S)
        return True


class ManualClock(Clock):
    """A clock that stands still until it is moved: for tests and simulations.

    A thread that waits on it (a reaper, say) is woken whenever the clock is moved. The longest
    wait is counted in real time, so that nothing hangs when nobody moves the clock.

    Args:
        start_ms: the time at first, in milliseconds, or as a timedelta.

    Raises:
        TypeError: ``start_ms`` is neither an integer nor a timedelta.
        ValueError: ``start_ms`` is negative.
    """

    def __init__(self, start_ms: int | timedelta = 0) -> None:
        self._now_ns = checked_ms("start_ms", start_ms, 0) * NS_PER_MS
        # One item for each thread that waits. A list, changed in single steps of the interpreter:
        # a finalizer that runs in the middle meets no lock.
        self._waiting: list[Wake] = []

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, delta_ms: int | timedelta) -> None:
        """Move ``delta_ms`` milliseconds, or a timedelta, forward.

        Raises:
            TypeError: ``delta_ms`` is neither an integer nor a timedelta.
            ValueError: ``delta_ms`` is negative.
        """
        delta_ns = checked_ms("delta_ms", delta_ms) * NS_PER_MS
        if delta_ns < 0:
            raise ValueError(f"a clock does not go back: delta_ms={delta_ms!r} is below 0")
        with _lock:
            self._now_ns += delta_ns
        if self._waiting:
            self._wake()

    def advance_to(self, now_ms: int | timedelta) -> None:
        """Move forward to ``now_ms``: milliseconds, or a timedelta, since the clock's origin.

        Raises:
            TypeError: ``now_ms`` is neither an integer nor a timedelta.
            ValueError: that time has passed already.
        """
        self.advance_to_ns(checked_ms("now_ms", now_ms) * NS_PER_MS)

    def advance_to_ns(self, now_ns: int) -> None:
        """Move forward to ``now_ns`` nanoseconds.

        Raises:
            ValueError: that time has passed already.
        """
        with _lock:
            if now_ns < self._now_ns:
                raise ValueError(
                    f"a clock does not go back: {now_ns} ns was asked for, it is {self._now_ns} ns"
                )
            self._now_ns = now_ns
        if self._waiting:
            self._wake()

    def wait(self, wake: Wake, until_ns: int) -> bool:
        try:
            self._waiting.append(wake)
            # Registered first, then looked: a move before this line is seen here, and one after
            # it finds us registered.
            missing_ns = until_ns - self._now_ns
            return missing_ns <= 0 or wake.wait(missing_ns / NS_PER_S)
        finally:
            if wake in self._waiting:  # an interrupt may have come before it was
                self._waiting.remove(wake)

    def _wake(self) -> None:
        for wake in list(self._waiting):
            wake.set()
