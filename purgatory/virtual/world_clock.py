"""What time it is in a virtual world: whole microseconds, which only the world's loop lets pass.

Ground rules: only the world's own thread touches it.
"""

from __future__ import annotations

from timer import Clock, Wake

NS_PER_US = 1_000
US_PER_S = 1_000_000
MACHINE_UP_US = 86_400 * US_PER_S
"""What its monotonic clock says when a world begins: a day. Code that takes 0 for "never" then does
what it does on any machine."""


class WorldClock(Clock):
    """The monotonic clock of a world.

    Args:
        start_us: the time of day at which it begins, in microseconds since 1970.
    """

    def __init__(self, start_us: int) -> None:
        self.now_us = MACHINE_UP_US
        self._start_us = start_us

    @property
    def passed_us(self) -> int:
        """How long the world has been."""
        return self.now_us - MACHINE_UP_US

    @property
    def wall_us(self) -> int:
        """The time of day, in microseconds since 1970."""
        return self._start_us + self.now_us - MACHINE_UP_US

    def now_ns(self) -> int:
        return self.now_us * NS_PER_US

    def wait(self, wake: Wake, until_ns: int) -> bool:
        return False  # only the loop lets time pass


class WheelClock(Clock):
    """The same clock for a wheel whose ticks are microseconds: a timer calls them milliseconds.

    Args:
        clock: which one.
    """

    def __init__(self, clock: WorldClock) -> None:
        self._clock = clock

    def now_ns(self) -> int:
        return self._clock.now_us * US_PER_S

    def wait(self, wake: Wake, until_ns: int) -> bool:
        return False
