"""Ending a simulation in order at Ctrl-C or SIGTERM.

A KeyboardInterrupt wouldn't do: where one is raised in a callback of the garbage collector, it is
lost.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALLED = 128
"""The exit status after a signal, as shells have it: this and the signal's number."""


@contextmanager
def interruptible(interrupt: Callable[[], object]) -> Iterator[list[int]]:
    """Call `interrupt` at the first SIGINT or SIGTERM; the second one has its usual effect.

    Yields:
        Where the number of the first one will be found.
    """
    came: list[int] = []
    before: dict[signal.Signals, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        interrupt()
        restore()

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, handle)
    try:
        yield came
    finally:
        restore()
