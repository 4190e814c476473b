"""Signals in a virtual world: what their handlers raise comes where it does no harm.

Python calls a handler wherever the program just is, and Ctrl-C raises KeyboardInterrupt there. In
the first step of an ``__exit__`` that would leave undone all that was to be put back; and in what
stands in for a function of C it would reach nobody, since C expects a result.

Ground rules: Python handles signals on the main thread, so only its worlds hold anything.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Final

from purgatory.virtual.built_in_function import call_in, outer_frame

_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGALRM") if hasattr(signal, name)
)
"""Those whose handlers raise: of Ctrl-C, and of the time that a test may take."""


class HeldSignals:
    """Holds signals between `begin` and `end`: while all is put back, until that is done, and in
    what stands in for a function of C until it is left.

    Args:
        leaving: a method that nothing enters; what it calls is entered as ever.
        putting_back: a method that nothing enters, nor what it calls.
    """

    def __init__(self, leaving: Callable[..., Any], putting_back: Callable[..., Any]) -> None:
        self._leaving = leaving.__code__
        self._putting_back = putting_back.__code__
        self._handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
        self._held: list[int] = []

    def begin(self) -> None:
        """Begin, on the main thread, with the signals that have handlers."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, self._take)

    def end(self) -> None:
        """End, and handle what was held. Again: no effect."""
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._take:
                signal.signal(number, handler)
        while self._held:
            number = self._held.pop()
            self._handlers[number](number, None)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._is_held_in(frame):
            self._held.append(number)
            return
        handler = self._handlers[number]
        outer = outer_frame(frame)
        if outer is None:
            handler(number, frame)
        else:
            call_in(outer, partial(handler, number, outer))

    def _is_held_in(self, frame: FrameType | None) -> bool:
        if frame is not None and frame.f_code is self._leaving:
            return True
        while frame is not None and frame.f_code is not self._putting_back:
            frame = frame.f_back
        return frame is not None
