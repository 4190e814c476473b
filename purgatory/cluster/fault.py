"""One thing that goes wrong in a cluster: what it is, since when, and when it ends.

Ground rules
------------
* Everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from purgatory.cluster.faults import Faults


class Fault:
    """One thing that goes wrong.

    Args:
        faults: whose it is.
        number: from 1 on, in the order in which they began.
        kind: "stall_follower".
        settings: what it was called with.
        on_end: undoes it, where there is something to be undone.
    """

    def __init__(
        self,
        faults: Faults,
        number: int,
        kind: str,
        settings: dict[str, Any],
        on_end: Callable[[], object] | None = None,
    ) -> None:
        self.number = number
        self.kind = kind
        self.settings = settings
        self.began_s = time.time()
        self.ended_s: float | None = None
        self.uses = 0
        self._faults = faults
        self.on_end = on_end
        self._timer: asyncio.TimerHandle | None = None

    @property
    def active(self) -> bool:
        """Whether it is still in force."""
        return self.ended_s is None

    def end(self) -> None:
        """Let things go right again. Ending twice has no effect."""
        if self.ended_s is not None:
            return
        self.ended_s = time.time()
        if self._timer is not None:
            self._timer.cancel()
        self._faults.ended(self)
        if self.on_end is not None:
            self.on_end()

    def forget(self) -> None:
        """Have nothing happen when its time is up."""
        self.ended_s = time.time()
        if self._timer is not None:
            self._timer.cancel()

    def use(self) -> None:
        """Note that it struck; the last of ``count`` strikes ends it."""
        self.uses += 1
        if self.settings.get("count") is not None and self.uses >= self.settings["count"]:
            self.end()

    def end_after(self, seconds: float) -> None:
        """End it in so many seconds."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self.end)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "number": self.number,
            "kind": self.kind,
            "settings": {name: value for name, value in self.settings.items() if value is not None},
            "began_s": self.began_s,
            "ended_s": self.ended_s,
            "uses": self.uses,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()
