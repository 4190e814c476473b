"""Python's garbage collector while a world runs: it looks for cycles at turns of the loop.

By default it looks whenever so many objects more were made than freed, which depends on all that
the process did before. What a ``__del__`` does would then come at another moment in each run. And
it would look after each dozen of requests, for a tenth of all the time: they leave hardly any.

Ground rules: only the world's own thread touches it.
"""

from __future__ import annotations

import gc
from typing import Final

TURNS: Final = 16_384
"""Of the loop, after which the youngest objects are looked through."""
_OLDER: Final = 8
_ALL: Final = 32
"""Every so many times the older objects are looked through as well, and all of them."""
_AT_ONCE: Final = 200_000
"""After so many objects Python looks by itself: one turn may make any number."""


class WorldCollector:
    """Looks for cyclic garbage between `begin` and `end`, unless the collector is switched off."""

    def __init__(self) -> None:
        self._before: tuple[int, int, int] | None = None
        self._looks = 0

    def begin(self) -> None:
        """Have Python look for garbage only where there is very much of it. Again: no effect."""
        if self._before is None:
            self._before = gc.get_threshold()
            if self._before[0]:
                gc.set_threshold(max(_AT_ONCE, self._before[0]), *self._before[1:])

    def look(self) -> None:
        """`TURNS` are over."""
        if not gc.isenabled() or not gc.get_threshold()[0]:
            return
        self._looks += 1
        gc.collect(0 if self._looks % _OLDER else 1 if self._looks % _ALL else 2)

    def end(self) -> None:
        """Have Python look for it as before. Again: no effect."""
        if self._before is not None:
            gc.set_threshold(*self._before)
            self._before = None
