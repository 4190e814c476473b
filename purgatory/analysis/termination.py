"""SIGTERM as an end in order, as Ctrl-C is one: what was begun is removed, and the status is 143.

Ground rules: only the main thread may set handlers; a program that has one of its own keeps it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
"""The status with which a command ends, as shells have it."""


def end(number: int, _frame: FrameType | None) -> None:
    """End whatever runs: a handler for signals."""
    raise SystemExit(128 + number)


def is_free(number: signal.Signals) -> bool:
    """Whether nobody but `ended_by_sigterm` handles a signal, so that a job may."""
    default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    return signal.getsignal(number) in (default, end)


@contextmanager
def signals_held() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait for the end of the `with` block, which is to be short."""
    came: list[int] = []
    held = {}
    if threading.current_thread() is threading.main_thread():
        ends = (signal.SIGINT, signal.SIGTERM)
        held = {one: signal.signal(one, lambda number, _: came.append(number)) for one in ends}
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        for one in came:
            signal.raise_signal(one)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Leave the `with` block by SystemExit with 143 at SIGTERM."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    if not main or before != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
