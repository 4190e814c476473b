"""A viewer of the live feed: what is ready for it, and how it is told.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque

MOST_WAITING_BYTES = 2_000_000
"""How much may wait for a viewer; of one that is slower all is dropped, and it gets a new state."""


class LiveViewer:
    """What waits for one viewer. It begins with nothing, and needs a state."""

    def __init__(self) -> None:
        self.needs_state = True
        self.is_over = False
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._woken = asyncio.Event()
        self._woken.set()

    def offer(self, event: bytes) -> None:
        """Give it an event, unless it needs a state first."""
        if self.needs_state:
            return
        if self._bytes + len(event) > MOST_WAITING_BYTES:
            self.start_afresh()
            return
        self._waiting.append(event)
        self._bytes += len(event)
        self._woken.set()

    def start_afresh(self) -> None:
        """Drop what waits: a state comes next."""
        self._waiting.clear()
        self._bytes = 0
        self.ask_for_state()

    def ask_for_state(self) -> None:
        """Have a state come after what waits."""
        self.needs_state = True
        self._woken.set()

    def end(self) -> None:
        """Tell it that nothing comes any more."""
        self.is_over = True
        self._woken.set()

    def take(self) -> list[bytes]:
        """Return what waits."""
        taken = list(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        if not (self.needs_state or self.is_over):
            self._woken.clear()
        return taken

    async def wait(self) -> None:
        """Wait until there is something for it."""
        await self._woken.wait()
