"""SIGTERM as an end in order, as Ctrl-C is one: what was begun is removed, and the status is 143.

Ground rules: only the main thread may set handlers; a program that has one of its own keeps it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
"""The status with which a command ends, as shells have it."""


def end(number: int, _frame: FrameType | None) -> None:
    """End whatever runs: a handler for signals."""
    raise SystemExit(128 + number)


def is_free(number: signal.Signals) -> bool:
    """Whether nobody but `exit_on_sigterm` handles a signal, so that a job may."""
    default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    return signal.getsignal(number) in (default, end)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait for the end of the `with` block, which is to be short."""
    signals: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        ends = (signal.SIGINT, signal.SIGTERM)
        handlers = {
            signum: signal.signal(signum, lambda number, _: signals.append(number))
            for signum in ends
        }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for signum in signals:
            signal.raise_signal(signum)


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
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


# Where a command's results have taken their place: what is said if it is stopped after that.
#
# Ground rules: nothing here takes long to import; one command at a time runs in a process.


_outputs: list[str] = []


def record_output(location: object) -> None:
    """Note that results are at a place, whole."""
    _outputs.append(str(location))


def forget_outputs() -> None:
    """Begin anew: nothing is written yet."""
    _outputs.clear()


def last_output() -> str | None:
    """The place of the results, or None."""
    return _outputs[-1] if _outputs else None


# A folder for what a job makes on its way, which is gone when the job ends.
#
# Ground rules: Ctrl-C and SIGTERM wait while it is made, and while it is removed: else one that
# comes between the making and its noting would leave it there.


@contextmanager
def working_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A new folder, which is removed with all that is in it at the end of the `with` block.

    Args:
        prefix: how its name begins.
        parent: the folder in which it is made; None: where the system has temporary ones.

    Raises:
        OSError: it can't be made.
    """
    folder = None
    try:
        with defer_signals():
            folder = TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
        yield Path(folder.name)
    finally:
        if folder is not None:
            with defer_signals():
                folder.cleanup()
