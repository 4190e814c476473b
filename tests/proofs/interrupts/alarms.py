"""Real signals, whose handler raises, at a random moment of a call.

For a process of its own: see ``own_process``.
"""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from types import FrameType

SOON_S, LATE_S = 1e-6, 600e-6
"""The range in which an alarm comes: a call of the library takes some 5 to 50 microseconds."""


class Alarm(BaseException):
    """The exception of the handler."""


class Alarms:
    """Breaks calls off.

    Args:
        rng: says when.
        where: the folders in whose files an alarm raises; anywhere, if None.
    """

    def __init__(self, rng: random.Random, where: Collection[str] | None = None) -> None:
        self.came = 0
        self._rng = rng
        self._where = where
        signal.signal(signal.SIGALRM, self._raise)
        # An exception in a callback of a weak reference is only printed.
        sys.unraisablehook = lambda unraisable: None

    def _raise(self, number: int, frame: FrameType | None) -> None:
        folder = "" if frame is None else str(Path(frame.f_code.co_filename).parent)
        if self._where is None or folder in self._where:
            raise Alarm

    def during(self, call: Callable[[], object]) -> bool:
        """Make the call, and say whether an alarm broke it off."""
        came = False
        try:
            signal.setitimer(signal.ITIMER_REAL, self._rng.uniform(SOON_S, LATE_S))
            call()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Alarm:
            came = True
        # The alarm may have come while the timer was being stopped.
        with suppress(Alarm):
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.came += came
        return came
