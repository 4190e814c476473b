"""The wheel of a world's loop: timers of asyncio's, with ticks of a microsecond.

Ground rules: only the world's own thread touches it.
"""

from __future__ import annotations

from typing import Final

from purgatory.virtual.world_clock import WheelClock, WorldClock
from timer import InlineExecutor, SystemTimer

_WHEEL_SIZE: Final = 256


class LoopWheel(SystemTimer):
    """A timer whose tasks only note that they are due, so that no executor need run them.

    Args:
        clock: the world's.
    """

    def __init__(self, clock: WorldClock) -> None:
        super().__init__(
            "world", wheel_size=_WHEEL_SIZE, clock=WheelClock(clock), executor=InlineExecutor()
        )

    def turn(self) -> None:
        """Expire what is due: as ``advance_clock``, for who drives it alone. O(what is due)."""
        while True:
            while self._cascade_some():
                pass
            while self._has_due():
                self._run_some_due()
            if not self._poll():
                return
