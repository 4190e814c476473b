"""An orderly end at SIGTERM and SIGHUP, as at Ctrl-C: temporary files and processes go, too.

SIGHUP is what a terminal that is closed sends. The exit status is 128 and the signal's number.

Ground rules: only the main thread sets handlers; a program that has its own handler keeps it, and
one that ignores a signal, as `nohup` has it do, goes on ignoring it.
"""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
"""The exit status after SIGTERM, as shells have it."""

HUNG_UP = 128 + signal.SIGHUP
"""The exit status after SIGHUP."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a command."""


def ending(number: int) -> BaseException:
    """What a handler raises at a signal: KeyboardInterrupt at Ctrl-C, otherwise SystemExit."""
    if number == signal.SIGHUP:
        _leave_closed_terminal()
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


def _leave_closed_terminal() -> None:
    """Let nothing fail of what is still written to a terminal that is closed."""
    for descriptor in range(3):
        with suppress(OSError):
            # A terminal that is closed is no terminal any more, but still a device.
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)


def end(number: int, _frame: FrameType | None) -> None:
    """A signal handler that raises what a signal stands for."""
    raise ending(number)


def is_free(number: signal.Signals) -> bool:
    """Whether no handler but that of `exit_on_signal` is set, so that a job may set one."""
    default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    return signal.getsignal(number) in (default, end)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer Ctrl-C, SIGTERM and SIGHUP until the end of the `with` block, which must be short."""
    signals: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {
            signum: signal.signal(signum, lambda number, _: signals.append(number))
            for signum in ENDING
            if signal.getsignal(signum) != signal.SIG_IGN
        }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for signum in signals:
            signal.raise_signal(signum)


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """Raise SystemExit with status 143 at SIGTERM, and with 129 at SIGHUP."""
    handled = []
    if threading.current_thread() is threading.main_thread():
        ends = (signal.SIGTERM, signal.SIGHUP)
        handled = [number for number in ends if signal.getsignal(number) == signal.SIG_DFL]
    for number in handled:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


# The outputs that a command has completed, for the message of a later interrupt.
#
# Ground rules: imports are fast; one command at a time runs in a process.


_outputs: list[str] = []


def record_output(location: object) -> None:
    """Record that the results at a location are complete."""
    _outputs.append(str(location))


def forget_outputs() -> None:
    """Clear the record before a command."""
    _outputs.clear()


def last_output() -> str | None:
    """The location of the last results, or None."""
    return _outputs[-1] if _outputs else None


# The temporary folder of a job.
#
# Ground rules: signals are deferred while it is created and removed, since a signal
# between the creation and the assignment would leave it behind.


@contextmanager
def working_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A new folder, which is removed with its content at the end of the `with` block.

    Args:
        prefix: of its name.
        parent: None: the system's temporary folder.

    Raises:
        OSError: it can't be created.
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
