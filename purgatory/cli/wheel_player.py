"""A wheel's walk on a terminal: one picture that is drawn again in place, by the pace or by keys.

space           stop, and go on
right, l, n     a step forward
left, h, p      a step back
home, g; end, G the first step; the last one
q, Ctrl-C       leave
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from purgatory.cli.wheel_drawing import headline, picture

if TYPE_CHECKING:
    from purgatory.view.wheel_walk import Step

_KEYS = {
    b" ": "stop",
    **dict.fromkeys((b"\x1b[C", b"\x1bOC", b"l", b"n"), "forward"),
    **dict.fromkeys((b"\x1b[D", b"\x1bOD", b"h", b"p"), "back"),
    **dict.fromkeys((b"\x1b[H", b"\x1bOH", b"g"), "first"),
    **dict.fromkeys((b"\x1b[F", b"\x1bOF", b"G"), "last"),
    b"q": "leave",
}
_LONGEST_KEY = 8


def play(console: Console, steps: Sequence[Step], start_ms: int, pause_ms: int) -> None:
    """Show the steps one after the other, ``pause_ms`` apart; a key stops that, and steps.

    It ends after the last step, or when it is left. Where standard input is no terminal there are
    no keys.
    """
    at, goes_on = 0, True
    with _keys() as key, Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(_frame(steps, at, start_ms, goes_on), refresh=True)
            if at == len(steps) - 1 and goes_on:
                return
            pressed = key(pause_ms / 1_000 if goes_on else None)
            match pressed:
                case None:
                    at += 1
                case "stop":
                    goes_on = not goes_on
                case "leave":
                    return
                case _:
                    goes_on = False
                    at = _moved(pressed, at, len(steps) - 1)


def _moved(pressed: str, at: int, last: int) -> int:
    places = {"forward": min(at + 1, last), "back": max(at - 1, 0), "first": 0, "last": last}
    return places.get(pressed, at)


def _frame(steps: Sequence[Step], at: int, start_ms: int, goes_on: bool) -> RenderableType:
    how = "space stops" if goes_on else "space goes on"
    line = f"step {at} of {len(steps) - 1}   {how}, arrows step, q leaves"
    step = steps[at]
    return Group(headline(step, start_ms), picture(step, start_ms), Text(line, style="dim"))


@contextmanager
def _keys() -> Iterator[Callable[[float | None], str | None]]:
    """Return a function that waits so many seconds for a key, without end if None; None: none."""
    try:
        import termios
        import tty
    except ImportError:  # Windows: it plays to its end, without keys
        yield _no_key
        return
    if not sys.stdin.isatty():
        yield _no_key
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    with _noticed_signals() as signals:
        try:
            tty.setcbreak(terminal)
            yield lambda timeout_s: _pressed(terminal, signals, timeout_s)
        finally:
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@contextmanager
def _noticed_signals() -> Iterator[int]:
    """Return a file that can be read when a signal came.

    A Ctrl-C that comes after Python last looked for one and before it waits for a key interrupts
    no waiting: without this file it would count only after the next key.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        os.close(reader)


def _no_key(timeout_s: float | None) -> None:
    time.sleep(timeout_s or 0)


def _pressed(terminal: int, signals: int, timeout_s: float | None) -> str | None:
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
        ready = select.select([terminal, signals], [], [], left_s)[0]
        if signals in ready and signal.SIGINT in os.read(signals, _LONGEST_KEY):
            raise KeyboardInterrupt
        if not ready:
            return None
        if terminal not in ready:
            continue
        read = os.read(terminal, _LONGEST_KEY)
        if not read:
            return "leave"  # the terminal is gone
        if read in _KEYS:
            return _KEYS[read]
        if not read.startswith(b"\x1b"):  # several, pressed at once: the last one that means any
            known = [_KEYS[bytes([one])] for one in read if bytes([one]) in _KEYS]
            if known:
                return known[-1]
