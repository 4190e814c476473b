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


# Where a command's results have taken their place: what is said if it is stopped after that.
#
# Ground rules: nothing here takes long to import; one command at a time runs in a process.


_places: list[str] = []


def say_written(place: object) -> None:
    """Note that results are at a place, whole."""
    _places.append(str(place))


def forget_written() -> None:
    """Begin anew: nothing is written yet."""
    _places.clear()


def where_written() -> str | None:
    """The place of the results, or None."""
    return _places[-1] if _places else None


# A folder for what a job makes on its way, which is gone when the job ends.
#
# Ground rules: Ctrl-C and SIGTERM wait while it is made, and while it is removed: else one that
# comes between the making and its noting would leave it there.


@contextmanager
def working_folder(prefix: str, place: Path | None = None) -> Iterator[Path]:
    """A new folder, which is removed with all that is in it at the end of the `with` block.

    Args:
        prefix: how its name begins.
        place: the folder in which it is made; None: where the system has temporary ones.

    Raises:
        OSError: it can't be made.
    """
    folder = None
    try:
        with signals_held():
            folder = TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True)
        yield Path(folder.name)
    finally:
        if folder is not None:
            with signals_held():
                folder.cleanup()
