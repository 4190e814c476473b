"""The event loop of a thread beside a user's program, whose forks and frozen clocks don't touch it.

A forked process inherits all open sockets: clients would stay connected to a killed broker, and its
port would accept more. In the child, each socket of the loop is replaced by the null device: the
number stays in use, for objects that the child has of its parent may close it later.

Ground rules: everything happens on the loop's thread, but `_after_fork`, for which the child has no
other thread than its own.
"""

from __future__ import annotations

import asyncio
import os
import selectors
from collections.abc import Mapping
from contextlib import suppress

from timer import forking
from timer.machine_time import time


class OwnLoop(asyncio.SelectorEventLoop):
    """An event loop on the machine's clock, also while a test's time is frozen."""

    _transports: Mapping[int, object]
    """asyncio's transports by their sockets; one that doesn't read isn't in the selector."""

    def __init__(self) -> None:
        self._own_selector = selectors.DefaultSelector()
        super().__init__(self._own_selector)
        forking.register(self)

    def time(self) -> float:
        return time.monotonic()

    def _after_fork(self) -> None:
        if self.is_closed():
            return
        selected = [key.fd for key in self._own_selector.get_map().values()]
        with suppress(OSError):  # too many files are open
            null = os.open(os.devnull, os.O_RDWR)
            for number in {*selected, *self._transports}:
                os.dup2(null, number, inheritable=False)
            os.close(null)
